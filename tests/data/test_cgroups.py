"""Control groups: where they can be made, and that nothing in one outlives it."""

import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jaxrl.data.sandbox import cgroups, runner
from jaxrl.launch import doctor


def tree(tmp_path, inside: str, handed: dict[str, str], controllers: str = "memory pids"):
    """A table of mounts, the groups of a process, and files of the groups above it."""
    root = tmp_path / "groups"
    (root / inside).mkdir(parents=True)
    for place, listed in handed.items():
        (root / place / "cgroup.subtree_control").write_text(listed)
    for place in (root, *(p for p in root.rglob("*") if p.is_dir())):
        (place / "cgroup.procs").touch()
    (root / "cgroup.controllers").write_text(controllers)
    (tmp_path / "mounts").write_text(f"proc /proc proc rw 0 0\ncgroup2 {root} cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text(f"4:memory:/elsewhere\n0::/{inside}\n")
    return tmp_path / "mounts", tmp_path / "own"


@pytest.mark.parametrize(
    ("handed", "found"),
    [
        ({"": "memory pids", "user": "cpu memory pids", "user/app": ""}, "user"),
        ({"": "memory pids", "user": "memory", "user/app": "pids"}, ""),
        ({"user/app": "pids memory io"}, "user/app"),
    ],
)
def test_groups_are_made_in_the_nearest_that_hands_down_what_is_needed(tmp_path, handed, found):
    places = tree(tmp_path, "user/app", handed)
    assert cgroups.parent(*places) == tmp_path / "groups" / found


def test_why_there_is_no_control_group_is_said(tmp_path):
    def why(mounts, own):
        with pytest.raises(RuntimeError) as raised:
            cgroups.parent(mounts, own)
        return str(raised.value)

    mounts, own = tree(tmp_path, "a", {"": "hugetlb"}, controllers="hugetlb")
    assert "has no memory and pids: version 1 may hold them" in why(mounts, own)
    (tmp_path / "groups" / "cgroup.controllers").write_text("memory pids")
    assert "no group from" in why(mounts, own)
    own.write_text("4:memory:/a\n")
    assert "is not below" in why(mounts, own)
    own.write_text("0::/../b\n")
    assert "is not below" in why(mounts, own)
    mounts.write_text("cgroup /groups cgroup rw,memory 0 0\n")
    assert "not mounted" in why(mounts, own)


def test_the_sandbox_and_the_doctor_say_whether_there_is_one(monkeypatch):
    found = runner.strongest()
    without, with_one = (dataclasses.replace(found, group=g) for g in ("", "/groups"))
    assert "limited by process (no control group)" in str(without)
    assert "limited as a whole" in str(with_one)

    def nowhere():
        raise RuntimeError("not here")

    monkeypatch.setattr(cgroups, "parent", nowhere)
    monkeypatch.setattr(
        runner, "strongest", lambda: dataclasses.replace(without, kind="bubblewrap")
    )
    assert doctor._sandbox()[1] == "no control group: not here"


@pytest.fixture
def above():
    """A real group to make groups in, with limits or without."""
    try:
        made = Path(tempfile.mkdtemp(prefix="jaxrl-test-", dir=cgroups.mounted()))
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no control group of version 2 can be made here: {error}")
    yield made
    made.rmdir()


def test_all_processes_of_a_group_end_with_it(above):
    detach = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(60)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    with cgroups.new_group(above, {}) as group:
        command = cgroups.entering(group, [sys.executable, "-I", "-S", "-c", detach])
        subprocess.run(command, check=True)
        left = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        assert len(left) == 3
        cgroups.sweep(above)
        assert group.exists()  # it is in use
    assert not group.exists()
    last = time.monotonic() + 5
    while any(state(pid) not in ("", "Z") for pid in left):
        assert time.monotonic() < last
        time.sleep(0.01)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_what_a_killed_process_left_is_swept(above):
    left = above / f"{cgroups._PREFIX}left"
    left.mkdir()
    cgroups.sweep(above)
    assert not left.exists()
    with pytest.raises(OSError), cgroups.new_group(above, {"no.such.limit": 1}):
        pass
    assert not list(above.glob(f"{cgroups._PREFIX}*"))


def limited() -> runner.Isolation | None:
    found = runner.strongest()
    return found if found.group else None


@pytest.mark.skipif(
    limited() is None, reason="memory and pids of version 2 are not handed down here"
)
def test_memory_and_processes_are_limited_as_a_whole():
    """Children that each keep to the limit of a process exceed it together, and one is killed."""
    limits = runner.Limits(wall_s=20, cpu_s=20, memory_mb=256, processes=12)
    hog = (
        "import os, time\n"
        "children = []\n"
        "for _ in range(6):\n"
        "    children.append(os.fork())\n"
        "    if not children[-1]:\n"
        "        kept = b'x' * (150 << 20)\n"
        "        time.sleep(2)\n"
        "        os._exit(0)\n"
        "print(sum(os.WIFSIGNALED(os.waitpid(c, 0)[1]) for c in children))\n"
    )
    outcome = runner.run(
        [sys.executable, "-I", "main.py"],
        files={"main.py": hog},
        limits=limits,
        isolation=limited(),
    )
    assert int(outcome.stdout or 6) >= 4, outcome
