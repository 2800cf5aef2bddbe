"""Files of JSON objects, one a line, that a run writes whole or appends to."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl import json_file
from jaxrl.mesh import distributed
from jaxrl.record import storage
from jaxrl.record.storage import best_effort

Note = Callable[[str], object]
_LONGEST = 1 << 26
"""Bytes of a line."""
_NAMED = 5  # lines of a file whose numbers a message has


def read(path: Path, note: Note = warnings.warn) -> Iterator[dict[str, Any]]:
    """The objects of a file, if it exists; an incomplete last line is left out.

    Args:
      path: of the file.
      note: called, after the last of them, with the numbers of lines that hold no object.
    """
    if not path.exists():
        return
    if not path.is_file():  # a pipe would be waited for
        note(f"WARNING: {path} is no regular file, and none of it is read")
        return
    faulty: list[int] = []
    with path.open("rb") as file:
        raw: Any = file  # one in a bucket has no lines of bounded length
        for number, line in enumerate(_bounded(io.BufferedReader(raw)), 1):
            if not line.endswith(b"\n"):
                break
            json_object = row(line)
            if json_object is None:
                faulty.append(number)
            else:
                yield json_object
    if faulty:
        note(f"WARNING: {path}: {_lines_of(faulty)} no JSON object; the other rows are used")


def read_on(file: io.BufferedReader) -> tuple[list[dict[str, Any]], int]:
    """The objects of the whole lines from the position of a file on, and where the next begins."""
    rows, end = list[dict[str, Any]](), file.tell()
    for line in _bounded(file):
        if line.endswith(b"\n"):
            end = file.tell()
            if (json_object := row(line)) is not None:
                rows.append(json_object)
    return rows, end


def _bounded(file: io.BufferedReader) -> Iterator[bytes]:
    """The lines of a file; in the place of one over `_LONGEST`, an empty one."""
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST and not line.endswith(b"\n"):
            _pass_hole(file)
            while (line := file.readline(_LONGEST)) and not line.endswith(b"\n"):
                _pass_hole(file)
            line = line[-1:]
        yield line


def _pass_hole(file: io.BufferedReader) -> None:
    """Go to where a file has data again, if a hole is next: one of terabytes takes no space."""
    try:
        descriptor = file.fileno()
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        data = os.lseek(descriptor, file.tell(), os.SEEK_DATA)
        os.lseek(descriptor, before, os.SEEK_SET)  # the file is buffered, and knows of no other
        file.seek(data)
    except OSError as error:  # among them those of files in a bucket, which have no descriptor
        if error.errno == errno.ENXIO:  # there is none
            file.seek(0, os.SEEK_END)


def numbers(path: Path, note: Note = warnings.warn) -> Iterator[dict[str, Any]]:
    """The numbers of the rows of `read` that are of a step; a file of others may hold anything.

    None stands for what is not finite.
    """
    for json_object in read(path, note):
        row = {name: value for name, value in json_object.items() if is_number(value)}
        if type(row.get("step")) is int:
            yield row


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number that a float holds, nan and infinities among them."""
    if isinstance(value, int):
        return abs(value) < sys.float_info.max
    return value is None or isinstance(value, float)


def read_whole(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of which none may be missing.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line holds no object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, or no regular file")
    faults: list[str] = []
    rows = list(read(path, faults.append))
    if faults:
        raise ValueError(faults[0].removeprefix("WARNING: ").partition(";")[0])
    return rows


def row(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None if it holds none."""
    try:
        json_value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if line.count(b"[") + line.count(b"{") > json_file.DEEPEST and json_file.is_deep(json_value):
        return None
    return json_value if isinstance(json_value, dict) else None


def tell_missing(path: Path, present: Collection[int], due: range, name: str, note: Note) -> None:
    """Warn of rows that a file should hold, as a checkpoint says that they were written.

    Args:
      path: of the file.
      present: numbers of the rows that it holds.
      due: those that it should hold.
      name: what a number counts, such as "steps".
      note: called with the warning.
    """
    lost = [number for number in due if number not in present]
    if lost:
        note(f"WARNING: {path} lacks the rows of {name} {_spans(lost)}; the run continues without")


def _spans(numbers: Sequence[int]) -> str:
    """Ascending numbers, neighbours together: "1 to 7, 9"."""
    starts = [n for i, n in enumerate(numbers) if i == 0 or numbers[i - 1] != n - 1]
    ends = [n for i, n in enumerate(numbers) if i == len(numbers) - 1 or numbers[i + 1] != n + 1]
    pairs = list(zip(starts, ends, strict=True))
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in pairs[:_NAMED]]
    suffix = f" and {len(pairs) - _NAMED} more gaps" if len(pairs) > _NAMED else ""
    return ", ".join(texts) + suffix


def _lines_of(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} holds"
    first = ", ".join(map(str, numbers[:_NAMED]))
    suffix = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"lines {first}{suffix} hold"


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

        Rows that `keep` finds no number in, or not the names that it looks for, are dropped and
        counted in a note.

        With `sync`, rows are on the disk when `add` returns; without it, a power failure loses the
        last of them.
        """
        self._path, self._note, self._sync = path, note, sync
        self._waiting = _lines(_chosen(path, note, keep)).encode()
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


def _chosen(
    path: Path, note: Note, keep: Callable[[dict[str, Any]], bool]
) -> Iterator[dict[str, Any]]:
    odd = 0
    for entry in read(path, note):
        try:
            chosen = keep(entry)
        except (KeyError, TypeError):
            chosen, odd = False, odd + 1
        if chosen:
            yield entry
    if odd:
        note(f"WARNING: {path}: rows without a proper number are left out: {odd}")


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class StepLog:
    """Rows of steps; a step that is done again replaces its rows and those after it."""

    def __init__(self, path: Path, note: Callable[[str], None], *, sync: bool = True) -> None:
        """Args: the file, a function that is called with failures to write, and see
        `Log`."""
        self._path, self._note, self._sync, self._next = path, note, sync, -1
        self._log: Log | None = None

    def begin(self, step: int) -> None:
        """Begin a step; rows of it and of later ones are dropped."""
        if distributed.first() and step != self._next:
            self._log = Log(self._path, self._note, lambda row: row["step"] < step, sync=self._sync)
        self._next = step + 1

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows."""
        if self._log is not None:
            self._log.add(*rows)
