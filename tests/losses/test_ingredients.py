"""The parts that policy objectives are put together from, each against its own definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses.divergence import kl as divergence
from jaxrl.losses.imitation import distillation
from jaxrl.losses.policy import mixed, objectives, off_policy, sequence, surrogates
from tests.losses.cases import draw


def test_clipped_surrogate_by_hand():
    r = jnp.array([[0.5, 0.5, 1.0, 1.5, 1.5]])
    a = jnp.array([[1.0, -1.0, 2.0, 1.0, -1.0]])
    loss, metrics = objectives.clipped_surrogate(r, a, clip_low=0.2, clip_high=0.3)
    np.testing.assert_allclose(loss, [[-0.5, 0.8, -2.0, -1.3, 1.5]], rtol=1e-6)
    np.testing.assert_array_equal(metrics["clipped_low"], [[0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(metrics["clipped_high"], [[0, 0, 0, 1, 0]])
    slope = jax.grad(lambda r: objectives.clipped_surrogate(r, a)[0].sum())(r)
    np.testing.assert_allclose(slope, [[-1.0, 0.0, -2.0, 0.0, 1.0]])


def test_sequence_log_ratio_by_hand():
    logp, other = jnp.array([[-1.0, -2.0, 9.0]]), jnp.array([[-2.0, -2.5, 0.0]])
    mask = jnp.array([[1, 1, 0]])
    assert sequence.sequence_log_ratio(logp, other, mask=mask) == 1.5
    assert sequence.sequence_log_ratio(logp, other, mask=mask, mean=True) == 0.75


def test_token_covariance_sums_to_the_covariance(x64):
    d = draw(0)
    cov = surrogates.token_covariance(d.logp, d.advantages, mask=d.mask)
    want = np.cov(d.logp[d.mask], d.advantages[d.mask], ddof=0)[0, 1]
    np.testing.assert_allclose(cov.sum() / d.mask.sum(), want)
    assert not np.any(np.asarray(cov)[~d.mask])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_correction(level, x64):
    d = draw(1)
    log_rho = np.where(d.mask, d.proximal_logp - d.behavior_logp, 0.0)
    rho = np.exp(log_rho if level == "token" else log_rho.sum(1, keepdims=True))
    call = {"mask": d.mask, "level": level, "low": 0.7, "high": 1.5}
    got = off_policy.importance_correction(d.proximal_logp, d.behavior_logp, **call)
    np.testing.assert_allclose(got, np.clip(rho, 0.7, 1.5))
    got = off_policy.importance_correction(d.proximal_logp, d.behavior_logp, mode="mask", **call)
    np.testing.assert_allclose(got, np.where((rho < 0.7) | (rho > 1.5), 0.0, rho))
    for bad in ({"level": "turn"}, {"mode": "drop"}):
        with pytest.raises(ValueError, match=next(iter(bad.values()))):
            off_policy.importance_correction(d.proximal_logp, d.behavior_logp, mask=d.mask, **bad)


def test_opsm_keeps_good_rows_and_close_ones():
    behavior = jnp.array([[-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]])
    logp = jnp.array([[-1.2, -1.2], [-1.2, -1.2], [-1.04, 5.0]])
    mask = jnp.array([[1, 1], [1, 1], [1, 0]])
    kept = off_policy.opsm_mask(logp, behavior, jnp.array([[1.0], [-1.0], [-1.0]]), mask=mask)
    np.testing.assert_array_equal(kept[:, 0], [True, False, True])


def test_effective_sample_size():
    d = draw(2)
    w = np.exp(np.where(d.mask, d.logp - d.behavior_logp, 0.0).sum(1))[d.mask.any(1)]
    got = off_policy.effective_sample_size(d.logp, d.behavior_logp, mask=d.mask)
    np.testing.assert_allclose(got, w.sum() ** 2 / (len(w) * (w**2).sum()), rtol=1e-5)
    on_policy = off_policy.effective_sample_size(d.logp, d.logp, mask=d.mask)
    np.testing.assert_allclose(on_policy, 1.0, rtol=1e-6)
    far = d.logp + np.array([80.0, 0, 0, 0, 0, 0])[:, None]
    got = off_policy.effective_sample_size(far, d.logp, mask=d.mask)
    np.testing.assert_allclose(got, 1 / 5, rtol=1e-5)  # one of five rows holds all the weight
    assert off_policy.effective_sample_size(d.logp, d.logp, mask=d.mask & False) == 1.0


def test_vcpo_gives_the_square_root_of_the_effective_sample_size_to_the_learning_rate():
    """Of weights 1 and 3, before they are truncated, half the squared sum over the squares."""
    logp, mask = jnp.log(jnp.array([[1.0], [3.0]])), jnp.ones((2, 1), bool)
    given = {"batch_mask": mask, "group_ids": jnp.zeros(2, int), "weight_high": 2.0}
    args = (logp, jnp.zeros((2, 1)), jnp.array([1.0, 0.0]))
    _, metrics = off_policy.vcpo(*args, **given)
    np.testing.assert_allclose(metrics["lr_scale"], (16 / 20) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(metrics["baseline"], [0.1, 0.1], rtol=1e-6)  # weights 1 and 9
    np.testing.assert_allclose(metrics["weight"], [1.0, 2.0], rtol=1e-6)
    for power, scale in ((1.0, 0.8), (0.0, 1.0)):
        got = off_policy.vcpo(*args, power=power, **given)[1]["lr_scale"]
        np.testing.assert_allclose(got, scale, rtol=1e-6)


def test_chord_mu_rises_falls_along_a_cosine_then_stays():
    steps = jnp.array([0, 5, 10, 35, 60, 110, 900])
    given = {"peak": 0.9, "valley": 0.1, "warmup_steps": 10, "decay_steps": 100}
    quarter = 0.1 + 0.4 * (1 + 0.5**0.5)
    np.testing.assert_allclose(
        mixed.chord_mu(steps, **given), [0.0, 0.45, 0.9, quarter, 0.5, 0.1, 0.1], rtol=1e-5
    )
    np.testing.assert_allclose(mixed.chord_mu(jnp.array([0, 200])), [0.9, 0.05], rtol=1e-6)


def test_nlpo_keeps_the_nucleus_of_the_masking_policy():
    masking_logits = jnp.log(jnp.array([[0.1, 0.5, 0.05, 0.35]]))
    logits = jnp.array([[4.0, 3.0, 2.0, 1.0]])
    got = mixed.nlpo_logits(logits, masking_logits, top_p=0.8)
    np.testing.assert_array_equal(got, [[-np.inf, 3.0, -np.inf, 1.0]])
    got = mixed.nlpo_logits(logits, masking_logits, top_p=1e-9)
    np.testing.assert_array_equal(got, [[-np.inf, 3.0, -np.inf, -np.inf]])
    got = mixed.nlpo_logits(logits, masking_logits, top_p=0.96)
    np.testing.assert_array_equal(got, logits)


def test_distillation_ends_are_the_two_kls(x64):
    student, teacher = np.random.default_rng(0).normal(size=(2, 3, 4))
    for ours, kl in (
        (distillation.forward, divergence.forward_kl),
        (distillation.reverse, divergence.reverse_kl),
    ):
        np.testing.assert_allclose(
            ours(student, teacher, temperature=2.0), kl(student / 2, teacher / 2)
        )
    # Near its ends the generalised form, rescaled, tends to them too.
    small = distillation.generalized_js(student, teacher, beta=1e-5) / 1e-5
    np.testing.assert_allclose(small, distillation.forward(student, teacher), rtol=1e-3)


def test_abs_is_the_distance_whichever_way():
    logp, ref = jnp.array([[-1.0, -3.0]]), jnp.array([[-2.0, -1.0]])
    np.testing.assert_allclose(divergence.abs_(logp, ref), [[1.0, 2.0]])
