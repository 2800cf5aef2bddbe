"""The supervisor inside a sandbox: runs a program once for each input, and reports how it ended.

Run by path with `python -I -S`, and imports nothing of ours, so that nothing of ours need be
readable in there. It reads one JSON object from standard input (see `jaxrl.data.sandbox.runner`)
and writes to standard output the line `ready`, then for each run a line of JSON and the bytes the
program wrote. The program cannot signal the supervisor, and cannot read or write its memory.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_NEW_MOUNTS, _NOSUID_NODEV = 0x00020000, 6
_BIND, _PRIVATE = 0x1000 | 0x4000, 0x40000 | 0x4000  # with all mounts below
_FILE_NODES = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOT_RUNNABLE = {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ETXTBSY}


def main() -> None:
    """Set the sandbox up, then run the program on each input."""
    spec = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "wb")
    if spec["bubble"]:
        mount_scratch(spec)
        become(spec["user"])
        drop_capabilities()
        link_given()
    else:
        signal.signal(signal.SIGTERM, on_parent_exit)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if spec["user"]:
            open_interpreter([*spec["prefixes"], os.getcwd()])
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what detaches itself becomes our child, and is ended
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)  # after the change of user, which resets it
    report.write(b"ready\n")
    report.flush()
    for command, stdin in [(c, "") for c in spec["prepare"]] + [
        (spec["program"], text) for text in spec["stdins"]
    ]:
        try:
            end, status, out, err, seconds = run(spec, command, stdin.encode("utf-8", "replace"))
        except OSError as error:
            report.write(json.dumps({"error": str(error)}).encode() + b"\n")
            break
        head = {"end": end, "status": status, "seconds": seconds, "sizes": [len(out), len(err)]}
        report.write(json.dumps(head).encode() + b"\n" + out + err)
        report.flush()
        failed = end != "exit" or status != 0
        if failed and (spec["until_failure"] or command is not spec["program"]):
            break
    report.close()


def mount_scratch(spec: dict) -> None:
    """A scratch directory in memory that limits the number of files as well as their size.

    Where the kernel refuses the mount, bubblewrap's own stays, which limits the size alone.
    """
    if _LIBC.unshare(_NEW_MOUNTS) == 0:
        options = f"size={spec['file_mb'] << 20},nr_inodes={_FILE_NODES},mode=0777"
        _LIBC.mount(b"tmpfs", b"/scratch", b"tmpfs", _NOSUID_NODEV, options.encode())
    os.chdir("/scratch")


def open_interpreter(paths: list[str]) -> None:
    """Let other users reach paths in directories that are closed to them, such as root's home.

    In mounts of its own, each closed directory is replaced by an empty one that has these paths and
    nothing else. Where the kernel refuses that, the interpreter stays out of reach.
    """
    closed = {path: _closed(path) for path in paths}
    if not any(closed.values()) or _LIBC.unshare(_NEW_MOUNTS):
        return
    _LIBC.mount(b"none", b"/", None, _PRIVATE, None)
    fds = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in paths if closed[path]}
    for place in sorted(set(filter(None, closed.values()))):
        _LIBC.mount(b"tmpfs", place.encode(), b"tmpfs", _NOSUID_NODEV, b"mode=0755,size=1m")
    for path, fd in fds.items():
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)
            source = f"/proc/self/fd/{fd}".encode()
            _LIBC.mount(source, os.fsencode(path), None, _BIND, None)
        os.close(fd)
    os.chdir(paths[-1])


def _closed(path: str) -> str:
    """The topmost directory above a path that others may not search; empty: none."""
    above, parts = "", path.strip("/").split("/")
    for part in parts[:-1]:
        above += "/" + part
        if not os.stat(above).st_mode & 1:
            return above
    return ""


def link_given() -> None:
    """Links in the scratch directory to the files given, which are read-only."""
    for place, directories, files in os.walk("/given"):
        folder = os.path.relpath(place, "/given")
        for name in directories:
            os.mkdir(os.path.join(folder, name))
        for name in files:
            os.symlink(os.path.join(place, name), os.path.join(folder, name))


def become(user: int) -> None:
    """Change to a user that nothing else runs as; 0 stays who it is."""
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def drop_capabilities() -> None:
    """Give up every capability, and the way to get one."""
    _LIBC.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    for capability in range(64):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused beyond the last, or without
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if _LIBC.capset(version_3, (ctypes.c_uint32 * 6)()):
        raise OSError("capset failed: capabilities could not be dropped")


def run(spec: dict, command: list[str], stdin: bytes) -> tuple[str, int, bytes, bytes, float]:
    """One run: how it ended ("exit", "timeout", "output"), status, what it wrote, seconds.

    Raises:
      OSError: the program could not be started.
    """
    start = time.monotonic()
    out, err, failure = (os.pipe() for _ in range(3))
    fed = _sealed(stdin)
    child = os.fork()
    if not child:
        _start(spec, command, fed, out[1], err[1], failure[1])
    for fd in (fed, out[1], err[1], failure[1]):
        os.close(fd)
    try:
        refusal = os.read(failure[0], 4096)  # ends when the program has started
        if not refusal:
            end, texts = _watch(spec, child, (out[0], err[0]), start)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        end_strays(spec["bubble"])
        if refusal:
            number, _, text = refusal.decode().partition(" ")
            if int(number) in _NOT_RUNNABLE and not os.path.isabs(command[0]):
                return "exit", 127, b"", text.encode(), time.monotonic() - start
            raise OSError(int(number), text)
        most = spec["output_kb"] << 10
        for fd, text in zip((out[0], err[0]), texts, strict=True):
            while len(text) <= most and _take(fd, text):
                pass
    finally:
        for fd in (out[0], err[0], failure[0]):
            os.close(fd)
    code = os.waitstatus_to_exitcode(status)
    code = 137 if end != "exit" else 128 - code if code < 0 else code
    return end, code, bytes(texts[0][:most]), bytes(texts[1][:most]), time.monotonic() - start


def _start(spec: dict, command: list[str], fed: int, out: int, err: int, failure: int) -> None:
    """In the new process: set the limits, and become the program."""
    try:
        os.setsid()
        for source, target in ((fed, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if not spec["bubble"]:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        limit(spec)
        if not spec["bubble"]:
            become(spec["user"])
            if spec["user"]:
                drop_capabilities()
        refuse_calls(bytes.fromhex(spec["filter"]), spec["supervisor"])
        os.execv(command[0], command)
    except OSError as error:
        os.write(failure, f"{error.errno or 0} {command[0]}: {error.strerror or error}".encode())
    finally:
        os._exit(127)


def limit(spec: dict) -> None:
    """Lower the hard limits of this process and of all it will start."""
    user = spec["user"] or os.getuid()
    for what, value in [
        (resource.RLIMIT_CPU, spec["cpu_s"]),
        (resource.RLIMIT_AS, spec["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, spec["file_mb"] << 20),
        (resource.RLIMIT_NPROC, spec["processes"] + tasks_of(user)),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_CORE, 0),
    ]:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def tasks_of(user: int) -> int:
    """How many processes and threads a user has besides this process: all count in its limit."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
            if int(fields["Uid"].split()[0]) == user and int(fields["Pid"]) != os.getpid():
                count += int(fields["Threads"])
    return count


