"""An episode that branches: packed as a trie it gives what its contexts give apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.models import decoder
from jaxrl.training import train_step
from jaxrl.training.logprobs import micro_logprobs, spread
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.types import Trajectory
from tests.jaxrl.batches import MODEL, batch
from tests.jaxrl.training.test_packing import branched


def apart(data: Trajectory) -> tuple[Trajectory, np.ndarray]:
    """Each action as the end of a sequence of its own, and its place [N', 2] in the batch."""
    parent, found = data.extra["parent"], []
    for n, t in zip(*np.nonzero(data.action_mask), strict=True):
        path = [t]
        while parent[n, path[-1]] >= 0:
            path.append(parent[n, path[-1]])
        found.append((n, t, data.tokens[n, path[::-1]]))
    count, width = len(found), max(len(path) for *_, path in found)
    tokens, mask = np.zeros((count, width), np.int32), np.zeros((count, width), bool)
    for i, (_, _, path) in enumerate(found):
        tokens[i, : len(path)] = path
        mask[i, len(path) - 1] = True
    zeros = np.zeros((count, width), np.float32)
    made = Trajectory(
        tokens, mask, zeros, zeros.astype(np.int32), zeros[:, 0], mask.any(1),
        np.arange(count, dtype=np.int32),
    )  # fmt: skip
    return made, np.array([place[:2] for place in found])


@functools.partial(jax.jit, static_argnames="micro_batches")
@functools.partial(jax.value_and_grad, has_aux=True)
def weighted(params, packed, weights, micro_batches):
    """A sum over all actions, with a weight each, and their log-probabilities [N, T]."""
    total = jnp.zeros(weights.shape)
    for i in range(micro_batches):
        one = jnp.int32(i)
        scored = micro_logprobs(MODEL, params, packed, one, temperature=1.0, remat="none")
        total += spread(packed, one, *scored)[0]
    return jnp.vdot(total, weights), total


@pytest.mark.exact("a trie gives the log-probs and gradient of its contexts apart, 1e-5")
def test_a_trie_gives_what_its_contexts_give_apart():
    data = branched(batch(5, groups=2, size=2), 5)
    params = decoder.init(MODEL, jax.random.key(0))
    alone, places = apart(data)
    weights = np.random.default_rng(0).normal(size=data.tokens.shape).astype(np.float32)
    own = np.zeros(alone.tokens.shape, np.float32)
    own[alone.action_mask] = weights[tuple(places.T)]
    packed, cost = pack(data, PackingConfig(64, bucket=8))
    (value, logp), gradient = weighted(params, packed, weights, int(packed.micro_batches))
    rows, _ = pack(alone, PackingConfig(4096, bucket=8))
    (expected, one), slope = weighted(params, rows, own, int(rows.micro_batches))
    np.testing.assert_allclose(logp[tuple(places.T)], one[alone.action_mask], atol=1e-5)
    assert cost["shared_share"] > 0.1 and not np.any(np.asarray(logp)[~data.action_mask])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for leaf, want in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(leaf, want, atol=1e-5 * max(1.0, np.abs(want).max()))


@pytest.mark.exact("an update on episodes that branch does not depend on micro-batches, 1e-4")
def test_an_episode_that_branches_counts_once_however_it_is_split():
    """As one sequence of a loss that looks at whole sequences."""
    data = branched(batch(3, groups=4, size=2), 3)
    wide = {"clip_low": 0.9, "clip_high": 9.0}  # so that no gradient is cut
    config = ObjectiveConfig("gspo", policy_args=wide, aggregation="seq-mean-token-mean")
    optimizer, params = optax.sgd(1.0), decoder.init(MODEL, jax.random.key(0))
    update = train_step.make_update(
        MODEL, config, optimizer, temperature=1.0, max_new_tokens=9, remat="none"
    )
    found = []
    for packing in (PackingConfig(4096, row_length=64), PackingConfig(24, row_length=24)):
        packed, _ = pack(data, packing)
        state = train_step.init_state(jax.tree.map(jnp.array, params), optimizer)
        after, metrics = update(state, data, packed, None)
        found.append((packed, jax.device_get(after.params), metrics["loss"]))
    (one, left, loss), (several, right, other) = found
    assert int(one.micro_batches) == 1 < int(several.micro_batches) and not several.cut
    np.testing.assert_allclose(loss, other, rtol=1e-5, atol=1e-6)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, params)
    assert max(jax.tree.leaves(moved)) > 1e-3
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
