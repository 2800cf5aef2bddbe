"""Ways out of the sandbox, and around its limits, that stay closed."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxrl.data.sandbox import bubblewrap, runner, seccomp
from jaxrl.data.sandbox.runner import Isolation, Limits
from tests.data.test_sandbox import (
    BUBBLES,
    KINDS,
    QUICK,
    gone,
    isolated,
    processes_with,
    python,
    shell,
)

READABLE = [i for i in KINDS if not (i.kind == "rlimits" and i.own_user)]
"""Isolations whose user can read this interpreter."""

filtered = pytest.mark.parametrize("isolation", READABLE, ids=str)

CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    number = {numbers}[name]
    result = libc.syscall(number, *arguments)
    print(name, "made" if result >= 0 else os.strerror(ctypes.get_errno()))
"""


def calls(*lines: str) -> str:
    index = ("x86_64", "aarch64").index(os.uname().machine)
    numbers = {name: pair[index] for name, pair in seccomp._DENIED.items()}
    numbers |= {"clone": (56, 220)[index], "clone3": 435}
    return CALLS.replace("{numbers}", repr(numbers)) + "\n".join(lines)


@filtered
def test_no_namespace_and_no_mount_can_be_made(isolation):
    source = calls(
        *(f"call('unshare', {flag})" for flag in (0x10000000, 0x20000, 0x40000000, 0x80)),
        "call('clone', 0x10000000 | 17, 0, 0, 0, 0)",
        "call('clone3', 0, 0)",
        "call('mount', b'none', b'/scratch', b'tmpfs', 0, 0)",
        "call('setns', 0, 0)",
    )
    outcome = python(source, isolation)
    assert outcome.stdout.count("\n") == 8 and "made" not in outcome.stdout, outcome


@filtered
def test_no_memory_outside_the_limits(isolation):
    source = calls(
        "call('shmget', 0, 50 << 20, 0o1600)",
        "call('memfd_create', b'x', 0)",
        "call('msgget', 0, 0o1600)",
        "call('io_uring_setup', 8, ctypes.create_string_buffer(256))",
        "call('add_key', b'user', b'x', b'y', 1, -1)",
        "call('bpf', 0, 0, 0)",
        "call('userfaultfd', 0)",
    )
    outcome = python(source, isolation)
    assert outcome.stdout.count("\n") == 7 and "made" not in outcome.stdout, outcome


@filtered
def test_only_local_sockets(isolation):
    source = (
        "import socket\n"
        "for family in (2, 10, 16, 17, 38, 40):\n"  # inet, inet6, netlink, packet, alg, vsock
        "    try: socket.socket(family, socket.SOCK_DGRAM); print('made')\n"
        "    except OSError: pass\n"
        "socket.socketpair(); print('pair')"
    )
    assert python(source, isolation).stdout == "pair\n"


@isolated
def test_files_are_limited_in_number_and_in_size(isolation):
    source = (
        "import os\n"
        "try:\n"
        "    for i in range(100_000): os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))\n"
        "except OSError as error: print(i, error.errno)"
    )
    count, number = python(source, isolation, Limits(wall_s=20)).stdout.split()
    assert 4000 < int(count) < 4096 and number == "28"
    source = (
        "import os\nwritten = 0\n"
        "try:\n"
        "    for i in range(100):\n"
        "        with open(f'f{i}', 'wb', buffering=0) as f: written += f.write(bytes(1 << 20))\n"
        "except OSError: pass\n"
        "print(written)"
    )
    assert int(python(source, isolation).stdout) <= QUICK.file_mb << 20


def shared_kib() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Shmem"].split()[0])


@pytest.mark.parametrize("isolation", [i for i in BUBBLES if i.own_user or os.geteuid()], ids=str)
def test_the_stated_bound_of_memory_holds(isolation):
    """Each process takes all it may, and none gets beyond: by what the kernel says it took."""
    limits = Limits(wall_s=20, cpu_s=20, memory_mb=96, file_mb=4, processes=4, output_kb=16)
    source = (
        "import os, mmap, time\n"
        "def take():\n"
        "    kept, total = [], 0\n"
        "    try:\n"
        "        while True:\n"
        "            page = mmap.mmap(-1, 1 << 20); page.write(bytes(1 << 20))\n"
        "            kept.append(page); total += 1\n"
        "    except (OSError, MemoryError): return kept, total\n"
        "for _ in range(8):\n"
        "    try: child = os.fork()\n"
        "    except OSError: print('no more', flush=True); break\n"
        "    if not child:\n"
        "        kept, total = take(); os.write(1, f'{total}\\n'.encode()); time.sleep(9)\n"
        "time.sleep(2)"
    )
    before = shared_kib()
    outcome = python(source, isolation, limits)
    taken = [int(line) for line in outcome.stdout.split() if line.isdigit()]
    assert "no more" in outcome.stdout and 0 < len(taken) <= 4
    assert sum(taken) <= limits.processes * limits.memory_mb
    assert shared_kib() - before < 20 << 10


