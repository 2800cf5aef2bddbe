"""What experts wrote, as the policy before the first update has it: likelihoods and version."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from jaxrl.config import Config
from jaxrl.extensions import replay
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.run import extension
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import TrainState
from tests.jaxrl.batches import batch

STATE = TrainState({}, {}, np.int32(7))


@pytest.fixture(autouse=True)
def on_one_device():
    """Experts' tokens are scored on a mesh."""
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        yield


def context(policy="ppo_clip"):
    """One whose score is -2 of each token."""

    def score(params, packed, restriction):
        return np.full((len(packed.computed), packed.length), -2.0, np.float32)

    config = dataclasses.replace(Config(), objective=ObjectiveConfig(policy=policy))
    return types.SimpleNamespace(config=config, score=score, restriction=lambda state: None)


def demonstrated(share=4):
    """A batch of which each fourth sequence is an expert's, at a version that is long past."""
    data = batch(0, groups=2)
    return data.replace(expert=np.arange(8) % share == 0)


def test_experts_tokens_have_the_likelihoods_and_the_version_of_the_policy_of_now():
    data = demonstrated()
    got = extension.with_expert_logp(context(), STATE, data)
    wrote = data.expert[:, None] & data.action_mask
    assert (got.behavior_logp[wrote] == -2.0).all()
    np.testing.assert_array_equal(got.policy_version, np.where(wrote, 7, data.policy_version))
    assert got.policy_version.dtype == np.int32
    own = ~data.expert
    np.testing.assert_array_equal(got.behavior_logp[own], data.behavior_logp[own])


@pytest.mark.parametrize("policy", ["sft", "ppo_clip"])
def test_what_experts_wrote_alone_has_a_version_too(policy):
    """Though its likelihoods are computed only where the objective asks for them."""
    data = demonstrated(share=1)
    got = extension.with_expert_logp(context(policy), STATE, data)
    np.testing.assert_array_equal(got.policy_version, np.where(data.action_mask, 7, 0))
    assert (got.behavior_logp[data.action_mask] == -2.0).all() == (policy == "ppo_clip")


def test_what_no_expert_wrote_stays_as_it_is():
    data = batch(0, groups=2)
    assert extension.with_expert_logp(context(), STATE, data) is data


def test_a_group_with_an_expert_is_replayed_until_it_is_too_old():
    data = demonstrated()
    versions = np.where(data.action_mask & ~data.expert[:, None], 7, 0).astype(np.int32)
    data = extension.with_expert_logp(context(), STATE, data.replace(policy_version=versions))
    buffer = replay.open_buffer(ReplayConfig(groups=2, size=8, max_age=2), seed=0)
    buffer.mix(data, 4, 7)
    for version, there in ((9, True), (10, False)):
        mixed = buffer.mix(batch(1, groups=2), 4, version)
        assert mixed.action_mask[8:].any() == there
