"""Records of a file with the numbers of their lines, and lines that are no records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.data.sources import records as sources


class Bad(NamedTuple):
    """A row that cannot be used."""

    id: str
    why: str


class Chosen(Sequence[Mapping[str, Any]]):
    """Some records of a sequence."""

    def __init__(self, records: Sequence[Mapping[str, Any]], places: Sequence[int]) -> None:
        self._records, self._places = records, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._records[self._places[index]]


def read_numbered(path: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[int], list[Bad]]:
    """The records of a file, their numbers from 1, and what is no record.

    Args:
      path: a `.jsonl` file, whose numbers are lines; a `.json` file, a list; or a source of
        `jaxrl.data.sources.records.read`.

    Raises:
      ValueError: none of these.
    """
    file = Path(path)
    if file.suffix in (".jsonl", ".ndjson") and file.exists():
        found: list[Bad] = []
        lines = sources.Jsonl(file, lambda line, why: found.append(Bad(f"{path}:{line}", why)))
        return lines, lines.lines, found
    records: Any
    if file.suffix == ".json" and file.exists():
        try:
            records = json.loads(file.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"data.path={path!r} is not JSON: {error}") from error
        if not isinstance(records, list):
            raise ValueError(
                f"data.path={path!r} holds {type(records).__name__}; a .json file is a list of "
                "rows, and a .jsonl file has one row a line"
            )
        broken = [
            Bad(f"{path}:{number}", f"{record!r:.60} is not an object")
            for number, record in enumerate(records, 1)
            if not isinstance(record, dict)
        ]
        numbers = [n for n, record in enumerate(records, 1) if isinstance(record, dict)]
        return [records[n - 1] for n in numbers], numbers, broken
    records = sources.read(path)
    return records, range(1, len(records) + 1), []
