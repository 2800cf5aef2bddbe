"""Entropy, length and calibration terms against float64 formulas and hand-worked numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses import regularizers
from tests.losses import checks

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 7))


def probabilities(z):
    e = np.exp(z)
    return e / e.sum(-1, keepdims=True)


def entropy(logits):
    p = probabilities(logits)
    return -np.sum(p * np.log(p), -1)


def test_entropy_and_z_loss(x64):
    checks.agree(regularizers.entropy, entropy, {"logits": LOGITS})
    checks.agree(
        regularizers.z_loss, lambda logits: np.log(np.exp(logits).sum(-1)) ** 2, {"logits": LOGITS}
    )


def test_a_banned_token_leaves_the_entropy_finite():
    value, grad = jax.value_and_grad(regularizers.entropy)(jnp.array([0.0, 0.0, -jnp.inf]))
    np.testing.assert_allclose(value, np.log(2.0), rtol=1e-6)
    assert np.all(np.isfinite(grad))


@pytest.mark.exact("the entropy computed in chunks equals the whole")
def test_chunked_entropy_equals_the_whole(x64):
    hidden = np.random.default_rng(1).normal(size=(5, 3, 4))
    kernel = np.random.default_rng(2).normal(size=(4, 9))

    def oracle(hidden, kernel):
        return entropy(hidden @ kernel)

    ours = functools.partial(regularizers.entropy_chunked, chunk_size=4)
    live = {"hidden": hidden, "kernel": kernel}
    np.testing.assert_allclose(ours(**live), oracle(**live), rtol=1e-5)
    grads = jax.grad(lambda a: jnp.sum(ours(**a)))({k: jnp.asarray(x) for k, x in live.items()})
    for name in live:
        want = checks.finite_differences(
            lambda x, name=name: oracle(**(live | {name: x})).sum(), live[name]
        )
        np.testing.assert_allclose(grads[name], want, rtol=1e-4, atol=1e-5)


def test_high_entropy_mask_keeps_the_share_asked_for():
    h = jnp.arange(20.0).reshape(4, 5)
    mask = jnp.ones((4, 5), bool).at[3].set(False)
    kept = regularizers.high_entropy_mask(h, mask=mask, fraction=0.2)
    np.testing.assert_array_equal(np.flatnonzero(kept), [12, 13, 14])
    assert not regularizers.high_entropy_mask(h, mask=jnp.zeros_like(mask)).any()


def test_overlong_penalty_by_hand():
    got = regularizers.overlong_penalty(
        jnp.array([10, 80, 90, 100, 120]), max_length=100, buffer=20
    )
    np.testing.assert_allclose(got, [0.0, 0.0, -0.5, -1.0, -1.0])


def test_relative_length_reward_by_hand():
    lengths = jnp.array([10, 20, 30, 7, 7])
    groups = jnp.array([0, 0, 0, 1, 1])
    got = regularizers.relative_length_reward(
        jnp.array([1.0, 1.0, 0.0, 1.0, 0.0]), lengths, groups, num_groups=3
    )
    np.testing.assert_allclose(got, [0.5, 0.0, -0.5, 0.0, 0.0])
    valid = jnp.array([True, True, True, True, False])
    for failed in (0, 99):  # the length of a completion that has no score
        got = regularizers.relative_length_reward(
            jnp.ones(5), jnp.array([4, 5, 6, 6, failed]), jnp.zeros(5, int), num_groups=2,
            valid=valid,
        )  # fmt: skip
        np.testing.assert_allclose(got, [0.5, 0.0, -0.5, -0.5, 0.0])
    wrong = regularizers.relative_length_reward(jnp.zeros(5), lengths, groups, num_groups=3)
    np.testing.assert_allclose(wrong, [0.0, 0.0, -0.5, 0.0, 0.0])


def test_target_length_penalty_by_hand():
    got = regularizers.target_length_penalty(jnp.array([90, 100, 130]), 100, weight=0.01)
    np.testing.assert_allclose(got, [-0.1, 0.0, -0.3], rtol=1e-6)


def test_brier_is_proper_and_the_calibrated_reward_builds_on_it(x64):
    q = np.linspace(0, 1, 101)
    for truth in (0.2, 0.7):
        score = truth * regularizers.brier(q, np.ones(101)) + (1 - truth) * regularizers.brier(
            q, np.zeros(101)
        )
        assert abs(q[np.argmin(score)] - truth) < 1e-9
    got = regularizers.calibrated_reward(np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.5, 0.5]))
    np.testing.assert_allclose(got, [1.0, 0.75, -0.25])
    checks.agree(
        regularizers.brier,
        lambda confidence, correct: (confidence - correct) ** 2,
        {"confidence": q[::20]},
        {"correct": np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])},
    )


def test_loop_onset_by_hand():
    """None, from the start, period 2 from the middle, twice is not enough, cut by the mask."""
    tokens = jnp.array(
        [
            [9, 1, 2, 3, 4, 5, 6, 7],
            [9, 5, 5, 5, 1, 2, 3, 4],
            [9, 1, 6, 7, 6, 7, 6, 7],
            [9, 1, 6, 7, 6, 7, 1, 2],
            [9, 9, 9, 1, 2, 3, 3, 3],
        ]
    )
    mask = jnp.ones(tokens.shape, bool).at[:, 0].set(False).at[4, 6:].set(False)
    onset = regularizers.loop_onset(tokens, mask)
    np.testing.assert_allclose(onset, [0.0, 1.0, 1 - 1 / 7, 0.0, 0.0], rtol=1e-6)


def test_loop_onset_against_a_search():
    rng = np.random.default_rng(0)
    tokens, mask = rng.integers(3, size=(60, 12)), np.ones((60, 12), bool)
    mask[:, :2] = False

    def search(row):
        for start in range(10):
            for p in range(1, 5):
                block = list(row[start : start + p])
                if list(row[start : start + 3 * p]) == block * 3:
                    return 1 - start / 10
        return 0.0

    expected = [search(row[2:]) for row in tokens]
    assert 0 < np.count_nonzero(expected) < 60
    got = regularizers.loop_onset(jnp.asarray(tokens), jnp.asarray(mask))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_gates_are_penalised_while_rewards_are_high():
    """Mean |alpha| 0.5: at reward 0.75 its weight is e ** 0.75 - 1, at 0.5 it is 0."""
    gates = jnp.array([[1.0, 0.25], [0.75, 0.0]])
    for rewards, weight in (([1, 1, 0, 1.0], np.exp(0.75) - 1), ([1, 0.0], 0.0)):
        penalty = functools.partial(regularizers.adaptive_sparsity, rewards=jnp.array(rewards))
        value, grad = jax.value_and_grad(penalty)(gates)
        np.testing.assert_allclose(value, 0.5 * weight, rtol=1e-6)
        np.testing.assert_allclose(grad[0], 0.25 * weight, rtol=1e-6)
    rewards = jnp.array([0.9, 0.8])
    moved = jax.grad(lambda r: regularizers.adaptive_sparsity(gates, r))(rewards)
    np.testing.assert_array_equal(moved, 0.0)
