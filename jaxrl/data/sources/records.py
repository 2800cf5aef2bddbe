"""Records from files: JSONL, JSON, CSV, Parquet, Arrow, Hugging Face `datasets` on disk, and TFDS.

Each source is a random-access sequence of dicts, so that a position in it is one number.
"""

from __future__ import annotations

import array
import bisect
import collections
import contextlib
import csv
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jaxrl.data.sources import compressed, listed, shards
from jaxrl.data.sources.listed import OnBroken

Records = Sequence[Mapping[str, Any]]


def read(spec: str, skip: OnBroken | None = None) -> Records:
    """The records that `spec` names; `where` tells the place of each.

    Args:
      spec: a `.jsonl`, `.json`, `.csv` or `.tsv` file, which may be compressed (`.gz`, `.bz2`,
        `.xz`, `.zst`); a `.parquet` or `.arrow` file; a folder or a glob of these, see
        `jaxrl.data.sources.shards`; a directory written by `datasets.Dataset.save_to_disk`; or
        `tfds:NAME/SPLIT` with an optional `@DATA_DIR`. NAME is as TFDS has it, such as
        `mnist:3.0.1` or, for an RLDS set, its episodes as records.
      skip: called for each line or element that is no record, which is then left out. None: such
        a line raises.

    Raises:
      ValueError: none of these.
    """
    if spec.startswith("tfds:"):
        return tfds(spec.removeprefix("tfds:"))
    paths = shards.files(spec)
    if len(paths) == 1:
        return _file(paths[0], skip)
    if all(shards.suffix(path) in shards.TABLES for path in paths):
        return Table(paths)
    return Joined([_file(path, skip) for path in paths])


def where(records: Records, index: int, path: str) -> str:
    """The place of a record: its file, and its line or its number from 1.

    Args:
      records: from `read`.
      index: of the record.
      path: what was read, for records that do not know their file.
    """
    place = getattr(records, "where", None)
    return place(index) if place else f"{path}:{index + 1}"


def columns(records: Records) -> dict[str, bool]:
    """The names of all columns of the records, in order, and whether any value is not null."""
    if isinstance(records, Table):
        return records.columns()
    names: dict[str, bool] = {}
    for index in range(len(records)):
        for name, value in records[index].items():
            names[name] = names.get(name, False) or not is_missing(value)
    return names


def is_missing(value: Any) -> bool:
    """Whether a value is null, or NaN, as pandas writes what is missing."""
    return value is None or (isinstance(value, float) and value != value)


def _file(path: Path, skip: OnBroken | None) -> Records:
    """The records of one file."""
    shards.check(path)
    ending = shards.suffix(path)
    if ending in (".jsonl", ".ndjson") or (ending == ".json" and _in_lines(path)):
        return Jsonl(path, skip)
    if ending == ".json":
        return listed.elements(path, skip)
    return Table([path]) if ending in shards.TABLES else delimited(path)


def _in_lines(path: Path) -> bool:
    """Whether a `.json` file has an object on each line, as many data sets on the Hub have."""
    with compressed.opened(path) as file:
        head = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
        if not head.startswith(b"{"):
            return False
        file.seek(0)
        first = next(line for line in file if line.strip())
    try:
        json.loads(first.removeprefix(b"\xef\xbb\xbf"))
    except ValueError:
        return False
    return True


