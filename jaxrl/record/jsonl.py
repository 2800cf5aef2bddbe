"""Files of JSON objects, one a line, that a run writes whole or appends to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl.record import storage
from jaxrl.record.rundir import best_effort


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, if it exists; an incomplete last line is left out."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.endswith("\n"))


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write whole or not at all."""
    storage.write(path, _lines(rows))


class Log:
    """A file that a run appends to.

    Rows are written when `add` returns. Where storage fails they wait in memory, and the next
    `add` tries again. In a bucket, where nothing can be appended to, each `add` writes all of it.
    """

    def __init__(
        self,
        path: Path,
        note: Callable[[str], None],
        keep: Callable[[dict[str, Any]], bool],
        *,
        sync: bool = True,
    ) -> None:
        """Start with the rows of `path`, if it exists, for which `keep` holds; drop the others.

        With `sync`, rows are on the disk when `add` returns; without it, a power failure loses the
        last of them.
        """
        self._path, self._note, self._sync = path, note, sync
        self._waiting = _lines(row for row in read(path) if keep(row)).encode()
        self._size: int | None = None  # of what is on disk; None: not what it has to be
        self._write()

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Append rows."""
        self._waiting += _lines(rows).encode()
        self._write()

    def _write(self) -> None:
        with best_effort(self._path.name, self._note):
            if storage.remote(self._path):
                self._path.write_bytes(self._waiting)
                return
            if self._size is None:
                storage.write(self._path, self._waiting.decode())
                self._size, self._waiting = len(self._waiting), b""
                return
            with self._path.open("r+b") as file:
                file.truncate(self._size)  # of a line that was cut short
                file.seek(self._size)
                file.write(self._waiting)
                file.flush()
                if self._sync:
                    os.fsync(file.fileno())
                self._size, self._waiting = file.tell(), b""


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
