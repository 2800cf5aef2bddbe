"""Runs a program, limits its memory and the lines that it writes, and ends all that it has started
once it ends, or whoever asked for it does.

Run by path with `python -I -S`, and imports nothing of ours. Standard streams are the program's.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

_LAST_WORDS_S = 5.0
"""Limit of passing on what an ended program has written."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def end(group: int) -> None:
    """Kill a process group and, where /proc is there, every other descendant of this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    children = True
    while children:  # what is killed may have left children behind, which are then ours
        children = [
            int(child)
            for listing in Path("/proc/self/task").glob("*/children")
            for child in listing.read_text().split()
        ]
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def limit(memory_mb: int) -> None:
    """Limit what this process, and each that it will start, may write to (Linux)."""
    most, hard = memory_mb << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def begin(memory_mb: int) -> None:
    """What a program's process does first. It may kill this one, and ends with it then."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limit(memory_mb)


def opened(pipe: str) -> int:
    """The descriptor of a pipe, which is its number or, where the pipe has a name, its path."""
    if pipe.isdecimal():
        return int(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # its other end may be closed already
    os.set_blocking(descriptor, True)
    return descriptor


def watch(lifeline: int, group: int) -> None:
    """End all when the other end of a pipe is closed, by the end of its process at the latest."""
    os.read(lifeline, 1)
    stop(group)


def stop(group: int) -> None:
    """End all, this process too."""
    end(group)
    os._exit(1)


def pass_on(output: int, longest: int, group: int) -> None:
    """Write to standard output what a program writes, and end all where a line is too long.

    Whoever reads lines would keep such a line in memory until it ends.
    """
    line = 0
    while part := os.read(output, 1 << 16):
        first, last = part.find(b"\n"), part.rfind(b"\n")
        if line + (len(part) if first < 0 else first) > longest:
            stop(group)
        line = line + len(part) if last < 0 else len(part) - 1 - last
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


def main() -> None:
    """Arguments: the pipe, see `opened`, the program's memory in MB, the bytes of its longest line
    (0: of any length, and its standard output is this process's own), and the command."""
    lifeline, memory_mb, longest = opened(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    program = subprocess.Popen(
        sys.argv[4:],
        stdout=subprocess.PIPE if longest else None,
        start_new_session=True,
        preexec_fn=lambda: begin(memory_mb),  # no thread runs here yet
    )
    signal.signal(signal.SIGTERM, lambda *_: stop(program.pid))
    threading.Thread(target=watch, args=(lifeline, program.pid), daemon=True).start()
    if program.stdout is not None:
        output = (program.stdout.fileno(), longest, program.pid)
        writer = threading.Thread(target=pass_on, args=output, daemon=True)
        writer.start()
    status = program.wait()
    end(program.pid)
    if program.stdout is not None:
        writer.join(_LAST_WORDS_S)
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
