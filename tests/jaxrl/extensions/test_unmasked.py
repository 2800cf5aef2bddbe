"""Observations as actions: which tokens, under which log-probabilities, and in a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import Config
from jaxrl.extensions.unmasked import UnmaskedConfig, unmasked, with_observations
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.record import metrics
from jaxrl.run import loop
from jaxrl.types import TrainState
from tests.jaxrl import tiny
from tests.jaxrl.batches import MODEL, batch
from tests.jaxrl.extensions.contexts import context


def observed(data):
    """The batch, of whose actions every third was not the policy's, and which tokens those are."""
    read = np.asarray(data.action_mask) & (np.arange(data.tokens.shape[1]) % 3 == 0)
    mask = data.action_mask & ~read
    logp = np.where(mask, data.behavior_logp, 0).astype(np.float32)
    return dataclasses.replace(data, action_mask=mask, behavior_logp=logp), read


def test_everything_between_the_first_action_and_the_last():
    data = batch(0)
    mask = np.array([list(map(int, row)) for row in ("0010100", "0000000", "1110001")], bool)
    whole = with_observations(dataclasses.replace(data, action_mask=mask)).action_mask
    assert ["".join(map(str, row.astype(int))) for row in whole] == [
        "0011100",
        "0000000",
        "1111111",
    ]


def test_the_log_probabilities_are_the_policys_and_its_own_tokens_keep_theirs():
    data, read = observed(batch(1, longest=15, length=32))
    params = decoder.init(MODEL, jax.random.key(0))
    state = TrainState(params, None, np.int32(7))
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        got = unmasked(UnmaskedConfig()).prepare(context(), state, data)
    added = got.action_mask & ~data.action_mask
    first, last = np.argmax(data.action_mask, 1), data.tokens.shape[1] - 1
    ends = last - np.argmax(data.action_mask[:, ::-1], 1)
    inside = (np.arange(last + 1) > first[:, None]) & (np.arange(last + 1) < ends[:, None])
    assert (added == (read & inside)).all() and added.any()
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    hidden = decoder.hidden(MODEL, params, data.tokens, position, jnp.full((count, width), width))
    logits = (hidden @ decoder.unembedding(params).T)[:, :-1]
    plain = jnp.take_along_axis(jax.nn.log_softmax(logits), data.tokens[:, 1:, None], -1)[..., 0]
    plain = np.pad(plain, ((0, 0), (1, 0)))
    np.testing.assert_allclose(got.behavior_logp[added], plain[added], atol=2e-5)
    assert (got.behavior_logp[data.action_mask] == data.behavior_logp[data.action_mask]).all()
    assert (got.policy_version[added] == 7).all()
    assert (got.policy_version[~added] == data.policy_version[~added]).all()


@pytest.mark.broad
def test_a_run_trains_on_observations(tmp_path):
    world = {"task": "keydoor", "task_args": {"level": 1, "turns": 4}, "warm_start.steps": 0}
    turns = {
        "rollout.turn_tokens": 1,
        "rollout.max_new_tokens": 44,
        "rollout.max_prompt_tokens": 16,
    }
    known = {}
    for name, given in (("masked", {}), ("unmasked", {"unmasked": {}})):
        loop.train(tiny.config(tmp_path / name, steps=3, **world, **turns, **given))
        known[name] = metrics.read(tmp_path / name)
    assert all(row["logp_gap_max"] < 1e-4 for rows in known.values() for row in rows)
    first = [rows[0] for rows in known.values()]
    assert first[0]["reward/mean"] == first[1]["reward/mean"]  # nothing was trained on before it
    assert first[0]["grad_norm"] != first[1]["grad_norm"]


@pytest.mark.parametrize(
    ("task", "extensions", "why"),
    [
        ("arithmetic", ("unmasked",), "unmasked: task 'arithmetic' is answered in one turn"),
        ("self_play", ("unmasked",), "unmasked: the task's episodes have 2 agents"),
        ("keydoor", ("critic", "unmasked"), "unmasked after critic: list it first"),
        ("keydoor", ("corrector", "unmasked"), "unmasked with corrector"),
    ],
)
def test_what_cannot_be_is_refused(task, extensions, why):
    given = {"task": "board_game", "task_args": {"opponent": "self"}} if task == "self_play" else {
        "task": task
    }  # fmt: skip
    made = Config(**given, extensions=dict.fromkeys(extensions))
    with pytest.raises(ValueError, match=why):
        unmasked(UnmaskedConfig()).check(made)
    unmasked(UnmaskedConfig()).check(Config(task="keydoor", extensions={"unmasked": None}))


def test_an_episode_of_several_contexts_is_refused():
    """What a new context begins with is read again, and no observation."""
    data = batch(0)
    count, width = data.tokens.shape
    mask = np.tile((np.arange(width) % 4 == 0) & (np.arange(width) < 13), (count, 1))
    parent = np.tile(np.arange(-1, width - 1), (count, 1))
    one = dataclasses.replace(data, action_mask=mask, extra={"parent": parent})
    assert with_observations(one).action_mask.sum() == 13 * count
    parent = parent.copy()
    parent[2, 7] = 0
    with pytest.raises(ValueError, match="goes on in another context"):
        with_observations(dataclasses.replace(one, extra={"parent": parent}))
