"""Running programs that nobody has read: no network, no way to write, hard limits, a certain end.

Two isolations, chosen once by `check`:

- `bubblewrap`: namespaces of its own for processes, network, mounts and users. The program sees
  system libraries and the interpreter read-only, a scratch directory in memory, and no process but
  its own; when it ends or overruns, the kernel kills everything in its process namespace.
- `rlimits`, where bubblewrap is not installed or not permitted: limits of CPU, memory, file size,
  processes and time, a clean environment, another user if this process is root, and a kill of all
  descendants. **It has the network, and can read and write what its user can.** Use it for
  programs you would run yourself.

Neither bounds the memory of all its processes together: the bound is memory_mb x processes. Both
need Linux.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from data import processes

_CHILD, _CHILD_INSIDE = Path(__file__).with_name("sandbox_child.py"), "/limit.py"
_USERS = range(20_000, 60_000)  # ids that nobody has, and that a container's map still holds
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a program may use."""

    wall_s: float = 5.0
    cpu_s: int = 5
    """Of each process."""
    memory_mb: int = 512
    """Address space of each process."""
    file_mb: int = 16
    """Each file; with bubblewrap, also the whole scratch directory."""
    processes: int = 16
    """At once, threads included; all of the user's, unless isolated or a user of its own."""
    output_kb: int = 256
    """Standard output, and standard error; a program that writes more is killed."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended and what it wrote."""

    end: Literal["exit", "timeout", "output"]
    """By itself, or killed for its time or for its output."""
    status: int
    """Exit status, 128 + n if signal n ended it; 137 if it was killed here."""
    stdout: str
    stderr: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Isolation:
    """A way to run programs."""

    kind: Literal["bubblewrap", "rlimits"]
    own_user: bool
    """Each program runs as a user that nothing else runs as; needs root."""

    def __str__(self) -> str:
        who = "as a user of its own" if self.own_user else "as this user"
        if self.kind == "bubblewrap":
            return f"sandbox: bubblewrap, {who}: no network, read-only files, own processes"
        return (
            f"sandbox: resource limits only, {who}: programs HAVE the network and this machine's "
            "files; install bubblewrap and allow user namespaces for isolation"
        )


@functools.cache
def check() -> Isolation:
    """The strongest isolation that works on this machine, found by trying. Print it at start.

    Raises:
      RuntimeError: not even a limited program runs here.
    """
    users = [True, False] if os.geteuid() == 0 else [False]
    kinds = ["bubblewrap", "rlimits"] if shutil.which("bwrap") else ["rlimits"]
    failures = []
    for isolation in (Isolation(kind, own) for kind in kinds for own in users):
        try:
            outcome = run([sys.executable, "-I", "-c", "print(6*7)"], isolation=isolation)
        except OSError as error:
            failures.append(f"{isolation}: {error}")
            continue
        if outcome.stdout == "42\n":
            return isolation
        failures.append(f"{isolation}: {outcome}")
    raise RuntimeError("no sandbox works here: " + "; ".join(failures))


def run(
    program: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    stdin: str = "",
    limits: Limits = Limits(),
    isolation: Isolation | None = None,
) -> Outcome:
    """Run a program in a fresh scratch directory and wait for its end.

    Args:
      program: absolute path of an executable, and arguments; relative file names among these are
        in the scratch directory.
      files: contents of the scratch directory by relative path.
      stdin: standard input.
      limits: see `Limits`.
      isolation: None takes what `check` found.

    Raises:
      ValueError: a program or file name that is not as above.
    """
    if not program or not os.path.isabs(program[0]):
        raise ValueError(f"program={list(program)!r}: give the executable's absolute path")
    for name in files or {}:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"files[{name!r}]: must be relative, without '..'")
    isolation = isolation or check()
    with tempfile.TemporaryDirectory(prefix="scratch-") as scratch, tempfile.TemporaryFile() as fed:
        fed.write(stdin.encode())
        fed.seek(0)
        user = _USERS[next(_COUNT) % len(_USERS)] if isolation.own_user else 0
        _write(Path(scratch), files or {}, user)
        bubble = isolation.kind == "bubblewrap"
        command = _child("exec" if bubble else "supervise", user, limits, program)
        start = time.monotonic()
        process = subprocess.Popen(
            _bubble(scratch, limits, user, command) if bubble else command,
            stdin=fed,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=scratch,
            env=_ENVIRONMENT | {"HOME": "/scratch" if bubble else scratch},
            start_new_session=True,
        )
        try:
            end, out, err = _watch(process, limits, start)
        finally:
            processes.kill_tree(process.pid)
            process.wait()
        status = 137 if end != "exit" else process.returncode
        status = 128 - status if status < 0 else status
        return Outcome(end, status, out, err, time.monotonic() - start)


