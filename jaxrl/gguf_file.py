"""Opening a GGUF file of unknown origin, and a cache of what takes long to read.

The weights (`jaxrl.models.checkpoints.gguf`) and the vocabulary (`jaxrl.data.gguf.gguf_vocab`)
are in one file. This module imports nothing of jaxrl, so that both packages can use it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

LONGEST = 1 << 22
"""Array entries in a file's metadata, in all: several times those of any vocabulary."""


SMALLEST = 8 << 20
"""Bytes of a file from which on what is read from it is kept in the cache."""

CACHED_BYTES = 4 << 30
"""Of the cache in all; what has not been used for longest is removed first."""

_FORM = 1
"""Of the files in the cache; a change of what they hold changes it."""


class Header(NamedTuple):
    """A file without its weights."""

    fields: dict[str, Any]
    """Its metadata, as plain values."""
    tensors: dict[str, list[int]]
    """Shapes by name, in the order of the file: the fastest axis first."""


class Field(NamedTuple):
    """One entry of a file's metadata, to be written."""

    key: str
    value: Any
    kind: gguf.GGUFValueType
    inner: gguf.GGUFValueType | None = None
    """Of the entries of an array."""


class _Reader(gguf.GGUFReader):
    """Reads arrays of the metadata at once, and refuses lengths that the file cannot hold.

    The library reads an array entry by entry, which takes seconds for a vocabulary.
    """

    entries = 0

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = gguf.GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        length = int(self._get(orig_offs + 4, np.uint64)[0])
        self.entries += length
        if kind == gguf.GGUFValueType.ARRAY or self.entries > min(LONGEST, len(self.data)):
            raise ValueError(
                f"metadata at byte {orig_offs} is an array of {length} entries of type {kind}; "
                f"at most {LONGEST} entries that the file holds are read, and no arrays of "
                "arrays"
            )
        start = orig_offs + 12
        if kind == gguf.GGUFValueType.STRING:
            parts, end = self._strings(start, length)
        else:
            values = self._get(start, self.gguf_scalar_to_np[kind], length)
            parts, end = [values], start + values.nbytes
            if len(values) < length:
                raise ValueError(f"the file ends inside the array at byte {orig_offs}")
        types = [gguf.GGUFValueType.ARRAY, *([kind] if length else [])]
        return end - orig_offs, parts, list(range(len(parts))), types

    def _strings(self, start: int, count: int) -> tuple[list[np.ndarray], int]:
        """The bytes of consecutive strings, and where they end."""
        file_bytes, parts = np.asarray(self.data), list[np.ndarray]()
        size_of = struct.Struct("<Q" if self.endianess == gguf.GGUFEndian.LITTLE else ">Q")
        for _ in range(count):
            if start + 8 > len(file_bytes):
                raise ValueError(f"the file ends inside a string at byte {start}")
            (size,) = size_of.unpack_from(file_bytes, start)
            parts.append(file_bytes[start + 8 : start + 8 + size])
            if len(parts[-1]) < size:
                raise ValueError(f"the file ends inside a string at byte {start}")
            start += 8 + size
        return parts, start


@contextlib.contextmanager
def _sound(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a sound GGUF file: {error}") from error


def open_file(path: str | Path) -> gguf.GGUFReader:
    """A reader of a GGUF file.

    Raises:
      ValueError: the file is not sound.
    """
    with _sound(path):
        return _Reader(str(path))


def header(path: str | Path) -> Header:
    """Metadata and shapes of a GGUF file, from the cache where it holds them.

    Raises:
      ValueError: the file is not sound.
    """

    cache_file = cached(
        path,
        "header.json",
        lambda partial: partial.write_text(json.dumps(_header(path)), encoding="utf-8"),
    )
    return (
        _header(path)
        if cache_file is None
        else Header(*json.loads(cache_file.read_text(encoding="utf-8")))
    )


def _header(path: str | Path) -> Header:
    reader = open_file(path)
    with _sound(path):
        fields = {key: field.contents() for key, field in reader.fields.items()}
    return Header(fields, {tensor.name: tensor.shape.tolist() for tensor in reader.tensors})


def cached(path: str | Path, name: str, write: Callable[[Path], object]) -> Path | None:
    """A file of the cache that belongs to a GGUF file, made if it is not there.

    It is in `$XDG_CACHE_HOME/jaxrl/gguf` (by default `~/.cache/jaxrl/gguf`), named by the digest
    of the GGUF file's bytes, so a changed file never gets what belongs to another.

    Args:
      path: of the GGUF file.
      name: of the cached file.
      write: writes it to the path that it is given.

    Returns:
      The file, or None where the GGUF file is small or the cache cannot be written.

    Raises:
      ValueError: from `write`.
    """
    file_stat = Path(path).stat()
    if file_stat.st_size < SMALLEST:
        return None
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxrl" / "gguf"
    digest = _digest(str(Path(path).resolve()), file_stat.st_size, file_stat.st_mtime_ns)
    cache_file = root / f"{digest[:32]}-{_FORM}-{name}"
    partial = cache_file.with_name(f".{cache_file.name}.{os.getpid()}")
    try:
        if cache_file.exists():
            cache_file.touch()
            return cache_file
        root.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.rename(cache_file)
        _trim(root, cache_file)
    except OSError:  # a full disk, a directory without write access: the file itself is still there
        return None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return cache_file


@functools.lru_cache(maxsize=8)
def _digest(path: str, size: int, changed: int) -> str:
    """SHA-256 of a file; its size and time of change tell one state of it from another."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _trim(root: Path, newest: Path) -> None:
    """Remove what has not been used for longest until the rest fits."""
    left = CACHED_BYTES
    files = sorted(root.glob("[!.]*"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        left -= file.stat().st_size
        if left < 0 and file != newest:
            file.unlink(missing_ok=True)
