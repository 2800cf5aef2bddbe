"""What a batch trains on and what its rewards become, against plain loops over groups."""

import itertools
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.losses.advantages import rows, shaping

FEW = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 9999)


def batch(seed):
    """Twelve samples of up to four interleaved groups; two are invalid and NaN; rewards tie."""
    rng = np.random.default_rng(seed)
    valid = np.ones(12, bool)
    valid[rng.choice(12, 2, replace=False)] = False
    rewards = np.where(valid, rng.integers(0, 4, 12) / 3, np.nan)
    return rewards, rng.choice([0, 1, 3, 6], 12), valid, rng.random(12) < 0.3


def members(groups, valid):
    return [np.flatnonzero((groups == g) & valid) for g in set(groups)]


@FEW
@given(seeds)
def test_par_is_the_preference_over_the_reference(seed):
    rewards, groups, valid, expert = batch(seed)
    want = np.zeros(12)
    for mine in members(groups, valid):
        references = rewards[mine][expert[mine]]
        reference = references.mean() if len(references) else 0.0
        want[mine] = 1 / (1 + np.exp(reference - rewards[mine]))
    got = shaping.par(jnp.asarray(rewards), groups, num_groups=7, expert=expert, valid=valid)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_par_by_hand():
    """sigmoid(1) = 0.7310586, and the reference itself is at 1/2."""
    got = shaping.par(
        jnp.array([3.0, 2.0, 50.0]), jnp.zeros(3, int), num_groups=1,
        expert=np.array([False, True, False]),
    )  # fmt: skip
    np.testing.assert_allclose(got, [0.7310586, 0.5, 1.0], atol=1e-6)


@FEW
@given(seeds)
def test_dual_is_the_sum_of_both_rewards(seed):
    """Equations 5 to 7 with a reward of 1 for the form and for a refusal, row by row."""
    _, groups, valid, refuses = batch(seed)
    rng = np.random.default_rng(seed)
    formed, helpful, harmful = rng.random(12) < 0.6, rng.normal(size=12), groups == 3
    want, given = np.zeros(12), np.full(12, np.nan)
    for mine in filter(len, members(groups, valid)):
        mean, std = helpful[mine].mean(), helpful[mine].std()
        for i in mine:
            safe = float(formed[i]) + (refuses[i] if harmful[i] else -float(refuses[i]))
            own = not harmful[i] and not refuses[i]
            want[i] = safe + (max((helpful[i] - mean) / std, 0.0) if own and std else 0.0)
            given[i] = safe + (helpful[i] if own else 0.0)
    parts = np.stack([np.where(harmful, 0.0, helpful), refuses], axis=1)
    got = shaping.dual(jnp.asarray(given), jnp.asarray(parts), groups, num_groups=7, valid=valid)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_dual_by_hand():
    """A harmless prompt, whose last answer is a refusal; then a harmful one, refused once."""
    helpful, refused = [0.2, 0.5, 0.9, 0.4, 0, 0], [0, 0, 0, 1, 1, 0]
    rewards = jnp.array([1.2, 1.5, 1.9, 0.0, 2.0, 1.0])
    parts, groups = jnp.array([helpful, refused]).T, jnp.array([0, 0, 0, 0, 1, 1])
    got = shaping.dual(rewards, parts, groups, num_groups=2)
    np.testing.assert_allclose(got, [1.0, 1.0, 2.568929, 0.0, 2.0, 1.0], atol=1e-5)
    with pytest.raises(ValueError, match="takes the parts helpful,refused, but the reward has few"):
        shaping.dual(rewards, jnp.zeros((6, 1)), groups, num_groups=2)


def test_unsolved_are_the_samples_of_prompts_whose_greedy_answer_fails():
    got = rows.unsolved(jnp.array([1.0, 0.0, 0.5, -1.0]))
    np.testing.assert_array_equal(got, [False, True, True, True])
    np.testing.assert_array_equal(rows.unsolved(jnp.array([1.0, 2.0]), solved=2.0), [True, False])


@FEW
@given(seeds)
def test_a_label_settles_where_a_sample_is_as_good(seed):
    rewards, groups, valid, expert = batch(seed)
    want = np.where(valid, rewards, 0.0)
    for mine in members(groups, valid):
        own = rewards[mine][~expert[mine]]
        for i in mine[expert[mine]]:
            if len(own) and own.max() >= rewards[i]:
                want[i] = own.mean()
    got = shaping.settled_label(
        jnp.asarray(rewards), groups, num_groups=7, expert=expert, valid=valid
    )
    np.testing.assert_allclose(got, want, atol=1e-6)


@FEW
@given(seeds, st.integers(0, 3), st.integers(0, 2))
def test_the_ends_of_the_ranking(seed, best, worst):
    rewards, groups, valid, _ = batch(seed)
    want = np.zeros(12, bool)
    for mine in members(groups, valid):
        ranked = mine[np.argsort(-rewards[mine], kind="stable")]
        want[ranked[:best]] = True
        want[ranked[len(ranked) - min(worst, len(ranked)) :]] = True
    got = rows.best_worst(jnp.asarray(rewards), groups, best=best, worst=worst, valid=valid)
    np.testing.assert_array_equal(got, want)


