"""An episode that branches: packed as a trie it gives what its contexts give apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.models import decoder
from jaxrl.training import train_step, tries
from jaxrl.training.logprobs import micro_logprobs, spread
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.tries import WHOLE
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


@pytest.mark.broad
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


@pytest.mark.broad
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


def laid_by_recursion(branches, at, position, size, visible_until):
    """As `tries.lay`, each branch with all that continues it before the next."""
    visible_until[at : at + size] = at + size
    laid, end = [], at + size
    for branch in sorted(branches, key=lambda each: -each.sees):
        own = branch.stop - branch.start
        cell, start = end, position + branch.sees
        laid.append((branch, cell, start, at + branch.sees - 1))
        laid += laid_by_recursion(branch.branches, cell, start, own, visible_until)
        end += own + sum(each.stop - each.start for each in [*branch.whole()][1:])
        visible_until[at : at + branch.sees] = end
    return laid


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000))
def test_branches_are_laid_out_depth_first(seed):
    data = branched(batch(seed, 3, 3), seed)
    mask = data.action_mask
    acts = mask.any(axis=1)
    end = np.where(acts, mask.shape[1] - np.argmax(mask[:, ::-1], axis=1), 0)
    first = np.where(acts, np.argmax(mask, axis=1), 0)
    made = tries.branches(data.tokens, mask, first, end, data.extra["parent"], WHOLE)
    for tree in made:
        found, wanted = np.zeros((2, 64), np.int32)
        prompt = len(tree.prompt)
        laid = tries.lay([tree], 3, 0, prompt, found)
        expected = laid_by_recursion([tree], 3, 0, prompt, wanted)
        for one, other in zip(laid, expected, strict=True):
            assert one.branch is other[0] and one[1:] == other[1:]
        np.testing.assert_array_equal(found, wanted)


def test_an_episode_of_many_contexts_is_packed():
    """Each begins anew after some token of the one before: a trie as deep as there are turns."""
    turns, prompt = 1500, 3
    own = np.arange(turns) * 4 + prompt
    width = prompt + 4 * turns
    parent = np.arange(-1, width - 1, dtype=np.int32)
    parent[own[1:]] = own[1:] - 3  # the second token of the turn before
    mask = np.zeros((1, width), bool)
    mask[0, prompt:] = np.tile([False, True, True, False], turns)
    zeros = np.zeros((1, width), np.float32)
    data = Trajectory(
        np.arange(width, dtype=np.int32)[None], mask, zeros, zeros.astype(np.int32), zeros[:, 0],
        np.ones(1, bool), np.zeros(1, np.int32), extra={"parent": parent[None]},
    )  # fmt: skip
    packed, _ = pack(data, PackingConfig(micro_batch_tokens=1 << 14))
    acted = packed.sequence[0, 0] >= 0
    assert acted.sum() == 2 * turns
    target, predictor = packed.target[0, 0][acted], packed.predictor[0, 0][acted]
    np.testing.assert_array_equal(packed.tokens[0, 0][predictor], parent[target])
    depth = packed.positions[0, 0][predictor]
    assert depth.max() == prompt + 2 * (turns - 1) + 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=9),
    st.integers(1, 40),
)
def test_joined_texts_are_paths_in_which_each_token_stands_once(texts, most):
    """Against the set of all beginnings, whose number is that of a trie's tokens."""
    joined = tries.join(texts, (7, 8), most)
    assert sorted(n for sequence in joined for n in sequence.ends) == [*range(len(texts))]
    for sequence in joined:
        assert len(sequence.tokens) <= most or len(sequence.ends) == 1
        for n, end in sequence.ends.items():
            assert sequence.tokens[end : end + 2] == [7, 8]
            assert sequence.parent[end] == sequence.parent[end + 1]
            path, at = [], sequence.parent[end]
            while at >= 0:
                assert sequence.parent[at] < at
                path.append(sequence.tokens[at])
                at = sequence.parent[at]
            assert path[::-1] == texts[n]
        own = [texts[n] for n in sequence.ends]
        beginnings = {tuple(text[:size]) for text in own for size in range(1, len(text) + 1)}
        assert len(sequence.tokens) == len(beginnings) + 2 * len(own)