class Joined(Sequence[Mapping[str, Any]]):
    """The records of several files, one file after the other."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self._parts = parts
        self._starts = list(itertools.accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        part, place = self._place(index)
        return part[place]

    def where(self, index: int) -> str:
        """The place of a record."""
        part, place = self._place(index)
        return where(part, place, "")

    def _place(self, index: int) -> tuple[Records, int]:
        index = range(len(self))[index]
        number = bisect.bisect_right(self._starts, index) - 1
        return self._parts[number], index - self._starts[number]


LONGEST_LINE = 256 << 20
"""Bytes of the longest line of a `.jsonl` file that is read."""

_unchecked: ContextVar[bool] = ContextVar("unchecked", default=False)


@contextlib.contextmanager
def already_checked() -> Iterator[None]:
    """Files opened inside are not parsed whole: another process has done so."""
    token = _unchecked.set(True)
    try:
        yield
    finally:
        _unchecked.reset(token)


class Jsonl(Sequence[Mapping[str, Any]]):
    """Lines of JSON objects, found by their byte offsets and parsed when asked for.

    The whole file is read once when it is opened, a line at a time, so that a broken line is found
    then and not when its turn comes. Memory: the longest line, and 24 bytes a record. The file
    stays open, so it may be replaced by another; it must not be written to. It is not
    memory-mapped: a process that reads a map of a truncated file is killed.

    Args:
      path: of the file.
      skip: called with the place of a line that is no JSON object and the reason; the line is
        then left out. None: such a line raises.

    Attributes:
      lines: the number of each record's line, from 1.

    Raises:
      ValueError: a line that is no JSON object, or that is longer than `LONGEST_LINE`; a record
        of a file that has been written to since.
    """

    def __init__(self, path: Path, skip: OnBroken | None = None) -> None:
        self._path = path
        self._file = compressed.opened(path)
        self._written = self._last_write()
        self._starts, self._ends, self.lines = (array.array("Q") for _ in range(3))
        at = line_number = 0
        while line := self._file.readline(LONGEST_LINE + 1):
            number, line_number = len(self), line_number + 1
            if len(line) > LONGEST_LINE:
                raise ValueError(
                    f"{path}, record {number}: the line has more than {LONGEST_LINE} bytes; "
                    "write one object on each line"
                )
            if not line.isspace() and self._kept(line, number, line_number, skip):
                self._starts.append(at)
                self._ends.append(at + len(line))
                self.lines.append(line_number)
            at += len(line)

    def where(self, index: int) -> str:
        """The place of a record."""
        return f"{self._path}:{self.lines[index]}"

    def _kept(self, line: bytes, number: int, line_number: int, skip: OnBroken | None) -> bool:
        """Whether a line is a record, as far as that is to be checked."""
        if skip is None:
            if not _unchecked.get():
                self._object(line, number)
            return True
        try:
            record = _parsed(line)
            why = f"not JSON: {record!r:.60} is not a JSON object"
            why = "" if isinstance(record, dict) else why
        except UnicodeDecodeError as error:
            why = f"not UTF-8 ({error.reason}); save the file as UTF-8"
        except (ValueError, RecursionError) as error:
            why = f"not JSON: {error}"
        if why:
            skip(f"{self._path}:{line_number}", why)
        return not why

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        index = range(len(self))[index]
        start, end = self._starts[index], self._ends[index]
        line = os.pread(self._file.fileno(), end - start, start)
        if self._last_write() != self._written:
            raise ValueError(
                f"{self._path} has been written to since it was opened; write to another file and "
                "rename it, or start again"
            )
        return self._object(line, index)

    def _last_write(self) -> tuple[int, int]:
        facts = os.fstat(self._file.fileno())
        return facts.st_size, facts.st_mtime_ns

    def _object(self, line: bytes, index: int) -> Mapping[str, Any]:
        try:
            record = _parsed(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._path}, record {index}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{self._path}, record {index}: {record!r} is not a JSON object")
        return record


def _parsed(line: bytes) -> Any:
    return json.loads(line.removeprefix(b"\xef\xbb\xbf"))


class Table(Sequence[Mapping[str, Any]]):
    """Rows of Arrow tables, memory-mapped where the format allows."""

    def __init__(self, paths: Sequence[Path]) -> None:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet

        def load(path: Path) -> pyarrow.Table:
            if path.suffix == ".parquet":
                return pyarrow.parquet.read_table(path)
            source = pyarrow.memory_map(str(path))
            try:
                return pyarrow.ipc.open_stream(source).read_all()
            except pyarrow.ArrowInvalid:  # the form with a footer, as Feather is
                source.seek(0)
                return pyarrow.ipc.open_file(source).read_all()

        try:
            tables = [load(path) for path in paths]
            self._table = pyarrow.concat_tables(tables, promote_options="permissive")
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{paths[0]}: cannot be read as a table: {error}") from error
        self._paths = paths
        self._starts = list(itertools.accumulate((t.num_rows for t in tables), initial=0))

    def where(self, index: int) -> str:
        """The place of a record: its file, and its number there from 1."""
        number = bisect.bisect_right(self._starts, index) - 1
        return f"{self._paths[number]}:{index - self._starts[number] + 1}"

    def columns(self) -> dict[str, bool]:
        """The names of the columns, and whether any value is not null."""
        pairs = zip(self._table.column_names, self._table.columns, strict=True)
        return {name: column.null_count < len(column) for name, column in pairs}

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return self._table.slice(index % len(self), 1).to_pylist()[0]


def delimited(path: Path) -> Records:
    """The rows of a `.csv` or `.tsv` file, whose first line names the columns; values are texts.

    Raises:
      ValueError: a row of another length, or a text that is too long for the reader, with its line;
        or a file that is not UTF-8.
    """
    with io.TextIOWrapper(compressed.opened(path), newline="", encoding="utf-8-sig") as file:
        delimiter = "\t" if shards.suffix(path) == ".tsv" else ","
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        rows: list[Mapping[str, Any]] = []
        lines: list[int] = []
        try:
            with _long_cells():
                names = [name.strip() for name in next(reader, [])]
                counts = collections.Counter(filter(None, names))
                if twice := [name for name, count in counts.items() if count > 1]:
                    raise ValueError(f"{path}: two columns are named {twice[0]!r}; rename one")
                last = reader.line_num
                for row in reader:
                    first, last = last + 1, reader.line_num
                    if not row:
                        continue
                    if len(row) != len(names):
                        raise ValueError(
                            f"{path}, line {reader.line_num}: {len(row)} values for {len(names)} "
                            f"columns ({', '.join(names):.500})"
                        )
                    rows.append(dict(zip(names, row, strict=True)))
                    lines.append(first)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, after line {reader.line_num}: not UTF-8 ({error.reason}); save it as "
                "UTF-8"
            ) from error
    return listed.Listed(path, rows, lines)


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Cells of `.csv` files as long as lines of `.jsonl` files may be.

    The limit of the module, 131,072 characters, is one for the whole process, so it is put back.
    """
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def tfds(spec: str) -> Records:
    """A prepared TFDS data set as records, without TensorFlow where it is in array_record.

    Args:
      spec: `NAME/SPLIT`, or `NAME/SPLIT@DATA_DIR`.
    """
    import tensorflow_datasets

    name, _, directory = spec.partition("@")
    name, _, split = name.rpartition("/")
    if not name:
        raise ValueError(f"tfds:{spec}: name its split too, as in tfds:{spec}/train")
    return tensorflow_datasets.data_source(name, split=split, data_dir=directory or None)


def field(record: Mapping[str, Any], name: str, where: str) -> Any:
    """A field of a record; bytes, as TFDS has texts, are decoded.

    Raises:
      ValueError: it is missing; the message lists what is there. Or its bytes are not UTF-8.
    """
    if name not in record:
        raise ValueError(f"{where}: no field {name!r}; it has {', '.join(record)}")
    value = record[name]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{where}: {name}={value!r:.80} is not UTF-8; write it so") from None
