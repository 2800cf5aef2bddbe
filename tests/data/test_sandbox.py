"""Hostile programs: what they may not do, and that they end."""

import dataclasses
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl.data.sandbox import bubblewrap, runner
from jaxrl.data.sandbox.runner import Isolation, Limits

PYTHON = [sys.executable, "-I"]
QUICK = Limits(wall_s=1.0, cpu_s=2, memory_mb=256, file_mb=4, processes=12, output_kb=16)
PATIENT = dataclasses.replace(QUICK, wall_s=30.0, cpu_s=20)
"""Of a Python, which on a loaded machine takes more than a second to start."""


def works(isolation: Isolation) -> bool:
    try:
        return runner.run(["/bin/sh", "-c", "echo hi"], isolation=isolation).stdout == "hi\n"
    except (OSError, runner.StartError):
        return False


KINDS = [
    i for k in ("bubblewrap", "rlimits") for own in (True, False) if works(i := Isolation(k, own))
]
BUBBLES = [i for i in KINDS if i.kind == "bubblewrap"]
every = pytest.mark.parametrize("isolation", KINDS, ids=str)
isolated = pytest.mark.parametrize("isolation", BUBBLES, ids=str)


def python(source, isolation, limits=PATIENT, **arguments):
    return runner.run(
        [*PYTHON, "main.py"],
        files={"main.py": source, **arguments.pop("files", {})},
        limits=limits,
        isolation=isolation,
        **arguments,
    )


def shell(source, isolation, limits=QUICK):
    return runner.run(["/bin/sh", "-c", source], limits=limits, isolation=isolation)


def processes_with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if marker in text and "pytest" not in text:
            found.append(text)
    return found


def gone(marker: str) -> bool:
    for _ in range(100):
        if not processes_with(marker):
            return True
        time.sleep(0.02)
    return False


def test_the_startup_check_says_which():
    isolation = runner.check()
    assert isolation in KINDS
    assert ("bubblewrap," in str(isolation)) == (isolation.kind == "bubblewrap")
    assert "HAVE the network" in str(Isolation("rlimits", False))
    if BUBBLES:
        assert isolation.kind == "bubblewrap"


@every
def test_an_honest_program_reads_and_writes(isolation):
    source = (
        "cat data/in.txt; read x; echo $x; echo err >&2; echo new > out.txt; cat out.txt; exit 3"
    )
    outcome = runner.run(
        ["/bin/sh", "-c", source],
        files={"data/in.txt": "file\n"},
        stdin="typed\n",
        isolation=isolation,
    )
    assert (outcome.stdout, outcome.stderr) == ("file\ntyped\nnew\n", "err\n")
    assert (outcome.end, outcome.status) == ("exit", 3)


@pytest.mark.sample(1, broad=2)
@every
def test_time_out_infinite_output_and_signals(isolation):
    asleep = shell("trap '' TERM INT HUP; sleep 77.1; sleep 77.1", isolation)
    assert asleep.end == "timeout" and asleep.seconds < 3 and gone("sleep 77.1")
    assert shell("kill -STOP $$", isolation).end == "timeout"
    flood = shell("yes; yes", isolation)
    assert flood.end == "output" and flood.seconds < 1.5 and len(flood.stdout) == 16 << 10
    assert shell("yes >&2", isolation).end == "output"
    assert shell("kill -KILL $$", isolation).status == 137
    assert shell("exec >&- 2>&-; sleep 77.2", isolation).end == "timeout"  # closed its output


@every
def test_a_detached_child_dies_with_its_parent(isolation):
    start = time.monotonic()
    outcome = shell("setsid sleep 77.3 & (setsid sleep 77.3 &) ; echo done", isolation)
    assert (outcome.end, outcome.stdout) == ("exit", "done\n")
    assert time.monotonic() - start < 30 and gone("sleep 77.3")


