"""Results as JSON files of a Git repository: written whole, committed, and named by digests."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def committed(path: Path) -> str:
    """The commit that holds a file as it is.

    Raises:
      ValueError: the file is missing, is not in a Git repository, or differs from its last commit.
    """
    if not path.exists():
        raise ValueError(
            f"{path.name} is missing: `python -m experiments effects --plan` makes it; then "
            "commit it"
        )
    if _git(path, "status", "--porcelain", "--ignored", "--", path.name):
        raise ValueError(f"{path.name} is not committed as it is: `git commit {path}` comes first")
    return _git(path, "log", "-1", "--format=%H", "--", path.name)


def head(path: Path) -> str:
    """The present commit of the repository of a file."""
    return _git(path, "rev-parse", "HEAD")


def history(path: Path) -> dict[str, int]:
    """The commits that lead to the present one, in the repository of a file, by their order.

    A commit has a larger number than those that it follows.

    Raises:
      ValueError: the file is in no Git repository, or in a clone without its whole history.
    """
    if _git(path, "rev-parse", "--is-shallow-repository") == "true":
        raise ValueError(
            f"{path.name}: this clone has the last commits alone; `git fetch --unshallow` gets "
            "the others"
        )
    listed = _git(path, "rev-list", "--topo-order", "--reverse", "HEAD").split()
    return {name: place for place, name in enumerate(listed)}


def first_commits(path: Path, pattern: str) -> dict[str, str]:
    """Stem of each file that a pattern of paths matches -> the commit that first held one.

    Args:
      path: of a file of the repository.
      pattern: of paths from the root of the repository, present or past.
    """
    log = _git(
        path, "log", "--topo-order", "--reverse", "--format=:%H", "--name-only", "--diff-filter=A",
        "--no-renames", "--", f":(top,glob)**/{pattern}", f":(top,glob){pattern}",
    )  # fmt: skip
    first, commit = dict[str, str](), ""
    for line in log.splitlines():
        if line.startswith(":"):
            commit = line[1:]
        elif line:
            first.setdefault(Path(line).stem, commit)
    return first


def commit(paths: Sequence[Path], message: str) -> None:
    """Commit those of these files that exist, and no others."""
    names = [str(path.resolve()) for path in paths if path.exists()]
    _git(paths[0], "add", "--", *names)
    if _git(paths[0], "status", "--porcelain", "--", *names):
        _git(paths[0], "commit", "--quiet", "--only", "-m", message, "--", *names)


def _git(path: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=path.resolve().parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(f"git {command[0]} {path.name}: {done.stderr.strip()}")
    return done.stdout.strip()


def digest(value: Any) -> str:
    """Of anything JSON holds."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write(path: Path, value: dict[str, Any]) -> None:
    """A JSON file with a line for each field, replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
    part = path.with_suffix(".part")
    part.write_text("{\n" + lines + "\n}\n")
    os.replace(part, path)