_COUNT = itertools.count(os.getpid() * 101)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def _child(mode: str, user: int, limits: Limits, program: Sequence[str]) -> list[str]:
    numbers = (user, limits.cpu_s, limits.memory_mb, limits.file_mb, limits.processes)
    path = _CHILD_INSIDE if mode == "exec" else str(_CHILD)
    child = [sys.executable, "-I", "-S", path, mode, *map(str, numbers)]
    return [*child, *program]


def _bubble(scratch: str, limits: Limits, user: int, command: list[str]) -> list[str]:
    """The command in namespaces of its own; the scratch files are copied to memory."""
    wrapped = [
        shutil.which("bwrap") or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net",
        "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent",
        "--new-session", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev",
    ]  # fmt: skip
    if user:  # the child changes user; in a user namespace of root's, no process limit would hold
        wrapped += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        wrapped += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    wrapped += ["--perms", "0755", "--dir", "/etc"]
    for path in _SYSTEM:
        if os.path.islink(path):
            wrapped += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            wrapped += ["--ro-bind", path, path]
    for path in sorted({sys.base_prefix, sys.prefix}):
        if not path.startswith("/usr/"):
            for parent in reversed(Path(path).parents[:-1]):  # else made readable by root alone
                wrapped += ["--perms", "0755", "--dir", str(parent)]
            wrapped += ["--ro-bind", path, path]
    wrapped += ["--ro-bind", str(_CHILD), _CHILD_INSIDE]
    wrapped += ["--perms", "0777", "--size", str(limits.file_mb << 20), "--tmpfs", "/scratch"]
    for path in sorted(Path(scratch).rglob("*")):
        inside = f"/scratch/{path.relative_to(scratch)}"
        wrapped += (
            ["--perms", "0755", "--dir", inside]
            if path.is_dir()
            else ["--ro-bind", str(path), inside]
        )
    wrapped += ["--remount-ro", "/", "--remount-ro", "/dev"]  # no other place to fill with data
    return [*wrapped, "--chdir", "/scratch", "--", *command]


def _write(scratch: Path, files: Mapping[str, str], user: int) -> None:
    for name, content in files.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    if user:
        for path in (scratch, *scratch.rglob("*")):
            os.chown(path, user, user)


def _watch(
    process: subprocess.Popen[bytes], limits: Limits, start: float
) -> tuple[Literal["exit", "timeout", "output"], str, str]:
    """Read what the program writes until it ends or oversteps."""
    written: dict[IO[bytes], bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    end: Literal["exit", "timeout", "output"] | None = None
    pidfd = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            for stream in written:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while end is None:
                ready = selector.select(max(0.0, start + limits.wall_s - time.monotonic()))
                for key, _ in ready:
                    if key.fileobj in written and not _read(key.fileobj, written[key.fileobj]):
                        selector.unregister(key.fileobj)
                    elif key.fileobj == pidfd:
                        end = "exit"
                if any(len(text) > limits.output_kb << 10 for text in written.values()):
                    end = "output"
                elif time.monotonic() - start >= limits.wall_s and end is None:
                    end = "timeout"
        if end == "exit":
            for stream, text in written.items():
                while len(text) <= limits.output_kb << 10 and _read(stream, text):
                    pass
    finally:
        os.close(pidfd)
    texts = [bytes(t[: limits.output_kb << 10]).decode(errors="replace") for t in written.values()]
    for stream in written:
        stream.close()
    return end, *texts


def _read(stream: IO[bytes], into: bytearray) -> bool:
    """Take what is there; False at the end, or when nothing is there."""
    try:
        chunk = os.read(stream.fileno(), 1 << 16)
    except BlockingIOError:
        return False
    into += chunk
    return bool(chunk)
