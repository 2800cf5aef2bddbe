"""`--generators`: actors of Ray that sample for a run, of which one is killed."""

import os
import signal

import jax
import pytest

from jaxrl.record import checkpoint, jsonl, metrics
from jaxrl.record.process import SAVED
from jaxrl.run import assemble, generators, loop
from tests.jaxrl import tiny

SHORT = {
    "steps": 3, "warm_start.steps": 0, "eval.every": 0, "eval.problems": 2, "sampler.chunk": 1,
    "task": "tests.digests:coin", "guard.stall_seconds": 600.0,
}  # fmt: skip


def sampled(directory):
    """What was sampled, step by step."""
    fields = ("problem", "completion", "reward")
    return {
        path.name: [{k: row[k] for k in fields} for row in jsonl.read(path)]
        for path in sorted((directory / "rollouts").glob("*.jsonl"))
    }


CASES = {
    "answers": {},
    "episodes": {
        "task": "ledger", "task_args": {"names": 2, "calls": 6}, "rollout.turn_tokens": 3,
        "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 60, "packing.row_length": 128,
    },
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.extra
@pytest.mark.broad
@pytest.mark.parametrize("case", CASES)
def test_a_killed_generator_changes_no_token(case, tmp_path):
    pytest.importorskip("ray")
    alone, killed, notes = tmp_path / "alone", tmp_path / "killed", []
    changes = SHORT | CASES[case]
    loop.train(tiny.config(alone, **changes))

    def stage(name, done, total):
        if done == 1:  # the second step begins with one that is dead
            first = next(text for text in notes if "is ready" in text)
            os.kill(int(first.split()[-1]), signal.SIGKILL)

    watch = loop.Callbacks(stage=stage, note=notes.append)
    loop.train(tiny.config(killed, **changes | {"generators": 2}), watch)
    assert sampled(killed) == sampled(alone)
    assert [text for text in notes if "is gone" in text]
    assert not [text for text in notes if "by the host" in text]
    assert checkpoint.steps(killed) == checkpoint.steps(alone)
    assert len(list(metrics.read(killed))) == 3


REFUSED = {
    "generators=-1": {"generators": -1},
    "sampling.devices=1": {"generators": 2, "sampling.devices": 1},
    "stages": {"generators": 2, "stages": {1: {"rollout.max_new_tokens": 2}}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_generators_do_not_go_with_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.setattr(generators.importlib.util, "find_spec", lambda name: True)
    with pytest.raises(ValueError, match=words):
        assemble.check(tiny.config(tmp_path, **REFUSED[words]))


def test_ray_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(generators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"generators=1: ray is not installed; .*jaxrl\[ray\]"):
        generators.check(tiny.config(tmp_path, generators=1))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    generators.check(tiny.config(tmp_path))


@pytest.mark.extra
@pytest.mark.slow
def test_sigterm_saves_a_run_with_generators(tmp_path):
    """Ray takes the signal for itself as it starts."""
    pytest.importorskip("ray")
    changes = SHORT | {"generators": 1, "steps": 3, "checkpoint.every": 100}
    process = tiny.start(tmp_path, **changes)
    tiny.await_line(process, "train 1")
    process.terminate()
    output, error = process.communicate(timeout=300)
    assert process.returncode == SAVED, error[-2000:]
    assert "note SIGTERM: saving and stopping" in output
