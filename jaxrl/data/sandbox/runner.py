"""Running programs that are not trusted: no network, no way to write, hard limits, a certain end.

Two isolations:

- `bubblewrap`: namespaces of its own for processes, network, mounts, System V objects and users.
  The program sees system libraries and the interpreter read-only, a scratch directory in memory,
  and no process but its own; when it ends or overruns, the kernel kills everything in its process
  namespace. It can make no further namespace.
- `rlimits`, where bubblewrap is not installed or not permitted: limits of CPU, memory, file size,
  processes and time, a clean environment, another user if this process is root, and a kill of all
  descendants. **It has the network, and can read and write what its user can.** It is refused
  unless the caller allows it; allow it for programs you would run yourself.

In both, a filter of system calls (`jaxrl.data.sandbox.seccomp`) refuses memory that no limit
counts. So memory is bounded by processes x (memory_mb + about 60 MB of pipes and sockets), and with
bubblewrap file_mb for files, 4096 at most. Where control groups can be made
(`jaxrl.data.sandbox.cgroups`), all processes and files of a sandbox together have memory_mb +
file_mb + 64 MB. Both need Linux.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from jaxrl.data.sandbox import bubblewrap, cgroups, processes, removal, seccomp

ALLOW_WEAK = "JAXRL_ALLOW_WEAK_SANDBOX"
"""Environment variable that allows `rlimits`, for calls that name no isolation, if it is 1."""

ALIKE = ("-s", "-P", "-S")
"""Options of a Python whose runs in the sandbox are to be alike: as `-I -S`, but it obeys the fixed
PYTHONHASHSEED there."""

_OWN_MB, _OWN_PROCESSES = 64, 8  # what bubblewrap and the supervisor take of a control group
START_S = 20.0
"""Beyond the program's own time, how long the sandbox may take."""

_USERS = range(20_000, 60_000)  # ids of no user, and that a container's map still holds


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
    """At once, threads included. The kernel holds root to no such limit."""
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
    group: str = ""
    """The control group in which each sandbox gets one of its own; empty: none."""

    def __str__(self) -> str:
        who = "as a user of its own" if self.own_user else "as this user"
        limit = f"memory limited {'as a whole' if self.group else 'by process (no control group)'}"
        if self.kind == "bubblewrap":
            return (
                f"sandbox: bubblewrap, {who}: no network, read-only files, own processes, {limit}"
            )
        return (
            f"sandbox: resource limits only, {who}, {limit}: programs HAVE the network and this "
            "machine's files; install bubblewrap and allow user namespaces for isolation"
        )


class StartError(RuntimeError):
    """A program could not be started, which says nothing about the program."""


class Unavailable(RuntimeError):
    """This machine has no sandbox, or only one that is not allowed."""


def check(allow_weak: bool = False) -> Isolation:
    """The isolation that programs get on this machine. Print it at start.

    Args:
      allow_weak: take resource limits alone where bubblewrap does not work, here and in later calls
        of this process.

    Raises:
      Unavailable: there is only that and it is not allowed, or nothing works here.
    """
    isolation = strongest()
    if isolation.kind == "rlimits" and not (allow_weak or os.environ.get(ALLOW_WEAK) == "1"):
        raise Unavailable(
            "sandbox.allow_weak=False: bubblewrap does not work here, and without it programs have "
            "the network and this machine's files. Install bubblewrap and allow user namespaces, "
            "or accept that with --sandbox.allow-weak (of `jaxrl eval` and `jaxrl sample`: "
            f"--allow-weak) or {ALLOW_WEAK}=1"
        )
    if isolation.kind == "rlimits":
        os.environ[ALLOW_WEAK] = "1"  # environments run programs in this process too
    return isolation


