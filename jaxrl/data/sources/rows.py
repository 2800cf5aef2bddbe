"""Rows of a file to learn from: recognised, checked one by one, and some of them held out.

A row is one of eight kinds:

    messages     {"messages": [{"role": ..., "content": ...}, ...]}, and "tools" if there are any
    completion   {"prompt": ..., "completion": ...}
    preference   {"prompt": ..., "chosen": ..., "rejected": ...}
    ranking      {"prompt": ..., "ranking": [best, second, ...]}
    label        {"prompt": ..., "completion": ..., "label": true or false}
    stepwise     {"prompt": ..., "completions": [step, ...], "labels": [true or false, ...]}
    referenced   {"prompt": ..., "completions": [step, ...], "reference": [step, ...]}
    text         {"text": ...}

A prompt or an answer is a text or a list of messages. A preference without a prompt has two
conversations or two texts, whose common beginning is the prompt; it may have a `margin`, by which
the chosen answer is better than another pair's. Steps with a reference solution in place of labels
get those of `jaxrl.data.rewards.steps.aligned`; each line of a step has the label of the step.
`jaxrl.data.sources.layouts` recognises other names of columns, and what a prompt may have besides:
an `input`, a `system` message and a `history`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from jaxrl.data.sources import layouts
from jaxrl.data.sources import records as sources
from jaxrl.data.sources.layouts import Kind, Layout
from jaxrl.data.sources.numbered_lines import Bad, Chosen, read_numbered
from jaxrl.data.sources.parsing import Row, parse
from jaxrl.data.text.messages import NotText


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a file, in its order. `rows[i]` reads one."""

    path: str
    layout: Layout
    records: Sequence[Mapping[str, Any]]
    where: Callable[[int], str]
    """The place of each, as `FILE:LINE`."""
    keys: tuple[bytes, ...]
    """8 bytes each: a hash of the prompt, or of the whole row where it has none."""
    bad: tuple[Bad, ...]
    """Rows that were left out."""
    left_out: int = 0
    """Rows that were left out without being bad."""

    @property
    def kind(self) -> Kind:
        """The kind of all rows."""
        return self.layout.kind

    @property
    def columns(self) -> Mapping[str, str]:
        """Of each column of the kind, its name in the file."""
        return self.layout.columns

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Row:
        return parse(self.records[index], self.layout, self.where(index))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells these rows from others."""
        return hashlib.blake2b(b"".join(self.keys), digest_size=8).hexdigest()

    def only(self, places: Sequence[int], bad: Sequence[Bad] = ()) -> Rows:
        """Some of the rows, and further ones that are bad."""
        return dataclasses.replace(
            self,
            records=Chosen(self.records, places),
            where=lambda index: self.where(places[index]),
            keys=tuple(self.keys[place] for place in places),
            bad=(*self.bad, *bad),
            left_out=len(self) - len(places) - len(bad),
        )


def read(
    path: str,
    columns: Mapping[str, str] | None = None,
    *,
    bad: Literal["error", "skip"] = "error",
    media: bool = True,
    prompts: bool = False,
) -> Rows:
    """The rows of a file, each of which is read once and checked.

    Args:
      path: a source of `jaxrl.data.sources.records.read`.
      columns: names in the file by the names of `jaxrl.data.sources.layouts.COLUMNS`; the others
        are recognised. An empty name says that the file has no such column.
      bad: `error` refuses the file at its first row that cannot be used; `skip` leaves them out.
      media: a row that holds an image or other media is a bad row as others are; else it refuses
        the file.
      prompts: read a file of prompts without answers too.

    Raises:
      ValueError: no such file, a kind that is not recognised, a bad row, or no good one.
    """
    records, broken = read_numbered(path)
    if bad == "error" and broken:
        raise unusable(broken[0])
    if not len(records):
        why = f" that can be used: {broken[0].id}: {broken[0].why}" if broken else ""
        raise ValueError(f"data.path={path!r} has no rows{why}")
    layout = layouts.recognise(records, columns or {}, path, prompts=prompts)
    good, keys = array("Q"), list[bytes]()
    for index in range(len(records)):
        place = sources.where(records, index, path)
        try:
            row = parse(records[index], layout, place)
        except ValueError as error:
            broken.append(Bad(place, str(error).removeprefix(f"{place}: ")))
            if bad == "error" or (not media and isinstance(error, NotText)):
                raise unusable(broken[-1]) from error
            continue
        good.append(index)
        keys.append(_key(row))
    if not good:
        raise ValueError(f"data.path={path!r} has no row that can be used: {broken[0].why}")
    return Rows(
        path,
        layout,
        Chosen(records, good),
        lambda index: sources.where(records, good[index], path),
        tuple(keys),
        tuple(sorted(broken, key=_place)),
    )


def _place(row: Bad) -> tuple[str, int]:
    file, _, number = row.id.rpartition(":")
    return file, int(number)


def unusable(row: Bad) -> ValueError:
    """The error of a bad row, where such rows are not left out."""
    return ValueError(
        f"{row.id}: {row.why}; correct the row, or leave such rows out with --data.bad-rows skip"
    )


def _key(row: Row) -> bytes:
    contents = row.prompt or row.answers
    plain = json.dumps(contents, sort_keys=True, default=str).encode(errors="surrogatepass")
    return hashlib.blake2b(plain, digest_size=8).digest()


def divide(rows: Rows, share: float, most: int) -> tuple[list[int], list[int]]:
    """Rows to train on, and rows to hold out: those with the lowest hashes of their prompts.

    Rows of one prompt stay together. What is held out does not depend on the order of the rows.

    Args:
      rows: of a file.
      share: of the prompts that is held out, at least one; above 0 and below 1.
      most: prompts to hold out.

    Raises:
      ValueError: a share out of range, or one prompt alone.
    """
    if not 0 < share < 1:
        raise ValueError(f"data.eval_share={share}: must lie above 0 and below 1")
    prompts = sorted(set(rows.keys))
    if len(prompts) < 2:
        raise ValueError(
            f"data.path={rows.path!r} has one prompt, so none can be held out; name other rows to "
            "evaluate on with --eval-data FILE"
        )
    count = min(max(1, round(share * len(prompts))), most, len(prompts) - 1)  # one is trained on
    eval_prompts = set(prompts[:count])
    train = [i for i, key in enumerate(rows.keys) if key not in eval_prompts]
    return train, [i for i, key in enumerate(rows.keys) if key in eval_prompts]
