"""Two processes of four devices train as one process of eight, and end together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxrl.mesh import distributed
from jaxrl.record import checkpoint, metrics
from jaxrl.record.process import SAVED
from jaxrl.run import loop
from tests.jaxrl import tiny
from tests.jaxrl.mesh.test_mesh import ROOT, UNOPTIMISED


def launch(meshes: dict, devices: int, place: dict[str, str]) -> subprocess.Popen:
    flags = UNOPTIMISED + tiny.xla_flags(devices)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.jaxrl.mesh_program", json.dumps(meshes)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags} | place,
        stdout=subprocess.PIPE,
        text=True,
    )


def report(process: subprocess.Popen) -> dict:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


SHORT = {"steps": 4, "warm_start.steps": 2, "eval.every": 0, "eval.problems": 4}
ROUNDING = 1e-5
"""Between one process and two, sums over devices are taken in another order. fp32 rounding is 1e-7
of a parameter; what it does to a small gradient, AdamW may make a hundredth of its step of 1e-3."""


def ended(process, seconds=60.0):
    """Exit code and last words of a process that must end soon."""
    start = time.monotonic()
    _, error = process.communicate(timeout=900)
    assert time.monotonic() - start < seconds
    return process.returncode, error


@pytest.mark.exact(
    "a killed run of two processes, continued by one, equals a run of one to rounding"
)
@pytest.mark.broad
@pytest.mark.optimized
def test_killed_pair_is_continued_by_one_process(tmp_path):
    """After SIGKILL to one process, the other ends with one message, and a single process continues
    with the same result as a run of one process."""
    every = {"checkpoint.every": 1}
    first, second = tiny.start_pair(tmp_path / "killed", devices=1, **SHORT, **every)
    tiny.await_line(first, "train 2")
    second.kill()
    second.communicate()
    code, error = ended(first)
    assert code == 1 and error.count("jaxrl: process 0 of 2") == 1
    assert "has lost another process" in error and "Traceback" not in error
    notes = []
    loop.train(tiny.config(tmp_path / "killed", **SHORT), loop.Callbacks(note=notes.append))
    assert any(re.match("continuing .* from step [12]", note) for note in notes)
    loop.train(tiny.config(tmp_path / "straight", **SHORT))
    assert tiny.close(tmp_path / "killed", tmp_path / "straight", ROUNDING)


@pytest.mark.exact("a run of two processes equals that of one process and of one device")
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mesh", [{}, {"mesh.fsdp": 4, "mesh.tensor": 2}, {"mesh.fsdp": 2, "mesh.context": 2}]
)
def test_a_pair_equals_one_process_and_one_device(tmp_path, mesh):
    """Begun by one process, ended by two; and two from beginning to end."""
    tiny.finish_pair(tiny.start_pair(tmp_path / "pair", **mesh))
    for devices in (1, 8):
        tiny.finish(
            tiny.start(tmp_path / str(devices), devices=devices, **(mesh if devices > 1 else {}))
        )
        assert tiny.close(tmp_path / "pair", tmp_path / str(devices), ROUNDING)
    first = tiny.start(tmp_path / "handed", devices=8, **mesh, **{"checkpoint.every": 1})
    assert tiny.kill_at(first, "train 3")
    said = tiny.finish_pair(tiny.start_pair(tmp_path / "handed", **mesh))
    assert "note continuing" in said
    assert tiny.close(tmp_path / "pair", tmp_path / "handed", ROUNDING)


@pytest.mark.exact(
    "the quickstart of two processes, continued by one, samples the tokens of one device"
)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quickstart_of_a_pair_is_continued_by_one_process(tmp_path):
    """By the command itself, for a few steps: both save and end on SIGTERM; one process continues,
    with the same result as an uninterrupted run of one device."""
    few = ["--steps", "6", "--warm-start.steps", "20", "--eval.problems", "64"]

    def command(name, *flags):
        where = ["--run-dir", str(tmp_path / name), "--rollout-log.every", "1"]
        return "jaxrl.launch.cli", "train", "quickstart", *few, *where, *flags

    split = command("pair", "--mesh", "fsdp=4,tensor=2")
    pair = [tiny.spawn(*split, devices=4, variables=place) for place in tiny.pair_variables()]
    while len(metrics.read(tmp_path / "pair")) < 3 and pair[0].poll() is None:
        time.sleep(0.01)
    pair[1].send_signal(signal.SIGTERM)
    for process in pair:
        _, error = process.communicate(timeout=900)
        assert process.returncode == SAVED, error[-3000:]
    step = checkpoint.steps(tmp_path / "pair")[-1]
    assert 3 <= step < 6
    assert f"from step {step}" in tiny.finish(tiny.spawn(*split, devices=8))
    tiny.finish(tiny.spawn(*command("alone"), devices=1))
    # The same tokens; of parameters, a tenth of AdamW's step of 2e-3, where gradients are small.
    assert tiny.close(tmp_path / "pair", tmp_path / "alone", 2e-4)


@pytest.mark.exact("two processes that sample on devices of their own equal one device")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_pair_samples_on_devices_of_its_own(tmp_path):
    """Two devices of each process sample, two train."""
    apart = {"mesh.fsdp": 4, "sampling.devices": 4, "sampling.mesh.tensor": 2}
    tiny.finish_pair(tiny.start_pair(tmp_path / "pair", **SHORT, **apart))
    tiny.finish(tiny.start(tmp_path / "alone", **SHORT))
    assert tiny.close(tmp_path / "pair", tmp_path / "alone", ROUNDING)


@pytest.mark.exact("a lockstep run of two processes equals that of one device")
@pytest.mark.broad
def test_a_lockstep_pair_equals_one_device(tmp_path):
    lockstep = {"asynchronous.staleness": 2, "asynchronous.schedule": "lockstep:2"}
    changes = SHORT | lockstep | {"sampler.chunk": 1}
    tiny.finish_pair(tiny.start_pair(tmp_path / "pair", devices=1, **changes))
    loop.train(tiny.config(tmp_path / "alone", **changes))
    assert tiny.close(tmp_path / "pair", tmp_path / "alone", ROUNDING)
    assert max(row["lag/max"] for row in metrics.read(tmp_path / "pair")) > 0


@pytest.mark.exact("episodes that wait for slots in two processes are those of one device")
@pytest.mark.slow
def test_a_pair_plays_more_episodes_than_it_has_slots(tmp_path):
    """Their replies are known at once, and take effect before others get a slot."""
    played = {
        "task": "keydoor", "task_args": {"turns": 5}, "rollout.max_prompt_tokens": 32,
        "rollout.max_new_tokens": 56, "rollout.turn_tokens": 2, "sampler.slots": 8,
        "sampler.chunk": 2, "packing.row_length": 128,
    }  # fmt: skip
    changes = SHORT | played | {"warm_start.steps": 0, "steps": 2}
    tiny.finish_pair(tiny.start_pair(tmp_path / "pair", devices=1, **changes))
    loop.train(tiny.config(tmp_path / "alone", **changes))
    assert tiny.close(tmp_path / "pair", tmp_path / "alone", ROUNDING)
    loop.train(tiny.config(tmp_path / "roomy", **changes | {"sampler.slots": 16}))
    assert tiny.close(tmp_path / "roomy", tmp_path / "alone", ROUNDING)


@pytest.mark.exact("a killed run of two processes continues to the last bit")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_pair_continues_byte_for_byte(tmp_path):
    """Whichever process dies, and as long as there are two of them again."""
    tiny.finish_pair(tiny.start_pair(tmp_path / "straight"))
    for victim, line in ((0, "train 1"), (1, "train 3"), (0, "train 5")):
        pair = tiny.start_pair(tmp_path / "killed")
        tiny.await_line(pair[0], line)
        pair[victim].kill()
        code, error = ended(pair[1 - victim])
        if victim:
            assert code == 1 and "has lost another process" in error
        else:  # JAX ends what has lost process 0, unless we come first
            assert code in (1, -signal.SIGABRT)
            assert "has lost another process" in error or "another task died" in error
        pair[victim].communicate()
    tiny.finish_pair(tiny.start_pair(tmp_path / "killed"))
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_stops_both_at_one_step(tmp_path, signalled):
    """Exit code 75 from both, and one whole step saved."""
    never = {"checkpoint.every": 100, "steps": 50}
    pair = tiny.start_pair(tmp_path, **never)
    tiny.await_line(pair[0], "train 3")
    pair[signalled].send_signal(signal.SIGTERM)
    out, error = pair[0].communicate(timeout=600)
    pair[1].communicate(timeout=600)
    assert [process.returncode for process in pair] == [75, 75], error[-2000:]
    assert "note SIGTERM: saving and stopping" in out
    (step,) = re.findall(r"step (\d+) is saved; the same command continues", out)
    assert checkpoint.steps(tmp_path) == [0, int(step)]


@pytest.mark.broad
def test_two_commands_and_two_configs_are_refused_and_a_kill_is_said(tmp_path):
    """At one directory at once: the pair that trains there is disturbed by nothing but a kill."""
    long, run = {"steps": 300, "checkpoint.every": 100}, tmp_path / "run"
    pair = tiny.start_pair(run, devices=1, **SHORT | long)
    tiny.await_line(pair[0], "train 1")
    for process in tiny.start_pair(run, devices=1, **SHORT | long):
        code, error = ended(process, 120)
        assert code == 1 and "is in use by another process" in error and "lost" not in error
    other = tmp_path / "other"
    places = enumerate(tiny.pair_variables())
    for process in [tiny.start(other, variables=v, **SHORT, seed=seed) for seed, v in places]:
        code, error = ended(process, 120)
        assert code == 1 and "seed: 0 in process 0, 1 in process 1" in error
    assert not other.exists()
    assert [process.poll() for process in pair] == [None, None]
    pair[0].kill()
    code, error = ended(pair[1], 60)
    assert code in (1, -signal.SIGABRT)
    assert "has lost another process" in error or "another task died" in error
    ended(pair[0])


def test_a_process_that_waits_for_others_says_so(monkeypatch, capsys):
    """It says for how long; JAX ends it then."""
    monkeypatch.setattr(distributed, "_MEETING_NOTICE_S", 0.01)
    monkeypatch.setattr("jax.distributed.initialize", lambda *a, **k: time.sleep(0.5))
    distributed.start(dict(zip(distributed.VARIABLES, ("a:1", "2", "1"), strict=True)))
    assert "process 1 of 2" in (error := capsys.readouterr().err) and "at a:1" in error
    assert "within 300 s" in error
    monkeypatch.setattr("jax.distributed.initialize", lambda *a, **k: None)
    distributed.start({"JAXRL_PROCESSES": "auto"})
    assert not capsys.readouterr().err


def faulty(logp):
    """A policy objective with a fault that shows in one process."""
    if jax.process_index() == 1:
        raise AssertionError("a fault of one host")
    return -logp, {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_error_of_one_process_ends_both(tmp_path):
    """With the traceback where it happened, and a line where it did not."""
    fault = {"objective.policy": "tests.jaxrl.mesh.test_multihost:faulty", "warm_start.steps": 0}
    pair = tiny.start_pair(tmp_path / "run", **SHORT | fault)
    (first, error), (second, fault) = (ended(process, 300) for process in pair)
    assert (first, second) == (1, 1)
    assert "process 0 of 2" in error and "has lost another process" in error
    assert "Traceback" in fault and "process 1 of 2" in fault and "a fault of one host" in fault


@pytest.mark.exact("sums over two processes equal those of one to 1e-4")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_train_as_one():
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    pair = [launch({"pair": sizes}, 4, place) for place in tiny.pair_variables()]
    together = report(pair[0])
    assert pair[1].wait(timeout=60) == 0
    alone = report(launch({"alone": {"data": 1}}, 1, {}))
    assert (together["processes"], alone["processes"]) == (2, 1)
    np.testing.assert_allclose(together["sums"], alone["sums"], atol=1e-4)


def test_a_process_alone_starts_nothing():
    assert distributed.start({}) == 1
    assert distributed.announced({"SLURM_NTASKS": "8"}) == 1  # in a script, but not in its srun
    assert distributed.announced({"SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "node[1-8]"}) == 8
    assert distributed.announced({"MEGASCALE_NUM_SLICES": "2"}) == 2
    assert distributed.announced({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    assert distributed.announced({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}) == 2


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        (dict(zip(distributed.VARIABLES, ("a:1", "2", "1"), strict=True)), ("a:1", 2, 1)),
        ({"JAXRL_PROCESSES": "auto"}, ()),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ()),
    ],
)
def test_what_is_asked_of_jax(monkeypatch, environment, arguments):
    """With a scheduler's own variables alone, JAX is left to find the others."""
    asked = []
    monkeypatch.setattr("jax.distributed.initialize", lambda *a, **k: asked.append((a, k)))
    distributed.start(environment)
    ((given, options),) = asked
    assert given == arguments
    assert (options.get("cluster_detection_method") == "deactivate") == bool(arguments)


def test_variables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"set without JAXRL_PROCESSES, JAXRL_PROCESS; set all"):
        distributed.start({"JAXRL_COORDINATOR": "a:1"})
    with pytest.raises(ValueError, match="JAXRL_PROCESS=2 of JAXRL_PROCESSES=2"):
        distributed.explicit(dict(zip(distributed.VARIABLES, ("a:1", "2", "2"), strict=True)))
