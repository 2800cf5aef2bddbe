"""The figures of arms: one compressed file of those that were packed, and a file each of new ones.

A directory of results holds `arms.jsonl.xz`, a line for each arm in the order of their keys, and
`arms/KEY.json` for every arm that was run since. `python -m experiments pack` adds these to it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "arms.jsonl.xz"
DIGEST = "arms.sha256"
"""The file with the digest of the lines of the archive, uncompressed."""


def path_of(directory: Path, key: str) -> Path:
    """The file of an arm that is not packed."""
    return directory / "arms" / f"{key}.json"


def read(directory: Path, key: str) -> dict[str, Any] | None:
    """The figures of an arm, those of its own file first; None where neither has them."""
    path = path_of(directory, key)
    if path.exists():
        return json.loads(path.read_text())
    line = _lines(directory / NAME).get(key)
    return None if line is None else json.loads(line)


def read_all(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, figures) of every arm, by key."""
    single = {path.stem for path in (directory / "arms").glob("*.json")}
    for key in sorted(single | _lines(directory / NAME).keys()):
        figures = read(directory, key)
        assert figures is not None
        yield key, figures


def pack(directory: Path) -> int:
    """Move the arms that have files of their own into the archive; returns how many it has then.

    The same arms give the same bytes.
    """
    lines = {key: json.dumps({"key": key} | figures) for key, figures in read_all(directory)}
    content = "".join(f"{lines[key]}\n" for key in sorted(lines)).encode()
    part = directory / f"{NAME}.part"
    part.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    part.replace(directory / NAME)
    (directory / DIGEST).write_text(f"{hashlib.sha256(content).hexdigest()}  arms.jsonl\n")
    for path in (directory / "arms").glob("*.json"):
        path.unlink()
    return len(lines)


def check(directory: Path) -> None:
    """Compare the archive with the digest that stands beside it.

    Raises:
      ValueError: they differ.
    """
    content = lzma.decompress((directory / NAME).read_bytes())
    stated = (directory / DIGEST).read_text().split()[0]
    if hashlib.sha256(content).hexdigest() != stated:
        raise ValueError(f"{directory / NAME} has not the digest that {DIGEST} states")


def _lines(path: Path) -> dict[str, str]:
    """Key -> line of an archive; none where there is no file."""
    return _lines_of(path, path.stat().st_mtime_ns) if path.exists() else {}


@functools.lru_cache(maxsize=2)
def _lines_of(path: Path, changed: int) -> dict[str, str]:
    text = lzma.decompress(path.read_bytes()).decode()
    return {line[9 : line.index('"', 9)]: line for line in text.splitlines()}


def main(argv: list[str]) -> int:
    """`python -m experiments pack [DIRECTORY]`."""
    directory = Path(argv[0]) if argv else Path(__file__).parents[1] / "results"
    print(f"{pack(directory)} arms in {directory / NAME}")
    return 0
