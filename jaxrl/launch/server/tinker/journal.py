"""The journal of a service: one JSON object a line, each on the disk before it counts."""

from __future__ import annotations

import base64
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jaxrl.record import jsonl

JOURNAL = "journal.jsonl"
FRESH = "journal.new"
"""A journal that is being written; what a kill left of it means nothing."""


@dataclasses.dataclass
class Journal:
    """An open journal, which no other process can open meanwhile."""

    file: IO[bytes]
    size: int
    """Bytes of whole lines; what is beyond was cut short."""


def open_journal(directory: Path, header: dict[str, Any]) -> Journal:
    """Open the journal of a run directory, or begin it.

    Args:
      directory: made where it is missing, for this account alone.
      header: what must be the same as long as the journal is continued.

    Raises:
      ValueError: it is of another header, damaged, or in use.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / JOURNAL
    file = open_locked(path)
    (directory / FRESH).unlink(missing_ok=True)
    journal = Journal(file, 0)
    first = next(rows(journal), None)
    if first is None:
        append(journal, header)
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    elif first[1] != header:
        different = sorted(k for k in {*header, *first[1]} if header.get(k) != first[1].get(k))
        raise ValueError(
            f"{path} was begun with other settings: "
            + ", ".join(f"{k}={first[1].get(k)!r}, now {header.get(k)!r}" for k in different)
            + "; start with those, or name another --run-dir"
        )
    return journal


def open_locked(path: Path) -> IO[bytes]:
    """A file that no other process can open so, for reading and writing; made where it is missing.

    Raises:
      ValueError: it is in use.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise OSError("another file was renamed to it meanwhile")
    except OSError as error:
        file.close()
        raise ValueError(f"{path} is in use by another server; end it, or name another") from error
    return file


def rows(journal: Journal) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows in order, each with the place that `read` takes; an incomplete last line is none.

    Raises:
      ValueError: a line before the last holds no object.
    """
    place = 0
    journal.file.seek(0)
    while (line := journal.file.readline()).endswith(b"\n"):
        row = jsonl.row(line)
        if row is None:
            raise ValueError(f"{journal.file.name}: the line at byte {place} holds no JSON object")
        start_of_line, place = place, place + len(line)
        journal.size = place
        yield start_of_line, row
        journal.file.seek(place)


def append(journal: Journal, row: dict[str, Any], *, sync: bool = True) -> int:
    """Append a row, and with `sync` return once it is on the disk; its place.

    Raises:
      OSError: storage fails; the row is then not in the journal.
    """
    line, place = json.dumps(row).encode() + b"\n", journal.size
    journal.file.seek(place)
    journal.file.truncate()  # of a line that was cut short
    journal.file.write(line)
    journal.file.flush()
    if sync:
        os.fsync(journal.file.fileno())
    journal.size += len(line)
    return place


def read(journal: Journal, place: int) -> dict[str, Any]:
    """The row at a place."""
    journal.file.seek(place)
    row = jsonl.row(journal.file.readline())
    assert row is not None
    return row


def to_text(raw: bytes) -> str:
    """Bytes in a row."""
    return base64.b64encode(raw).decode()


def from_text(text: str) -> bytes:
    """The bytes that `to_text` wrote."""
    return base64.b64decode(text)


def sync(journal: Journal) -> None:
    """Return once all rows are on the disk."""
    os.fsync(journal.file.fileno())