@functools.cache
def strongest() -> Isolation:
    """The strongest isolation that works on this machine, found by trying.

    Raises:
      Unavailable: not even a limited program runs here.
    """
    users = [True, False] if os.geteuid() == 0 else [False]
    kinds = ["bubblewrap", "rlimits"] if shutil.which("bwrap") else ["rlimits"]
    try:
        above = cgroups.parent()
        cgroups.sweep(above)
        groups = [str(above), ""]
    except RuntimeError:
        groups = [""]
    failures = []
    for isolation in (
        Isolation(k, own_user, at) for k in kinds for own_user in users for at in groups
    ):
        if isolation.kind == "rlimits" and not isolation.own_user and os.geteuid() == 0:
            failures.append(f"{sys.executable} as root: refused, as root is held to few limits")
            continue
        probe = f"{sys.executable} -I -c 'print(6*7)'; :"  # a shell that has to fork
        try:
            outcome = run(["/bin/sh", "-c", probe], isolation=isolation)
        except StartError as error:
            failures.append(f"{isolation}: {error}")
            continue
        if outcome.stdout == "42\n":
            return isolation
        failures.append(f"{isolation}: {outcome}")
    private = ", or use a Python that other users can read" if os.geteuid() == 0 else ""
    raise Unavailable(f"no sandbox works here; install bubblewrap{private}: " + "; ".join(failures))


def run(
    program: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    stdin: str = "",
    limits: Limits = Limits(),
    isolation: Isolation | None = None,
    given: Callable[[Path], None] | None = None,
    cancel: int | None = None,
    inet: bool = False,
) -> Outcome:
    """Run a program in a fresh scratch directory and wait for its end; see `run_each`."""
    return run_each(
        program, [stdin], files=files, limits=limits, isolation=isolation, given=given,
        cancel=cancel, inet=inet,
    )[0]  # fmt: skip