@filtered
def test_a_program_cannot_end_or_read_its_supervisor(isolation):
    source = (
        "import ctypes, os, signal, resource, fcntl\n"
        "parent = os.getppid()\n"
        "def attempt(name, f):\n"
        "    try: f(); print('made', name)\n"
        "    except OSError: pass\n"
        "for target in (parent, -parent, -1):\n"
        "    attempt('kill', lambda: os.kill(target, signal.SIGKILL))\n"
        "attempt('limit', lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (0, 0)))\n"
        "attempt('pidfd', lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 9))\n"
        "attempt('own', lambda: fcntl.fcntl(0, fcntl.F_SETOWN, parent))\n"
        + (
            "attempt('memory', lambda: open(f'/proc/{parent}/mem', 'rb').close())\n"
            "attempt('environ', lambda: open(f'/proc/{parent}/environ', 'rb').read())\n"
            if isolation.kind == "bubblewrap" or os.geteuid()
            else ""
        )
        + "print('survived')"
    )
    assert python(source, isolation).stdout == "survived\n"


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("isolation", KINDS, ids=str)
def test_nothing_outlives_a_program_that_attacks_its_supervisor(isolation):
    script = "setsid sh -c '(sleep 78.1 &) ; sleep 78.1' & kill -9 $PPID; kill -9 -1; sleep 78.1"
    shell(script, isolation, Limits(wall_s=1.0, processes=20))
    assert gone("sleep 78.1")


@pytest.mark.parametrize("isolation", KINDS, ids=str)
def test_nothing_outlives_the_process_that_asked_for_the_run(isolation):
    program = (
        "from jaxrl.data.sandbox import runner as sandbox\n"
        "from jaxrl.data.sandbox.runner import Isolation, Limits\n"
        "sandbox.run(['/bin/sh', '-c', '(setsid sleep 78.2 &); sleep 78.2'],"
        f" limits=Limits(wall_s=60), isolation={isolation!r})"
    )
    asking = subprocess.Popen([sys.executable, "-c", program])
    for _ in range(250):
        if len([p for p in processes_with("sleep 78.2") if p.startswith("sleep")]) == 2:
            break
        time.sleep(0.02)
    else:
        pytest.fail("the program did not start")
    asking.kill()
    asking.wait()
    assert gone("sleep 78.2")


@pytest.mark.parametrize("isolation", KINDS, ids=str)
@pytest.mark.parametrize("how", ["before the start", "closed", "written", "stopped"])
def test_a_run_that_is_cancelled_leaves_nothing(how, isolation):
    """Also where the program has stopped itself and the process that started it."""
    reading, writing = os.pipe()
    script = "(setsid sleep 78.4 &); sleep 78.4"
    if how == "stopped":
        script = "(setsid sleep 78.4 &); sh -c 'kill -STOP $PPID; kill -STOP $$'"
    given = dict(limits=Limits(wall_s=60, processes=20), isolation=isolation, cancel=reading)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(runner.run(["/bin/sh", "-c", script], **given))
    )
    if how != "before the start":
        thread.start()
        for _ in range(250):
            if processes_with("sleep 78.4"):
                break
            time.sleep(0.02)
        assert thread.is_alive()
    if how == "written":
        os.write(writing, b".")
    os.close(writing)
    if how == "before the start":
        with contextlib.suppress(runner.StartError):
            runner.run(["/bin/sh", "-c", script], **given)
    else:
        thread.join(10)
        assert [(each.end, each.status) for each in found] == [("exit", 137)]
    assert gone("sleep 78.4")
    os.close(reading)


