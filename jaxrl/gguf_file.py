"""Opening a GGUF file of unknown origin.

The weights (`jaxrl.models.gguf`) and the vocabulary (`jaxrl.data.gguf_vocab`) are in one file. This
module imports nothing of jaxrl, so that both packages can use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

LONGEST = 1 << 22
"""Array entries in a file's metadata, in all: several times those of any vocabulary."""


class Field(NamedTuple):
    """One entry of a file's metadata, to be written."""

    key: str
    value: Any
    kind: gguf.GGUFValueType
    inner: gguf.GGUFValueType | None = None
    """Of the entries of an array."""


class _Reader(gguf.GGUFReader):
    """Refuses lengths that the file cannot hold, which the library would try to read."""

    entries = 0

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY:
            kind = int(self._get(orig_offs, np.uint32)[0])
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            self.entries += length
            if kind == gguf.GGUFValueType.ARRAY or self.entries > min(LONGEST, len(self.data)):
                raise ValueError(
                    f"metadata at byte {orig_offs} is an array of {length} entries of type {kind}; "
                    f"at most {LONGEST} entries that the file holds are read, and no arrays of "
                    "arrays"
                )
        return super()._get_field_parts(orig_offs, raw_type)


def open_file(path: str | Path) -> gguf.GGUFReader:
    """A reader of a GGUF file.

    Raises:
      ValueError: the file is not sound.
    """
    try:
        return _Reader(str(path))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a sound GGUF file: {error}") from error
