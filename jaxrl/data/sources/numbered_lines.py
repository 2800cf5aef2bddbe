"""Records of files, and lines that are no records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def read_numbered(path: str) -> tuple[Sequence[Mapping[str, Any]], list[Bad]]:
    """The records of a source of `jaxrl.data.sources.records.read`, and what in it is no record.

    Raises:
      ValueError: no such source.
    """
    broken: list[Bad] = []
    records = sources.read(path, lambda place, why: broken.append(Bad(place, why)))
    return records, broken
