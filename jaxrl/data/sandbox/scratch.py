"""Scratch directories that do not outlive their process for long, however it ends.

Each is locked by the process that made it. The kernel releases the lock when that process ends, so
the next process of this kind can tell what was left behind, and removes it. A lock, unlike a
process id, means the same in every container that shares the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from jaxrl.data.sandbox import removal

_PREFIX, _NEW = "jaxrl-scoring-", "new-jaxrl-scoring-"


class Scratch:
    """A new directory for temporary files, locked until `cleanup`."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix=_NEW)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.name = str(Path(folder).with_name(_PREFIX + Path(folder).name.removeprefix(_NEW)))
        os.rename(folder, self.name)  # only now is it one that `sweep` looks at

    def cleanup(self) -> None:
        """Remove it, under whatever name a program has given to it."""
        lock, self._lock = self._lock, -1
        if lock < 0:  # a second time; the number may be another file's by now
            return
        with contextlib.suppress(OSError):
            removal.empty(lock)
            os.rmdir(os.readlink(f"/proc/self/fd/{lock}"))
        removal.remove(self.name)
        os.close(lock)


def sweep() -> None:
    """Remove the directories of this user whose processes have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(Exception):  # locked by a living process, or gone already
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    removal.remove(path)
            finally:
                os.close(fd)
