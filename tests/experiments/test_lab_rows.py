"""What experts wrote and what is not trained on again, in the lab as in the real loop."""

import itertools

import jax
import numpy as np
import pytest

from experiments import lab
from experiments.lab import collect, critic, policy, train
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.models import decoder

TASK = lab.cipher(((10, 0.8), (36, 0.2)), (((2, 1), 0.5), ((0, 2), 0.5)), filler_rate=0.1, slack=2)
MODEL = policy.shape(TASK.vocabulary, TASK.prompt_length + TASK.budget)
SEEDS = 2


@pytest.fixture(scope="module")
def params():
    return jax.vmap(lambda k: decoder.init(MODEL, k))(jax.random.split(jax.random.key(0), SEEDS))


@pytest.mark.broad
def test_a_critic_learns_from_what_is_trained_on(params):
    """As from a batch whose other sequences have no actions."""
    ids = np.tile(np.arange(2), (SEEDS, 1))
    arm = lab.Arm(prompts=2, group_size=4)
    given, _ = collect.collect(TASK, MODEL, params, arm, ids, 0, versions=np.zeros(SEEDS, int))
    given = given.replace(rewards=np.tile(np.arange(8, dtype=np.float32), (SEEDS, 1)))
    trained = np.tile(np.arange(8) % 4 > 1, (SEEDS, 1))
    steps = critic.steps(CriticConfig(), MODEL, train._OPTIMIZER)
    first = steps.init(params)
    batch = steps.advised(first, given, None)
    masked = batch.replace(action_mask=batch.action_mask & trained[..., None])
    after = [steps.update(first, each) for each in (batch.replace(trained=trained), masked, batch)]
    ours, theirs, other = (jax.tree.leaves(each.params) for each in after)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(ours, other, strict=True))


@pytest.mark.broad
def test_an_experts_tokens_are_of_the_step_that_they_came_in(params, monkeypatch):
    """Their likelihoods and their version, though the sampler is older; also where replayed."""
    shares, seen = train.packing.shares, []

    def kept(batch, count):
        seen.append(batch)
        return shares(batch, count)

    monkeypatch.setattr(train.packing, "shares", kept)
    arm = lab.Arm(
        guidance=GuidanceConfig("expert_rows"), prompts=2, group_size=4,
        replay=ReplayConfig(groups=2, size=2, choose="newest"), sync_every=3,
    )  # fmt: skip
    train.train(TASK, MODEL, params, arm, measure=lambda params, last: {}, steps=3)
    assert len(seen) == 3
    for step, batch in enumerate(seen):
        assert batch.expert[:, :8].any()
        for rows, version in ((slice(8), step), (slice(8, None), step - 1)):
            wrote = batch.action_mask[:, rows] & batch.expert[:, rows, None]
            assert wrote.any() == (version >= 0)
            assert (batch.policy_version[:, rows][wrote] == version).all()
            assert (batch.behavior_logp[:, rows][wrote] < 0).all()
    for old, new in itertools.pairwise(seen):
        np.testing.assert_array_equal(new.behavior_logp[:, 8:], old.behavior_logp[:, :8])
