"""Removal of directories that a program may have filled, whatever it has made of them.

`shutil.rmtree` goes down by recursion, and fails on a few thousand nested directories. Here each
directory within is moved to the top before it is emptied, so that depth costs no memory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str | Path) -> None:
    """Remove a directory, a link or a file; what cannot be removed stays, without an error."""
    with contextlib.suppress(OSError):
        if not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
            return
        top = os.open(path, _OPEN)
        try:
            empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


def empty(top: int) -> None:
    """Remove all that is in an open directory, as far as possible."""
    moved = secrets.token_hex(8)
    count = 0
    while True:
        before = count
        for name, directory in _entries(top):
            if not directory:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=top)
                    count += 1
                continue
            for inner in _opened(top, name):
                for below, nested in _entries(inner):
                    with contextlib.suppress(OSError):
                        if nested:
                            os.chmod(below, 0o700, dir_fd=inner)  # its link to above changes
                            target = f"{moved}-{count}"
                            os.rename(below, target, src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(below, dir_fd=inner)
                        count += 1
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=top)
                count += 1
        if count == before:
            return


def _entries(directory: int) -> list[tuple[str, bool]]:
    """Names in an open directory, and whether each is a directory itself."""
    try:
        with os.scandir(directory) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []


def _opened(top: int, name: str) -> Iterator[int]:
    """A directory, opened for the time of one step; none where it cannot be."""
    with contextlib.suppress(OSError):
        os.chmod(name, 0o700, dir_fd=top)
        inner = os.open(name, _OPEN, dir_fd=top)
        try:
            yield inner
        finally:
            os.close(inner)
