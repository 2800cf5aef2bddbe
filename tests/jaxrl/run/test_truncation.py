"""Runs that sample from a truncated distribution and train over what it left."""

import numpy as np
import pytest

from jaxrl.record import jsonl, metrics
from jaxrl.run import assemble, loop
from jaxrl.training.tries import Chunks
from tests.jaxrl import tiny

CUT = {"rollout.temperature": 0.8, "rollout.top_k": 6, "rollout.top_p": 0.9, "rollout.min_p": 0.02}
SHORT = {
    "steps": 2, "eval.every": 0, "eval.problems": 4, "warm_start.steps": 0,
    "optimizer.learning_rate": 0.03,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.top_k": -1}, r"rollout\.top_k=-1: make it 0 for all tokens, or 2 or more"),
        ({"rollout.top_k": 1}, r"rollout\.top_k=1"),
        ({"rollout.top_p": 0.0}, r"rollout\.top_p=0\.0: make it above 0 and at most 1"),
        ({"rollout.top_p": float("nan")}, r"rollout\.top_p=nan"),
        ({"rollout.top_p": 1.5}, r"rollout\.top_p=1\.5"),
        ({"rollout.min_p": 1.0}, r"rollout\.min_p=1\.0: make it 0 for all tokens, or more"),
        ({"rollout.min_p": -0.1}, r"rollout\.min_p=-0\.1"),
        ({"rollout.support": "full"}, r"rollout\.support='full' without rollout\.top_k"),
        (
            {"rollout.support": "full", "rollout.top_p": 0.9},
            r"rollout\.support='full' with objective\.policy='\w+'.*decoupled_ppo",
        ),
        (
            {"rollout.support": "full", "rollout.top_p": 0.9, "objective.policy": "remix"},
            r"objective\.policy='remix'",
        ),
        ({"rollout.top_k": 5, "generators": 1}, r"top_k.*5.* with generators=1"),
        ({"rollout.top_k": 5, "nucleus.mass": 0.5}, r"top_k.*5.* with extensions .*=\['nucleus'\]"),
    ],
)  # fmt: skip
def test_bad_values_and_pairs_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        assemble.check(tiny.config(tmp_path, **changes))


def gaps(directory):
    return [row["logp_gap_max"] for row in metrics.read(directory)]


def first_rollouts(directory):
    return list(jsonl.read(directory / "rollouts/000001.jsonl"))


FLIGHT = {"rollout.in_flight": 1.5, "sampler.chunk": 2, "steps": 3, "checkpoint.every": 1}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run whose steps leave rollouts unfinished."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    tiny.run(directory, **SHORT | CUT | FLIGHT)
    return directory


@pytest.mark.broad
@pytest.mark.exact("sampler and trainer agree to 1e-4 over the recorded support")
def test_sampler_and_trainer_agree_over_the_support(straight):
    assert gaps(straight)[0] < 1e-4
    rows = first_rollouts(straight)
    kept = np.concatenate([row["kept"] for row in rows])
    assert kept.min() >= 1 and kept.max() == 6
    entropies = np.concatenate([row["entropy"] for row in rows])
    assert np.all(entropies <= np.log(kept) + 1e-3)


EPISODES = {
    "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 60, "packing.row_length": 128,
}  # fmt: skip
FIRST = "two updates, a reference, a critic"
WAYS = {
    FIRST: {
        "updates_per_batch": 2, "objective.kl_coef": 0.1, "objective.entropy_coef": 0.01,
        "critic": {},
    },
    "proximal policy": {"updates_per_batch": 2, "objective.policy": "decoupled_ppo"},
    "chunks": {"rollout.max_new_tokens": 9, "rollout.chunks": Chunks(4, 2)},
    "adapters": {"lora.rank": 4},
    "replay": {"replay.groups": 2, "replay.size": 3, "optimizer.learning_rate": 0.0},
    "guidance": {"guidance.args": {"attempts": 2}},
    "micro-batches, no shared prompts": {
        "packing.micro_batch_tokens": 64, "packing.share_prompts": False,
    },
    "asynchronous": {
        "asynchronous.staleness": 1, "asynchronous.schedule": "lockstep:2", "steps": 3,
        "optimizer.learning_rate": 0.0,
    },
    "episodes of several contexts": EPISODES | {
        "task": "html_form", "rollout.turn_tokens": 2,
        "task_args": {"fields": 1, "compress": True, "symbols": True},
    },
    "episodes within the decode loop": EPISODES | {
        "task": "keydoor", "task_args": {"level": 1, "turns": 4}, "rollout.turn_tokens": 1,
        "rollout.on_device": True,
    },
}  # fmt: skip


def marker(way):
    return pytest.mark.broad if way in (FIRST, "episodes of several contexts") else pytest.mark.slow


@pytest.mark.parametrize("way", [pytest.param(w, marks=marker(w)) for w in WAYS])
def test_every_way_of_training_is_over_the_support(tmp_path, way):
    """Where older weights sampled, nothing is learned, so that no change of the policy is a gap."""
    loop.train(tiny.config(tmp_path, **SHORT | CUT | WAYS[way]))
    rows = list(metrics.read(tmp_path))
    assert all(np.isfinite(row["loss"]) and row["skipped"] == 0 for row in rows)
    assert max(gaps(tmp_path)) < 1e-4


@pytest.mark.broad
@pytest.mark.exact("a truncated run that is killed and continued equals an uninterrupted one")
def test_killed_with_rollouts_in_flight_and_continued(straight, tmp_path):
    assert tiny.kill_at(tiny.start(tmp_path, **SHORT | CUT | FLIGHT), "train 2")
    tiny.run(tmp_path, **SHORT | CUT | FLIGHT)
    assert tiny.artefacts(tmp_path) == tiny.artefacts(straight)


@pytest.mark.slow
def test_the_full_softmax_has_a_gap_that_the_recorded_support_has_not(tmp_path):
    full = {"rollout.support": "full", "objective.policy": "decoupled_ppo"}
    loop.train(tiny.config(tmp_path, **SHORT | CUT | full))
    assert gaps(tmp_path)[0] > 0.1
    assert "kept" not in first_rollouts(tmp_path)[0]
