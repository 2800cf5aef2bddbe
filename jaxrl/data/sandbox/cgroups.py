"""Control groups of version 2: limits that hold for all processes of a sandbox together.

A group is made where memory and pids are already handed down to children and this user may write:
as root nearly everywhere, as an ordinary user in a session that systemd has delegated, such as one
of `systemd-run --user --scope`. Version 1 is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NEEDED = ("memory", "pids")
_PREFIX = "jaxrl-sandbox-"
_END_S = 5.0


def mounted(mounts: Path = Path("/proc/self/mounts")) -> Path:
    """Where control groups of version 2 are mounted.

    Raises:
      RuntimeError: nowhere.
    """
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    raise RuntimeError("control groups of version 2 are not mounted")


def parent(
    mounts: Path = Path("/proc/self/mounts"), membership: Path = Path("/proc/self/cgroup")
) -> Path:
    """The nearest group in which this process may make groups with limits: its own or one above.

    Args:
      mounts: the table of mounts.
      membership: the file that names the groups of this process.

    Raises:
      RuntimeError: there is none; the message says why.
    """
    root = mounted(mounts)
    lines = membership.read_text().splitlines()
    inside = [line[3:].strip("/") for line in lines if line.startswith("0::")]
    if not inside or ".." in inside[0].split("/"):
        raise RuntimeError(f"the control group of this process is not below {root}")
    own_group = root / inside[0]
    path = [own_group, *(above for above in own_group.parents if above.is_relative_to(root))]
    handed = [group for group in path if not _missing(group / "cgroup.subtree_control")]
    for group in handed:
        if all(os.access(place, os.W_OK) for place in (group, group / "cgroup.procs")):
            return group
    if handed:
        raise RuntimeError(f"{handed[0]} is not writable; start in `systemd-run --user --scope`")
    absent = _missing(root / "cgroup.controllers")
    if absent:
        raise RuntimeError(f"{root} has no {' and '.join(absent)}: version 1 may hold them")
    raise RuntimeError(f"no group from {own_group} up to {root} hands memory and pids down")


def _missing(listing: Path) -> list[str]:
    try:
        listed = listing.read_text().split()
    except OSError:
        listed = []
    return [name for name in NEEDED if name not in listed]


@contextlib.contextmanager
def new_group(inside: Path, limits: Mapping[str, int]) -> Iterator[Path]:
    """A new group; at the end, all processes in it are killed and it is removed.

    Args:
      inside: the group to make it in.
      limits: values by file, such as `{"pids.max": 8}`; a file that the kernel lacks is an error.

    Raises:
      OSError: the group could not be made, limited or emptied.
    """
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=inside))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # by which `sweep` knows it is in use
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, value in limits.items():
            _write(path / name, str(value))
        if (path / "memory.swap.max").exists():  # what is swapped out would be beyond the limit
            _write(path / "memory.swap.max", "0")
        yield path
    finally:
        try:
            _end(path)
        finally:
            os.close(lock)


def entering(group: Path, command: Sequence[str]) -> list[str]:
    """A command that is in the group before it starts the given one."""
    return ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group), *command]


def sweep(inside: Path) -> None:
    """Remove the groups that processes left behind which were killed."""
    for path in inside.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # locked by a living process, or gone already
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end(path)
            finally:
                os.close(lock)


def _end(path: Path) -> None:
    """Kill all in a group and remove it."""
    _write(path / "cgroup.kill", "1")
    last = time.monotonic() + _END_S
    while True:
        try:
            return path.rmdir()
        except OSError:  # busy until the last process is gone
            if time.monotonic() > last:
                raise
            time.sleep(0.002)


def _write(path: Path, value: str) -> None:
    """Write to a file of the kernel, which is never created."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)
