"""Preference losses as objectives: the pairs of a batch have the loss of `losses.preference`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses.preference import direct, pairs, reward_model
from jaxrl.losses.reduce import aggregate, masking

RNG = np.random.default_rng(0)
SHAPE = (6, 5)
LOGP, REF = (-RNG.exponential(size=SHAPE).astype(np.float32) - 0.1 for _ in range(2))
MASK = RNG.random(SHAPE) < 0.6
MASK[:, 0], MASK[5] = True, False
GROUPS = np.array([0, 1, 0, 1, 2, 2])
REWARDS = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
CHOSEN, REJECTED = [2, 1], [0, 3]
"""Rows of the two pairs; the third group has a row without actions, and so no pair."""


def likelihood(logp):
    return -masking.row_sum(MASK, logp)[np.array(CHOSEN)].sum() / MASK[CHOSEN].sum()


def values(reduce, logp):
    rows = reduce(jnp.asarray(MASK), logp)
    return rows[np.array(CHOSEN)], rows[np.array(REJECTED)]


def referred(function, reduce, **args):
    def loss(logp):
        return function(*values(reduce, logp), *values(reduce, jnp.asarray(REF)), **args)

    return loss


EXPECTED = {
    pairs.pair_dpo: referred(direct.dpo, masking.row_sum, beta=0.3, label_smoothing=0.1),
    pairs.pair_ipo: referred(direct.ipo, masking.row_mean, tau=0.3),
    pairs.pair_simpo: lambda x: direct.simpo(*values(masking.row_mean, x), beta=1.5, gamma=0.2),
    pairs.pair_orpo: lambda x: (
        direct.orpo(*values(masking.row_mean, x), beta=0.3)[0]
        + values(masking.row_mean, x)[0]
        + likelihood(x),
        direct.orpo(*values(masking.row_mean, x))[1],
    ),
    pairs.pair_cpo: lambda x: (
        direct.cpo(*values(masking.row_sum, x), beta=0.3, alpha=0.0)[0] + 0.7 * likelihood(x),
        direct.cpo(*values(masking.row_sum, x), beta=0.3)[1],
    ),
}
ARGS = {
    pairs.pair_dpo: {"beta": 0.3, "label_smoothing": 0.1},
    pairs.pair_ipo: {"tau": 0.3},
    pairs.pair_simpo: {"beta": 1.5, "gamma": 0.2},
    pairs.pair_orpo: {"beta": 0.3},
    pairs.pair_cpo: {"beta": 0.3, "alpha": 0.7},
}


@pytest.mark.exact("a batch of pairs has the mean loss of its pairs")
@pytest.mark.parametrize("function", EXPECTED)
def test_a_batch_of_pairs_has_the_mean_loss_of_its_pairs(function):
    """Value, gradient, and metrics as means over pairs; rows 4 and 5 are taken out of the mean."""
    own = MASK & (GROUPS < 2)[:, None]
    ref = {} if "ref_logp" not in function.__annotations__ else {"ref_logp": REF}

    def objective(logp):
        given = {"mask": own, "group_ids": GROUPS, **ARGS[function], **ref}
        loss, metrics = function(logp, rewards=REWARDS, **given)
        weights = aggregate.weights(own, "seq-mean-token-mean")
        return aggregate.weighted_sum(loss, own, weights), metrics

    (loss, metrics), slope = jax.value_and_grad(objective, has_aux=True)(jnp.asarray(LOGP))
    want, expected = jax.value_and_grad(lambda x: jnp.mean(EXPECTED[function](x)[0]))(LOGP)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-6)
    want = EXPECTED[function](jnp.asarray(LOGP))[1]
    accuracy = aggregate.masked_mean(metrics["accuracy"], own)
    np.testing.assert_allclose(accuracy, np.mean(want["correct"]), rtol=1e-5)
    margin = aggregate.masked_mean(metrics["margin"], own)
    np.testing.assert_allclose(margin, np.mean(want["margin"]), rtol=1e-5, atol=1e-6)


def test_a_group_without_a_pair_has_no_loss():
    given = {"mask": MASK, "group_ids": GROUPS}
    loss, _ = pairs.pair_simpo(LOGP, REWARDS, **given)
    assert np.all(loss[4:] == 0) and np.all(loss[:4] != 0)
    loss, _ = pairs.pair_simpo(LOGP, np.ones(6), **given)
    assert np.all(loss == 0)


def test_kto_takes_labels_from_rewards():
    kl = np.full(6, 0.1, np.float32)
    loss, metrics = pairs.labelled_kto(LOGP, REF, REWARDS, kl, mask=MASK, undesirable_weight=0.5)
    sums = (masking.row_sum(MASK, jnp.asarray(x)) for x in (LOGP, REF))
    want, _ = direct.kto(*sums, REWARDS > 0, kl, undesirable_weight=0.5)
    np.testing.assert_allclose(loss, np.broadcast_to(want[:, None], SHAPE), rtol=1e-6)
    assert metrics["implicit_reward"].shape == SHAPE


@pytest.mark.parametrize("center", [0.0, 0.1])
def test_scores_of_pairs_have_the_loss_of_bradley_terry(center):
    """Margins are what rewards differ by beyond 1; the metrics are those of the two pairs."""
    rewards = np.array([0.0, 1.5, 1.0, 0.0, 1.0, 0.0])
    scored = np.zeros(SHAPE, bool)
    scored[:5, 2] = True
    given = {"mask": scored, "group_ids": GROUPS, "center": center}

    def objective(scores):
        loss, metrics = pairs.ranked_reward(scores, rewards, **given)
        own = scored & (GROUPS < 2)[:, None]
        weights = aggregate.weights(own, "seq-mean-token-mean")
        return aggregate.weighted_sum(loss, own, weights), metrics

    def want(scores):
        arguments = {"margin": np.array([0.0, 0.5]), "center": center}
        return reward_model.bradley_terry(scores[CHOSEN, 2], scores[REJECTED, 2], **arguments)

    (loss, metrics), slope = jax.value_and_grad(objective, has_aux=True)(jnp.asarray(LOGP))
    expected = jax.value_and_grad(lambda x: jnp.mean(want(x)[0]))(jnp.asarray(LOGP))
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-4, atol=1e-6)
    expected = want(LOGP)[1]
    np.testing.assert_allclose(metrics["accuracy"], np.mean(expected["correct"]), rtol=1e-5)
    np.testing.assert_allclose(metrics["margin"], np.mean(expected["margin"]), rtol=1e-5)


def test_scores_of_a_ranking_have_the_loss_of_plackett_luce():
    """Rows in any order; the row without an action is not compared; rewards of a ranking."""
    rng = np.random.default_rng(1)
    scores, order = rng.normal(size=(6, 1)).astype(np.float32), np.array([3, 0, 4, 1])
    rewards = np.zeros(6)
    rewards[order] = [1, 2 / 3, 1 / 3, 0]
    acts = np.array([1, 1, 0, 1, 1, 0], bool)[:, None]
    loss, metrics = pairs.ranked_reward(scores, rewards, mask=acts, group_ids=np.zeros(6, int))
    want = reward_model.plackett_luce(scores[order, 0][None], np.ones((1, 4), bool))
    np.testing.assert_allclose(loss[order, 0], np.repeat(want, 4), rtol=1e-5)
    assert loss[2, 0] == loss[5, 0] == 0
    pair = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    right = np.mean([scores[a, 0] > scores[b, 0] for a, b in pair])
    np.testing.assert_allclose(metrics["accuracy"], right, rtol=1e-5)


def test_calibration_is_the_distance_of_confidence_and_accuracy():
    """Three pairs of confidence 0.8, one of which is the wrong way round: |0.8 - 2/3|."""
    gap = np.log(4.0)
    scores = np.array([gap, 0, gap, 0, 0, gap], np.float32)[:, None]
    _, metrics = pairs.ranked_reward(
        scores, np.array([1.0, 0] * 3), mask=np.ones((6, 1), bool), group_ids=np.arange(6) // 2
    )
    np.testing.assert_allclose(metrics["calibration_error"], 0.8 - 2 / 3, rtol=1e-5)


def test_verdicts_on_steps_have_the_cross_entropy_of_their_labels():
    scores, labels = np.array([[2.0, -1.0], [0.5, -3.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])
    loss, metrics = pairs.stepwise_reward(scores, labels)
    chance = 1 / (1 + np.exp(-scores))
    want = -np.log(np.where(labels == 1, chance, 1 - chance))
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_array_equal(metrics["accuracy"], [[1, 0], [0, 1]])