@FEW
@given(seeds)
def test_priority_now_and_compensation_later(seed):
    rewards, groups, valid, _ = batch(seed)
    rng = np.random.default_rng(seed)
    lengths, age = rng.integers(1, 5, 12), rng.integers(0, 3, 7)[groups]
    want = np.zeros(12, bool)
    for mine in members(groups, valid):
        middle = np.median(lengths[mine]) if len(mine) else 0
        for i in mine:
            good = rewards[i] >= 0.5
            clear = (good and lengths[i] <= middle) or (not good and lengths[i] > middle)
            want[i] = clear if age[i] == 0 else not clear
    got = rows.recomposed(
        jnp.asarray(rewards), jnp.asarray(lengths), groups, age=jnp.asarray(age), valid=valid
    )
    np.testing.assert_array_equal(got, want)


def test_experts_can_be_left_out():
    np.testing.assert_array_equal(rows.sampled(jnp.array([True, False])), [False, True])


@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_rewards_are_one_a_sample(shape):
    with pytest.raises(ValueError, match="rewards of best_worst has shape"):
        rows.best_worst(jnp.zeros(shape), jnp.zeros(3, int))


def test_spread_keeps_groups_that_differ_enough():
    """By hand: deviations 0.5, 0.1 and 0, so a mean of 0.2 over the valid samples of 4, 4 and 4."""
    rewards = np.array([0.0, 1, 0, 1, 0.4, 0.6, 0.4, 0.6, 0.3, 0.3, 0.3, 0.3, np.nan])
    groups = np.array([0] * 4 + [1] * 4 + [2] * 5)
    valid = np.arange(13) < 12
    for share, kept in [(0.4, 8), (0.6, 4), (0.0, 8)]:
        got = rows.spread(
            jnp.asarray(rewards), groups, num_groups=13, share=share, valid=jnp.asarray(valid)
        )
        np.testing.assert_array_equal(got, np.arange(13) < kept)


def test_rows_of_this_step_alone():
    np.testing.assert_array_equal(rows.fresh(jnp.array([0, 3, 0])), [True, False, True])


def cosine(left, right):
    """Of bags of words and of pairs of words; by name, not hashed."""
    a, b = (
        Counter([*said, *itertools.pairwise(said)]) if len(said) else Counter()
        for said in (left, right)
    )
    norms = [sum(n * n for n in bag.values()) ** 0.5 for bag in (a, b)]
    return sum(n * b[word] for word, n in a.items()) / max(norms[0] * norms[1], 1e-6)


@pytest.mark.broad
@FEW
@given(seeds)
def test_episodic_rewards_likeness_to_success_and_novelty(seed):
    """Against loops over words; few words and many features leave next to no collision."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 6, (10, 7))
    mask = np.zeros((10, 7), bool)
    mask[:, 3:6] = True
    mask[9] = False  # a replayed row that is only compared with
    rewards, valid = rng.integers(0, 2, 10).astype(float), np.arange(10) != 8
    age = np.array([0, 0, 0, 0, 5, 5, 5, 5, 5, 5])
    got = shaping.episodic(
        jnp.asarray(rewards), jnp.asarray(tokens), jnp.asarray(mask), age=jnp.asarray(age),
        valid=valid, neighbours=10, exploit=0.5, explore=0.25, features=4096,
    )  # fmt: skip
    want = rewards.copy()
    want[8] = 0.0
    for i in range(4):
        alike = {j: cosine(tokens[i, 3:6].tolist(), tokens[j, 3:6].tolist()) for j in range(4, 8)}
        passed = max((s for j, s in alike.items() if rewards[j] >= 0.5), default=0.0)
        failed = max((s for j, s in alike.items() if rewards[j] < 0.5), default=0.0)
        want[i] += 0.5 * (passed - failed) + 0.25 * (1 - max(alike.values()))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.broad
def test_episodic_looks_at_the_nearest_prompts():
    """Row 0 asks as row 1 did, which failed; row 2 asks otherwise, and its success is no model."""
    tokens = jnp.array([[5, 6, 1, 2], [5, 6, 1, 2], [8, 9, 1, 2]])
    mask = jnp.array([[False, False, True, True]] * 3)
    given = {"age": jnp.array([0, 4, 4]), "exploit": 0.5, "explore": 0.25, "neighbours": 1}
    got = shaping.episodic(jnp.array([1.0, 0.0, 1.0]), tokens, mask, **given)
    np.testing.assert_allclose(got, [0.5, 0.0, 1.0], atol=1e-5)
    alone = shaping.episodic(jnp.array([1.0]), tokens[:1], mask[:1], age=jnp.zeros(1, int))
    np.testing.assert_allclose(alone, [1.0])


def test_completions_that_were_cut_off_are_left_out():
    mask = rows.stopped(jnp.asarray([True, False, True]))
    assert mask.dtype == bool and mask.tolist() == [True, False, True]
