"""Paths of runs: local directories, or directories in a bucket (`gs://BUCKET/...`, by etils).

A path is a `pathlib.Path`, or `etils.epath`'s look-alike of one. Here is what the two do not share;
beside it, use what they do: `/`, `exists`, `is_dir`, `iterdir`, `glob` without `**`, `mkdir`,
`read_text`, `write_bytes`, `open` to read or to write, `unlink` and `rename`.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ANSWER_S = 60.0
"""Time that a bucket may take for an answer, in seconds."""


def locate(where: str | Path) -> Path:
    """The path that a string names, in this machine's files or in a bucket."""
    if "://" not in str(where):
        return Path(where)
    import fsspec
    from etils import epath

    # Orbax writes past fsspec, whose listings would not know of it.
    settings = {"use_listings_cache": False, "requests_timeout": ANSWER_S}
    fsspec.config.conf.setdefault("gcs", {}).update(settings)
    return epath.Path(where)


def remote(path: Path) -> bool:
    """Whether a path is in a bucket, where writes are atomic and nothing is synced.

    Empty directories do not exist there, and nothing can be appended to.
    """
    return not isinstance(path, Path)


def errors() -> tuple[type[Exception], ...]:
    """The errors that failing storage raises."""
    try:
        from aiohttp import ClientError
        from gcsfs.retry import HttpError
    except ImportError:
        return (OSError,)
    return OSError, HttpError, ClientError


def absolute(path: Path) -> Path:
    """The path from the root."""
    return path if remote(path) else path.absolute()


def write(path: Path, content: str | bytes) -> None:
    """Write whole or not at all; what is in the place of the file is not followed, but replaced."""
    fresh = path if remote(path) else path.with_suffix(".tmp")
    if fresh != path:
        fresh.unlink(missing_ok=True)  # a link would be followed, and a pipe waited for
    if isinstance(content, str):
        fresh.write_text(content)
    else:
        fresh.write_bytes(content)
    if fresh == path:
        return
    os.replace(fresh, path)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value whole or not at all, see `write`."""
    write(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def best_effort(what: str, note: Callable[[str], None]) -> Iterator[None]:
    """Report a storage error in the body and continue; for files that a run can do without."""
    try:
        yield
    except errors() as error:
        why = str(error) or repr(error)  # timeouts say nothing
        note(f"WARNING: {what} could not be written: {why}; the run continues")


def identity(directory: Path) -> tuple[int, int] | None:
    """What stays the same of a directory whatever its name is; None in a bucket, or without one."""
    if remote(directory) or not directory.is_dir():
        return None
    status = directory.stat()
    return status.st_dev, status.st_ino


def make_inside(folder: Path) -> None:
    """Make a folder within a directory that must be there: one that was renamed is not made anew.

    Raises:
      FileNotFoundError: it is not.
    """
    folder.mkdir(parents=remote(folder), exist_ok=True)


def entries(directory: Path) -> list[Path]:
    """The entries of a directory; none if it does not exist."""
    return sorted(directory.iterdir()) if directory.exists() else []


def files(directory: Path) -> list[Path]:
    """All files in a directory and in those beneath."""
    paths: list[Path] = []
    for entry in entries(directory):
        paths += files(entry) if entry.is_dir() else [entry]
    return sorted(paths)


_DIGITS = 18
"""Of a number in a name; no run makes so many steps."""

OUTSIDE = "outside"
"""How `odd_entry` ends where a link is odd, and nothing else."""


def odd_entry(directory: Path, *, links: bool, folders: bool = True) -> str:
    """What a directory holds that no run writes there, and how it is odd; empty: nothing.

    What is neither a file nor a folder is odd: a pipe would be waited for, and a device may have no
    end. So is a link to a folder outside the directory and, with `links`, one to a file there,
    which a run that is continued would overwrite. A bucket has neither.

    Args:
      directory: with all that is beneath it, but for the links that Weights & Biases makes.
      links: whether links to files outside are odd.
      folders: whether those to folders outside are.
    """
    if remote(directory):
        return ""
    root = Path(os.path.realpath(directory))
    for folder, inner, names in os.walk(root):
        for entry in (Path(folder, name) for name in sorted(inner + names)):
            place = entry.relative_to(root)
            if entry.is_symlink():
                target = Path(os.path.realpath(entry))
                if (
                    not target.is_relative_to(root)
                    and (folders if entry.is_dir() else links)
                    and (place.parts[0] != "wandb" or len(place.parts) < 3)
                ):
                    return f"{str(place)!r} is a link to {str(target)!r}, {OUTSIDE}"
            if not _is_file_or_folder(entry):
                return f"{str(place)!r} is neither a file nor a folder"
    return ""


def _is_file_or_folder(entry: Path) -> bool:
    """Asked once: another process may remove the entry, which then is not odd."""
    try:
        mode = entry.stat().st_mode
    except OSError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def number(name: str) -> int | None:
    """The number that a name is; None of one that no run writes, such as "x", "1²" or "-1"."""
    is_number = name.isascii() and name.isdecimal() and len(name) <= _DIGITS
    return int(name) if is_number else None


def size(file: Path) -> int:
    """Bytes of a file."""
    status = file.stat()
    return status.length if remote(file) else status.st_size


def remove(directory: Path) -> None:
    """Remove a directory with all that it holds, as far as that is possible."""
    if not remote(directory):
        shutil.rmtree(directory, ignore_errors=True)
    elif directory.exists():
        directory.rmtree()


def rename(directory: Path, target: Path) -> None:
    """Give a directory another name; in a bucket, by copying each of its files."""
    if not remote(directory):
        directory.rename(target)
        return
    for file in files(directory):
        copied = target / str(file.relative_to(directory))
        with file.open("rb") as source, copied.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    remove(directory)


def sync(path: Path) -> None:
    """Return once a file or directory is on the disk."""
    if remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
