"""Patches of a repository: how they are applied, and what its tests say of them.

Multi-SWE-bench (Zan et al. 2025): a patch resolves an issue if every test that should pass then
does, and no test that passed before fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """What tests say of a patch."""

    fail_to_pass: float
    """Share of the tests that failed before and should pass, which pass; 1 if there are none."""
    pass_to_pass: float
    """Share of the tests that passed before, which still pass; 1 if there are none."""

    @property
    def fixed(self) -> bool:
        """Whether all that failed passes: what a reward without pass-to-pass tests accepts."""
        return self.fail_to_pass == 1

    @property
    def resolved(self) -> bool:
        """Whether nothing broke, too."""
        return self.fixed and self.pass_to_pass == 1

    @property
    def breaking(self) -> bool:
        """Whether it is accepted without pass-to-pass tests, and breaks something."""
        return self.fixed and not self.resolved


def judge(before: Sequence[bool], after: Sequence[bool]) -> Verdict:
    """The verdict from which tests pass before the patch and after it.

    Raises:
      ValueError: not as many tests after as before, or none that failed before.
    """
    if len(before) != len(after) or all(before):
        raise ValueError(
            f"{len(before)} tests before, {len(after)} after, {sum(before)} pass before: need the "
            "same tests, of which some fail before"
        )
    failed = [
        passes_after
        for passes_before, passes_after in zip(before, after, strict=True)
        if not passes_before
    ]
    passed = [
        passes_after
        for passes_before, passes_after in zip(before, after, strict=True)
        if passes_before
    ]
    return Verdict(sum(failed) / len(failed), sum(passed) / len(passed) if passed else 1.0)


def apply(files: Mapping[str, str], patch: str) -> dict[str, str] | None:
    """The files after a patch.

    A patch names a file on its first line. Lines with `-` follow, which must be one run of lines of
    that file and occur once, then lines with `+`, which take their place.

    Returns:
      None where the patch is malformed or does not apply.
    """
    path, *lines = patch.strip("\n").split("\n")
    kinds = [line[:1] for line in lines]
    count = kinds.count("-")
    if path not in files or not count or kinds != ["-"] * count + ["+"] * (len(lines) - count):
        return None
    old, new = ([line[1:] for line in part] for part in (lines[:count], lines[count:]))
    source = files[path].split("\n")
    places = [i for i in range(len(source)) if source[i : i + count] == old]
    if len(places) != 1:
        return None
    at = places[0]
    return {**files, path: "\n".join([*source[:at], *new, *source[at + count :]])}
