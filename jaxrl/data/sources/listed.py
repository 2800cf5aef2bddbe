"""Records of a file that are in memory, with their places in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.data.sources import compressed

OnBroken = Callable[[str, str], None]
"""Called with the place of what is no record, `FILE:LINE`, and the reason."""


class Listed(Sequence[Mapping[str, Any]]):
    """Records in memory, with the number of each in its file."""

    def __init__(
        self, path: Path, records: Sequence[Mapping[str, Any]], numbers: Sequence[int]
    ) -> None:
        self._path, self._records, self._numbers = path, records, numbers

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._records[index]

    def where(self, index: int) -> str:
        """The place of a record."""
        return f"{self._path}:{self._numbers[index]}"


def elements(path: Path, skip: OnBroken | None = None) -> Listed:
    """The objects of a `.json` file that holds a list.

    Raises:
      ValueError: it holds something else.
    """
    try:
        with compressed.opened(path) as file:
            records = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(records, list):
        raise ValueError(
            f"{path} holds {type(records).__name__}; a .json file is a list of rows, or has one "
            "row a line"
        )
    numbers: list[int] = []
    for number, record in enumerate(records, 1):
        if isinstance(record, dict):
            numbers.append(number)
            continue
        why = f"{record!r:.60} is not an object"
        if skip is None:
            raise ValueError(f"{path}:{number}: {why}")
        skip(f"{path}:{number}", why)
    return Listed(path, [records[number - 1] for number in numbers], numbers)
