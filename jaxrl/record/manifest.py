"""The manifest of saved files: the size and SHA-256 of each, written last and checked before use.

The manifest is the commit. A directory without one is an incomplete save, and one whose files
disagree with it is damaged. Neither Orbax nor TensorStore would notice: the values of arrays have
no checksum there, and a flipped bit is read as another number.

Files are hashed in pieces of 64 MiB, several at a time. With several processes, each syncs and
hashes the files that it wrote, and checks a share of them before they are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from time import time
from typing import Any

import jax

from jaxrl import json_file
from jaxrl.mesh import distributed
from jaxrl.record import storage
from jaxrl.record.storage import write_json

SCHEMA = 2
"""Version of the layout; raised when an older reader would misread what is written."""

NAME, PINNED = "manifest.json", "pinned"
"""The manifest, and the mark of a checkpoint that retention leaves alone."""

_PIECE = 64 << 20
_READ = 1 << 20

Measured = dict[str, dict[str, Any]]
"""Of files by name: `bytes`, and `sha256`, a list with the digest of each piece."""


def measure(saved: Path) -> Measured:
    """Sync and hash what this process has written in `saved`, by Orbax's names of files.

    Raises:
      OSError: storage fails; what may not have reached the disk must not be committed.
    """
    count, me = jax.process_count(), jax.process_index()
    names = (str(file.relative_to(saved)) for file in files(saved))
    sizes = {n: storage.size(saved / n) for n in names if _writer(n) % count == me}
    with _pool() as pool:
        pieces = {
            name: [
                pool.submit(_sha256, saved / name, start, _PIECE)
                for start in range(0, max(size, 1), _PIECE)
            ]
            for name, size in sizes.items()
        }
        try:
            for name in sizes:
                storage.sync(saved / name)
            return {
                name: {"bytes": size, "sha256": [piece.result() for piece in pieces[name]]}
                for name, size in sizes.items()
            }
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def joined(parts: Iterable[Measured | str]) -> Measured:
    """The measurements of all processes, ordered by name.

    Raises:
      OSError: a process has failed, and says why.
    """
    every: Measured = {}
    for process, part in enumerate(parts):
        if isinstance(part, str):
            raise OSError(f"process {process}: {part}")
        every |= part
    return dict(sorted(every.items()))


def commit(saved: Path, measurements: Measured, facts: Mapping[str, Any]) -> None:
    """Write the manifest. Only process 0 calls, once all processes have measured.

    Args:
      saved: the directory.
      measurements: from `measure`, of all processes.
      facts: kept beside.
    """
    body = {"schema": SCHEMA, "time": time(), "files": measurements, **facts}
    write_json(saved / NAME, {"sha256": digest(body), "body": body})
    for path in (saved / NAME, saved, saved.parent):
        storage.sync(path)


def faults(saved: Path) -> list[str]:
    """What is wrong with the files of `saved`, in words; empty if they are as they were written.

    All processes must call; each reads a share of the files.

    Raises:
      ValueError: it was written by a newer version, with a layout that this one cannot read.
    """
    try:
        body = distributed.by_first(read)(saved)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{NAME}: {error}"]
    if odd := distributed.by_first(storage.odd_entry)(saved, links=False):
        return [odd]  # a manifest of others need not list what Orbax opens
    if body["schema"] > SCHEMA:
        raise ValueError(
            f"{saved} has schema {body['schema']}, and this version reads up to {SCHEMA}; "
            "continue with the version that wrote it"
        )
    pieces = [
        (name, piece)
        for name, file in sorted(body["files"].items())
        for piece in range(len(_digests(file)))
    ]
    local_faults = _faults(saved, body["files"], pieces[jax.process_index() :: jax.process_count()])
    faults_by_file = {
        name: fault for part in distributed.gathered(local_faults) for name, fault in part.items()
    }
    return [f"{name}: {faults_by_file[name]}" for name in sorted(faults_by_file)]


def _digests(file: Mapping[str, Any]) -> list[str]:
    """Of the pieces of a file; schema 1 hashed files whole."""
    return [file["sha256"]] if isinstance(file["sha256"], str) else file["sha256"]


def _pieces(file: Mapping[str, Any]) -> int:
    """The number of digests that a file of its size has."""
    return 1 if isinstance(file["sha256"], str) else max(1, -(-file["bytes"] // _PIECE))


def _faults(saved: Path, files: Measured, pieces: Iterable[tuple[str, int]]) -> dict[str, str]:
    """What is wrong with some pieces, by the name of the file."""
    faults_by_file, complete_pieces = {}, []
    for name, piece in pieces:
        expected_size = files[name]["bytes"]
        if not (saved / name).is_file():
            faults_by_file[name] = "missing"
        elif (size := storage.size(saved / name)) != expected_size:
            faults_by_file[name] = f"{size} bytes, not {expected_size}"
        else:
            length = expected_size if isinstance(files[name]["sha256"], str) else _PIECE
            complete_pieces.append((name, piece, length))
    with _pool() as pool:
        hashed = [
            pool.submit(_sha256, saved / n, i * length, length) for n, i, length in complete_pieces
        ]
        for (name, piece, _), digest_found in zip(complete_pieces, hashed, strict=True):
            if digest_found.result() != _digests(files[name])[piece]:
                faults_by_file[name] = "its SHA-256 is not the one written"
    return faults_by_file


def read(saved: Path) -> dict[str, Any]:
    """The content of the manifest of `saved`.

    Raises:
      ValueError, KeyError, TypeError, AttributeError: it is damaged.
    """
    manifest = json_file.read(saved / NAME)
    body = manifest["body"]
    if digest(body) != manifest["sha256"]:
        raise ValueError("its SHA-256 is not the one written")
    if type(body["schema"]) is not int:
        raise ValueError(f"schema={body['schema']!r} is no number")
    if body["schema"] > SCHEMA:  # of a newer version, which may list its files in another way
        return body
    for name, file in body["files"].items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"it lists {name!r}, which is not within the checkpoint")
        if type(file["bytes"]) is not int or not all(type(d) is str for d in _digests(file)):
            raise ValueError(f"what it has of {name!r} is no size and no list of digests")
        if file["bytes"] < 0 or len(_digests(file)) != _pieces(file):
            count = len(_digests(file))
            raise ValueError(f"{name!r} of {file['bytes']} bytes cannot have {count} digests")
    return body


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest's own content."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def files(saved: Path) -> list[Path]:
    """The files that a manifest lists."""
    return [file for file in storage.files(saved) if file.name not in (NAME, PINNED)]


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1))  # hashing releases the GIL


def _sha256(path: Path, start: int, length: int) -> str:
    hasher, left = hashlib.sha256(), length
    with path.open("rb") as stream:
        stream.seek(start)
        while left and (piece := stream.read(min(_READ, left))):
            hasher.update(piece)
            left -= len(piece)
    return hasher.hexdigest()


def _writer(name: str) -> int:
    """The process that wrote a file of Orbax's; process 0 wrote what names none."""
    match = re.search(r"(?:^|[./])process_(\d+)(?:/|$)", name)
    return int(match[1]) if match else 0
