"""Ending a process for certain, with all that it started; and what is said of a failure in one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_LONGEST = 5000
"""Characters of an error, which may quote what caused it."""


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all its descendants, also those in sessions of their own.

    Each is stopped before its children are listed, so that none is born unseen. Where /proc is
    missing, only the process and its group are killed. Processes already gone are no error.
    """
    pids = [pid]
    for parent in pids:  # grows as it is walked
        _signal(parent, signal.SIGSTOP)
        pids.extend(_children(parent))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # no such group unless the process leads one
    for process_id in pids:
        _signal(process_id, signal.SIGKILL)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hide() -> None:
    """Keep this process's memory and environment from other processes of its user (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def failure(error: BaseException) -> str:
    """An exception of a user's code as an error, `kind: explanation`, of `_LONGEST` at most."""
    if isinstance(error, MemoryError):
        return "memory: there is no more for this process; it may leak, or score_memory_mb is low"
    return f"exception: {type(error).__name__}: {error}"[:_LONGEST]


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for listing in Path(f"/proc/{pid}/task").glob("*/children"):
            children.extend(map(int, listing.read_text().split()))
    return children


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