def run_each(
    program: Sequence[str],
    stdins: Sequence[str],
    *,
    prepare: Sequence[str] | None = None,
    files: Mapping[str, str] | None = None,
    limits: Limits = Limits(),
    isolation: Isolation | None = None,
    until_failure: bool = False,
    given: Callable[[Path], None] | None = None,
    cancel: int | None = None,
    inet: bool = False,
) -> list[Outcome]:
    """Run a program on each input, one after the other in one fresh scratch directory.

    All share a sandbox, as its start costs more than most programs; what a run leaves behind is
    killed before the next. A run sees no other run's input.

    Args:
      program: path of an executable, absolute or in the scratch directory (`./main`), and its
        arguments.
      stdins: standard input of each run.
      prepare: a command run first, such as a compiler; where it fails, its outcome is every run's.
      files: contents of the scratch directory by relative path.
      limits: of each run; see `Limits`.
      isolation: None takes what `check` gives.
      until_failure: stop after the first run that overran or had a status other than 0.
      given: called with the directory of the files before the start, to put there what is no text,
        such as a socket, which is the program's way out.
      cancel: descriptor of a pipe; once it has data or its other end is closed, all is killed.
      inet: allow sockets of the internet protocols, whose buffers no limit of a process counts; a
        program that asks a server on loopback needs them.

    Returns:
      The outcomes in order; fewer than inputs only with `until_failure`. Runs that `cancel` ended
      have status 137.

    Raises:
      ValueError: a program or file name that is not as above.
      StartError: the program could not be started, as when it was cancelled before that.
    """
    commands = [list(command) for command in (prepare, program) if command is not None]
    for command in commands:
        if not command or not (os.path.isabs(command[0]) or command[0].startswith("./")):
            raise ValueError(f"program={command!r}: give the executable's absolute path, or ./NAME")
    for name in files or {}:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"files[{name!r}]: must be relative, without '..'")
    isolation = isolation or check()
    bubble = isolation.kind == "bubblewrap"
    user = _USERS[next(_COUNT) % len(_USERS)] if isolation.own_user else 0
    spec = {
        **dataclasses.asdict(limits),
        "bubble": bubble,
        "user": user,
        "prefixes": sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix)}),
        "prepare": commands[:-1],
        "program": commands[-1],
        "stdins": list(stdins),
        "until_failure": until_failure,
        "filter": seccomp.program(inet=inet).hex(),
        "supervisor": seccomp.SUPERVISOR,
    }
    with (
        _scratch() as scratch,
        tempfile.TemporaryFile() as fed,
        _group(isolation, limits) as group,
    ):
        fed.write(json.dumps(spec).encode())
        fed.seek(0)
        _write(Path(scratch), files or {}, user)
        if given is not None:
            given(Path(scratch))
        runs = len(stdins) + len(commands) - 1
        supervisor = (
            bubblewrap.command(scratch, limits.file_mb, user)
            if bubble
            else [sys.executable, "-I", "-S", str(bubblewrap.CHILD)]
        )
        reported, errors = _supervised(
            cgroups.entering(group, supervisor) if group else supervisor,
            fed.fileno(),
            scratch,
            _ENVIRONMENT | {"HOME": "/scratch" if bubble else scratch},
            most=runs * ((limits.output_kb << 11) + (1 << 18)) + 1024,
            seconds=runs * limits.wall_s + START_S,
            cancel=cancel,
        )
    if not reported.startswith(b"ready\n"):
        raise StartError(f"the sandbox did not start: {errors.strip()[-500:] or 'no reason given'}")
    outcomes = _outcomes(reported.removeprefix(b"ready\n"))
    if prepare is not None and outcomes:
        prepared = outcomes.pop(0)
        if prepared.end != "exit" or prepared.status:
            return [prepared] * len(stdins)
    stopped = until_failure and any(o.end != "exit" or o.status for o in outcomes)
    lost = Outcome("exit", 137, "", "", 0.0)  # it ended its own supervisor
    return outcomes if stopped else outcomes + [lost] * (len(stdins) - len(outcomes))


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A new directory, which is removed in the end, whatever a program has made of it.

    It is in one of this process, so that a program of another user cannot rename or replace it.
    """
    outer = tempfile.mkdtemp(prefix="scratch-")
    os.chmod(outer, 0o711)  # for what knows the name within
    fd = os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        inner = os.path.join(outer, "files")
        os.mkdir(inner, 0o700)
        yield inner
    finally:
        with contextlib.suppress(OSError):
            removal.empty(fd)
            os.rmdir(os.readlink(f"/proc/self/fd/{fd}"))  # a program of this user can rename it
        os.close(fd)
        removal.remove(outer)


@contextlib.contextmanager
def _group(isolation: Isolation, limits: Limits) -> Iterator[Path | None]:
    """A control group for a sandbox; None where there are none.

    Raises:
      StartError: it could not be made.
    """
    if not isolation.group:
        yield None
        return
    above = Path(isolation.group)
    most = {
        "memory.max": (limits.memory_mb + limits.file_mb + _OWN_MB) << 20,
        "pids.max": limits.processes + _OWN_PROCESSES,
    }
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(cgroups.new_group(above, most))
        except OSError as error:
            raise StartError(f"no control group could be made in {above}: {error}") from error
        yield group


def _supervised(
    command: list[str], stdin: int, cwd: str, env: dict[str, str], *,
    most: int, seconds: float, cancel: int | None,
) -> tuple[bytes, str]:  # fmt: skip
    """What the supervisor reports and complains of, `most` bytes of it; in the end all is dead."""
    with tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=report,
                stderr=errors,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(f"{command[0]}: {error}") from error
        pidfd = os.pidfd_open(process.pid)
        poll = select.poll()  # `select` takes no descriptor above 1023
        for fd in (pidfd, cancel):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        try:
            poll.poll(seconds * 1000)
        finally:
            processes.kill_tree(process.pid)
            process.wait()
            os.close(pidfd)
        report.seek(0)
        errors.seek(0)
        return report.read(most), errors.read(1 << 16).decode(errors="replace")


def _outcomes(reported: bytes) -> list[Outcome]:
    """The runs that the supervisor reported whole."""
    outcomes: list[Outcome] = []
    while b"\n" in reported:
        line, _, reported = reported.partition(b"\n")
        head = json.loads(line)
        if "error" in head:
            raise StartError(head["error"])
        out, err = head.pop("sizes")
        if len(reported) < out + err:
            break
        texts = [t.decode(errors="replace") for t in (reported[:out], reported[out : out + err])]
        reported = reported[out + err :]
        outcomes.append(Outcome(head["end"], head["status"], *texts, head["seconds"]))
    return outcomes


_COUNT = itertools.count(os.getpid() * 101)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def _write(scratch: Path, files: Mapping[str, str], user: int) -> None:
    for name, content in files.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
    if user:
        for path in (scratch, *scratch.rglob("*")):
            os.chown(path, user, user)