def refuse_calls(filter_: bytes, supervisor: int) -> None:
    """Install a seccomp filter, the supervisor's process id put in where it stands for it."""
    if not filter_:
        return
    ours = os.getppid()
    swap = {supervisor: ours, 2**32 - supervisor: 2**32 - ours}
    lines = [
        struct.pack("<HBBI", *head, swap.get(value, value))
        for *head, value in struct.iter_unpack("<HBBI", filter_)
    ]
    code = ctypes.create_string_buffer(b"".join(lines), len(filter_))
    header = struct.pack("@HxxxxxxP", len(lines), ctypes.addressof(code))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(header))  # SECCOMP_MODE_FILTER


def end_strays(alone: bool = False) -> None:
    """Kill whatever a program left behind, also what detached itself.

    Args:
      alone: nothing but the program's processes can be seen from here.
    """
    if alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all at once, before they start more
    with contextlib.suppress(ChildProcessError):
        while True:
            for listing in Path("/proc/self/task").glob("*/children"):
                for stray in map(int, listing.read_text().split()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(stray, signal.SIGKILL)
            os.waitpid(-1, 0)


def on_parent_exit(*_: object) -> None:
    """The process that asked for the run has ended: kill all that the run started, and exit."""
    end_strays()
    os._exit(1)


def _watch(
    spec: dict, child: int, streams: tuple[int, int], start: float
) -> tuple[str, list[bytearray]]:
    """Read what the program writes until it ends or oversteps."""
    texts = [bytearray(), bytearray()]
    pidfd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for fd in streams:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    end = ""
    while not end:
        left = start + spec["wall_s"] - time.monotonic()
        for fd, _ in poll.poll(max(0, left * 1000)):
            if fd == pidfd:
                end = "exit"
            elif not _take(fd, texts[streams.index(fd)]):
                poll.unregister(fd)
        if any(len(text) > spec["output_kb"] << 10 for text in texts):
            end = "output"
        elif not end and left <= 0:
            end = "timeout"
    os.close(pidfd)
    return end, texts


def _take(fd: int, into: bytearray) -> bool:
    """Take what is there; False at the end, or when nothing is there."""
    try:
        chunk = os.read(fd, 1 << 16)
    except BlockingIOError:
        return False
    into += chunk
    return bool(chunk)


def _sealed(text: bytes) -> int:
    """A file in memory that can no longer be changed."""
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(text)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0xF)  # SEAL, SHRINK, GROW, WRITE
    return fd


def _prctl(option: int, *arguments: object) -> None:
    if _LIBC.prctl(option, *[*arguments, 0, 0, 0, 0][:4]):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    main()
