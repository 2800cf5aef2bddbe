"""Every row of a file is encoded before a run begins, so that no row stops it later."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.data.sources.numbered_lines import Bad
from jaxrl.data.sources.parsing import Row
from jaxrl.data.sources.rows import Rows, unusable


def usable(rows: Rows, encode: Callable[[Row], Any], *, bad: Literal["error", "skip"]) -> Rows:
    """The rows that a tokenizer and a chat template can write.

    Args:
      rows: of a file.
      encode: writes a row; a ValueError where that cannot be done. What it gives is false for a
        row that is left out without being bad, as one that is too long may be.
      bad: `error` refuses the file at the first row that cannot be written; `skip` leaves such
        rows out, among the bad ones.

    Raises:
      ValueError: a bad row, or no row is left.
    """
    places, broken = array("Q"), list[Bad]()
    for index in range(len(rows)):
        place = rows.where(index)
        try:
            usable_row = bool(encode(rows[index]))
        except ValueError as error:
            broken.append(Bad(place, str(error).removeprefix(f"{place}: ")))
            if bad == "error":
                raise unusable(broken[-1]) from error
            continue
        if usable_row:
            places.append(index)
    if not places and broken:
        raise ValueError(f"data.path={rows.path!r} has no row that can be used: {broken[0].why}")
    return rows.only(places, broken)
