"""Generators on one machine are reached on loopback alone."""

import contextlib
import os
import subprocess
import sys
import types

import pytest

from jaxrl.config import Config
from jaxrl.run import generators


@pytest.mark.extra
@pytest.mark.parametrize("address", ["", "ray://cluster:1"])
def test_ray_is_told_to_stay_on_this_machine_unless_it_is_a_cluster(monkeypatch, address):
    ray = pytest.importorskip("ray")

    class Stop(Exception):
        pass

    def init(**arguments):
        raise Stop

    (name,) = generators.LOOPBACK
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv(name, "")
    monkeypatch.setenv("RAY_ADDRESS", address)
    callbacks = types.SimpleNamespace(note=print)
    run = types.SimpleNamespace(directory="x", closing=contextlib.ExitStack(), callbacks=callbacks)
    with pytest.raises(Stop):
        generators.open_fleet(run, Config(generators=1))
    assert os.environ[name] == ("" if address else "0")


class SlowRay:
    """Stands for ray, whose processes start in time at one attempt."""

    def __init__(self, starts_at: int, reason: str = "The current node timed out during startup."):
        self.starts_at, self.reason, self.calls = starts_at, reason, list[str]()
        self.running = set[SlowRay.Process]()

    class Process:
        """One that shutdown forgets."""

        def __init__(self, ray):
            self.ray = ray

        def kill(self):
            self.ray.calls.append("kill")
            self.ray.running.remove(self)

    def init(self, **options):
        self.calls.append("init")
        self.running.add(self.Process(self))
        if self.calls.count("init") < self.starts_at:
            raise Exception(self.reason)

    def shutdown(self):
        self.calls.append("shutdown")


def test_a_busy_machine_gets_more_than_one_attempt_to_start_ray(monkeypatch):
    slow = SlowRay(3)
    monkeypatch.setattr(generators, "_ray_processes", slow.running.copy)
    notes = []
    generators._start_ray(slow, notes.append, address=None)
    assert len(notes) == 2 and "did not start within 30 seconds" in notes[0]
    late = ["init", "shutdown", "kill"]
    assert slow.calls == [*late, *late, "init"] and len(slow.running) == 1
    monkeypatch.setattr(generators, "_ray_processes", set)
    with pytest.raises(RuntimeError, match=r"did not start within 30 seconds, 10 times.*RAY_ADDR"):
        generators._start_ray(SlowRay(11), print, address=None)
    other = SlowRay(2, "no such address")
    with pytest.raises(Exception, match="no such address"):
        generators._start_ray(other, print, address=None)
    assert other.calls == ["init"]


LISTENING = """
import os
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
def tree(pid):
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in open(f"/proc/{pid}/task/{task}/children").read().split():
            found += tree(int(child))
    return found
held = set()
for pid in tree(os.getpid()):
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try: held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError: pass
    except OSError: pass
for kind in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{kind}").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
            print("LISTENS", kind, fields[1].partition(":")[0])
ray.shutdown()
"""


@pytest.mark.broad
def test_where_ray_listens():
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env=os.environ | generators.LOOPBACK,
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LISTENS")]
    assert found
    assert {address[-8:] for _, address in found} == {"0100007F"}, found


TRANSFERRING = """
import os
from jaxrl.rollout import direct
server = direct._server("127.0.0.1")
held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")}
for kind in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{kind}").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
            print("LISTENS", kind, fields[1].partition(":")[0])
"""


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs /proc")
def test_jax_transfers_at_the_address_of_the_node_alone():
    """Its server has no key; on one machine the node's address is loopback, see above."""
    done = subprocess.run(
        [sys.executable, "-c", TRANSFERRING], capture_output=True, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    listening = [line for line in done.stdout.splitlines() if line.startswith("LISTENS")]
    assert listening and set(listening) == {"LISTENS tcp 0100007F"}, done.stdout + done.stderr