@every
def test_limits_of_memory_files_and_environment(isolation, monkeypatch):
    monkeypatch.setenv("API_SECRET", "hunter2")
    assert "hunter2" not in shell("env; cat /proc/self/environ", isolation).stdout
    big = shell("head -c 64000000 /dev/zero > big; echo status $?; wc -c < big", isolation)
    assert "status 0" not in big.stdout and int(big.stdout.split()[-1] or 0) <= 4 << 20
    if isolation.kind == "rlimits" and isolation.own_user:
        return  # this interpreter may be out of that user's reach
    hog = python("x = bytearray(10**9); print('had it')", isolation)
    assert hog.status != 0 and "MemoryError" in hog.stderr and not hog.stdout
    grow = python("x = []\nwhile True: x.append(bytearray(1 << 20))", isolation)
    assert grow.status != 0 and grow.seconds < 3


@pytest.mark.parametrize(
    "isolation",
    [i for i in KINDS if i.own_user or (i.kind == "bubblewrap" and os.geteuid())],
    ids=str,
)
def test_a_fork_bomb_is_held_and_ends(isolation):
    bomb = shell("b() { b 77.4 | b 77.4 & }; b; sleep 77.4", isolation, QUICK)
    assert bomb.seconds < 4 and gone("77.4")
    counted = shell("for i in $(seq 40); do sleep 77.5 & done; echo $(jobs | wc -l)", isolation)
    assert counted.stdout.strip() == "" or int(counted.stdout) <= 12
    assert "fork" in counted.stderr.lower() and gone("77.5")


@isolated
def test_no_network(isolation):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = (
            "import socket\n"
            f"try: socket.create_connection(('127.0.0.1', {port}), 1); print('connected')\n"
            "except OSError as e: print('refused')"
        )
        assert python(source, isolation).stdout == "refused\n"


@isolated
def test_files_outside_are_hidden_or_read_only_and_links_lead_nowhere(isolation, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    for path in (str(secret), "/etc/passwd", "/etc/shadow", "/root/.ssh", str(Path.cwd() / "data")):
        outcome = shell(f"ln -s {path} link; cat link link/*; cat {path}", isolation)
        assert outcome.status != 0 and outcome.stdout == ""
    for path in (
        "/usr/x",
        "/bin/x",
        f"{sys.prefix}/x",
        "/etc/x",
        "/dev/shm/x",
        "/dev/x",
        str(tmp_path / "x"),
    ):
        assert shell(f"echo x > {path}", isolation).status != 0 and not Path(path).exists()
    source = f"import os; os.chmod({bubblewrap.CHILD_INSIDE!r}, 0o777)"
    assert python(source, isolation).status != 0
    with pytest.raises(ValueError, match="without"):
        python("", isolation, files={"../escape": ""})


@isolated
def test_proc_shows_no_other_process_and_signals_reach_none(isolation):
    victim = subprocess.Popen(["sleep", "60"])
    try:
        seen = shell(
            "ls /proc | grep -c '^[0-9]'; cat /proc/*/cmdline; ls /proc/1/root/", isolation
        )
        assert int(seen.stdout.split()[0]) <= 8 and "pytest" not in seen.stdout
        shell(f"kill -KILL {victim.pid}; kill -KILL -1; kill -KILL 0; kill -KILL 1", isolation)
        assert victim.poll() is None
        traced = python(f"open('/proc/{victim.pid}/mem', 'r+b')", isolation)
        assert traced.status != 0
    finally:
        victim.kill()
        victim.wait()


@isolated
def test_no_privilege_is_left(isolation):
    source = "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Uid|Groups)' /proc/self/status"
    status = dict(line.split(":", 1) for line in shell(source, isolation).stdout.splitlines())
    assert all(int(status[f"Cap{c}"], 16) == 0 for c in ("Inh", "Prm", "Eff", "Amb"))
    assert status["NoNewPrivs"].strip() == "1" and "0" not in status["Uid"].split()
    assert "0" not in status["Groups"].split()
    for attempt in ("os.setuid(0)", "os.setgid(0)", "os.chroot('/')", "os.unshare(0x10000000)"):
        tried = python(f"import os, ctypes\n{attempt}\nprint('did it')", isolation)
        assert "did it" not in tried.stdout, attempt


@isolated
def test_the_input_cannot_be_changed_on_the_host(isolation, tmp_path):
    outcome = python("open('given.txt', 'w').write('x')", isolation, files={"given.txt": "kept"})
    assert outcome.status != 0


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="absolute path"):
        runner.run(["python"])