def test_a_run_may_have_descriptors_of_any_number():
    """As in a trainer with a thousand episodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        assert runner.run(["/bin/echo", "hi"], isolation=KINDS[0]).stdout == "hi\n"


@isolated
def test_runs_share_no_input_and_leave_nothing_to_the_next(isolation):
    look = "read x; echo $x; ls; cat /proc/[0-9]*/comm | grep -c sleep;"
    outcomes = runner.run_each(
        ["/bin/sh", "-c", look + "(setsid sleep 78.3 &); exit 0"],
        ["one", "two"],
        isolation=isolation,
    )
    assert [o.stdout for o in outcomes] == ["one\n0\n", "two\n0\n"]


def test_until_failure_and_what_is_prepared():
    script = "read x; echo $x; exit $x"
    run = lambda **more: runner.run_each(  # noqa: E731
        ["/bin/sh", "-c", script], ["0", "3", "0"], isolation=KINDS[0], **more
    )
    assert [o.status for o in run()] == [0, 3, 0]
    assert [o.status for o in run(until_failure=True)] == [0, 3]
    assert [o.status for o in run(prepare=["/bin/sh", "-c", "exit 7"])] == [7, 7, 7]
    made = runner.run_each(
        ["./made"], ["", ""], prepare=["/bin/sh", "-c", "cp /bin/echo made"], isolation=KINDS[0]
    )
    assert [o.stdout for o in made] == ["\n", "\n"]
    missing = runner.run_each(["./made"], [""], isolation=KINDS[0])
    assert missing[0].status == 127  # the program's fault: it made nothing to run


@pytest.mark.parametrize("isolation", KINDS, ids=str)
def test_what_could_not_start_is_an_error(isolation, monkeypatch):
    with pytest.raises(runner.StartError, match="no/such"):
        runner.run(["/no/such"], isolation=isolation)
    monkeypatch.setattr(bubblewrap, "CHILD", Path("/no/such.py"))
    with pytest.raises(runner.StartError, match="did not start"):
        runner.run(["/bin/true"], isolation=isolation)


def test_the_weak_isolation_is_refused_unless_it_is_allowed(monkeypatch):
    monkeypatch.setattr(runner, "strongest", lambda: Isolation("rlimits", False))
    for allow in (
        lambda: runner.check(allow_weak=True),  # holds for this process
        lambda: monkeypatch.setenv(runner.ALLOW_WEAK, "1"),
    ):
        monkeypatch.setenv(runner.ALLOW_WEAK, "")
        with pytest.raises(RuntimeError, match=r"--sandbox\.allow-weak"):
            runner.check()
        with pytest.raises(RuntimeError, match=r"--sandbox\.allow-weak"):
            runner.run(["/bin/true"])
        allow()
        assert runner.check() == Isolation("rlimits", False)
        assert runner.run(["/bin/true"]).status == 0


ORDINARY = """
import os, subprocess, sys
sys.path.insert(0, {root!r})
from jaxrl.data.sandbox import processes, runner as sandbox
from jaxrl.data.sandbox.runner import Isolation, Limits
busy = [subprocess.Popen(["sleep", "30"]) for _ in range(40)]
processes.hide()
weak = Isolation("rlimits", False)
def shell(line):
    eight = Limits(processes=8)
    return sandbox.run(["/bin/sh", "-c", line], limits=eight, isolation=weak).stdout
try:
    lines = ["/bin/sh -c 'echo inner'; echo outer"]
    lines += [f"cat /proc/{{os.getpid()}}/environ /proc/$PPID/environ 2>/dev/null; :"]
    for line in lines:
        print(shell(line))
    print(shell("kill -9 $PPID; kill -9 -1; echo alive"))
    shell("(setsid sleep 78.4 &); kill -9 $PPID; sleep 0")
    print(sum(p.poll() is None for p in busy))
    print(sandbox.strongest().kind)
finally:
    for each in busy: each.kill()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not os.path.exists("/usr/bin/python3"),
    reason="needs root, to become an ordinary user, and a Python which that user can run",
)
def test_as_an_ordinary_user_with_many_processes():
    """The limit of processes is this user's and not the program's alone: it must leave room."""
    program = ORDINARY.format(root=os.getcwd())
    command = ["setpriv", "--reuid=12321", "--regid=12321", "--clear-groups", "/usr/bin/python3"]
    done = subprocess.run(
        [*command, "-B", "-c", program],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "API_SECRET": "hunter2"},
    )
    lines = done.stdout.split()
    assert lines[:2] == ["inner", "outer"], done
    assert "hunter2" not in done.stdout
    assert lines[2] == "alive" and lines[3] == "40"
    if shutil.which("bwrap"):
        assert lines[4] == "bubblewrap"
    assert gone("sleep 78.4")
