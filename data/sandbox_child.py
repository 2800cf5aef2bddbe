"""The first program inside a sandbox: sets the limits, then becomes the program to run.

Run by path with `python -I -S`, and imports nothing of ours, so that nothing of ours need be
readable in there.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def limit(user: int, cpu_s: int, memory_mb: int, file_mb: int, processes: int) -> None:
    """Lower the hard limits of this process and of all it will start; user 0 stays who it is."""
    for what, value in [
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_FSIZE, file_mb << 20),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ]:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if ctypes.CDLL(None).capset(version_3, (ctypes.c_uint32 * 6)()):  # the inheritable ones
            raise OSError("capset failed: capabilities could not be dropped")


def supervise(program: list[str], limits: list[int]) -> int:
    """Run the program, then kill whatever it left behind, also what detached itself.

    Returns:
      Its exit status, 128 + n for signal n.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans become our children
    child = os.fork()
    if not child:
        os.setsid()
        limit(*limits)
        os.execv(program[0], program)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            for listing in Path("/proc/self/task").glob("*/children"):
                for stray in map(int, listing.read_text().split()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(stray, signal.SIGKILL)
            os.waitpid(-1, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:7]
    arguments = sys.argv[7:]
    if mode == "supervise":
        sys.exit(supervise(arguments, list(map(int, numbers))))
    limit(*map(int, numbers))
    os.execv(arguments[0], arguments)
