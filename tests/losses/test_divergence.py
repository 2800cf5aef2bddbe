"""Estimators against NumPy, and their stated bias measured exactly on a small distribution.

With five outcomes every expectation is a sum, so "unbiased" is an equality, not a statistic.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses.divergence import kl

RNG = np.random.default_rng(0)
LOGITS, REF, BEHAVIOR = RNG.normal(size=(3, 5))


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


PI, PI_REF, MU = softmax(LOGITS), softmax(REF), softmax(BEHAVIOR)
REVERSE = np.sum(PI * np.log(PI / PI_REF))
# d p_i / d z_j = p_i (1[i = j] - p_j): gradients in the logits, by the chain rule.
SOFTMAX = np.diag(PI) - np.outer(PI, PI)
REVERSE_GRAD = SOFTMAX @ (np.log(PI / PI_REF) + 1)
FORWARD_GRAD = SOFTMAX @ (-PI_REF / PI)
L1_GRAD = SOFTMAX @ np.sign(PI - PI_REF)


def expected(estimator, sampler=PI, **kwargs):
    """Exact expectation of the estimator and of its gradient, tokens drawn from `sampler`."""

    def f(logits):
        logp = jax.nn.log_softmax(logits)[None]
        return jnp.sum(sampler * estimator(logp, np.log(PI_REF)[None], **kwargs)[0])

    return jax.value_and_grad(f)(jnp.asarray(LOGITS))


UNBIASED = ("k1", "k3", "k1_st", "k3_st")
GRADIENTS = {
    "k1": np.zeros(5),
    "k2": REVERSE_GRAD,
    "k3": FORWARD_GRAD,
    "abs_": L1_GRAD,
    "k1_st": REVERSE_GRAD,
    "k3_st": REVERSE_GRAD,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_bias_is_what_the_table_states(name, x64):
    value, grad = expected(getattr(kl, name))
    if name in UNBIASED:
        np.testing.assert_allclose(value, REVERSE, rtol=1e-9)
    else:
        assert abs(value - REVERSE) > 0.01
    np.testing.assert_allclose(grad, GRADIENTS[name], rtol=1e-7, atol=1e-12)


def test_k3_importance_is_unbiased_off_policy(x64):
    value, grad = expected(kl.k3_importance, MU, behavior_logp=np.log(MU)[None])
    np.testing.assert_allclose(value, REVERSE, rtol=1e-9)
    np.testing.assert_allclose(grad, REVERSE_GRAD, rtol=1e-7)
    for naive in (kl.k1, kl.k3):
        assert abs(expected(naive, MU)[0] - REVERSE) > 0.01


def test_k2_bias_is_of_third_order(x64):
    biases = []
    for step in (0.1, 0.05):
        near = PI * np.exp(step * RNG.permutation([1.0, -1.0, 0.5, -0.5, 0.2]))
        near /= near.sum()
        truth = np.sum(PI * np.log(PI / near))
        k2 = np.sum(PI * np.asarray(kl.k2(np.log(PI), np.log(near))))
        biases.append(abs(k2 - truth) / np.max(np.abs(np.log(PI / near))) ** 3)
    assert max(biases) < 0.5


FORMULAS = {
    "k1": lambda d: d,
    "k2": lambda d: d**2 / 2,
    "k3": lambda d: np.exp(-d) - 1 + d,
    "abs_": np.abs,
    "k1_st": lambda d: d,
    "k3_st": lambda d: np.exp(-d) - 1 + d,
}
SLOPES = {
    "k1": np.ones_like,
    "k2": lambda d: d,
    "k3": lambda d: 1 - np.exp(-d),
    "abs_": np.sign,
    "k1_st": lambda d: d,
    "k3_st": lambda d: d,
}


@pytest.mark.exact("KL estimators and their gradients equal float64 formulas")
@pytest.mark.parametrize("name", FORMULAS)
def test_value_and_gradient(name, x64):
    logp, ref = -RNG.exponential(size=(2, 3, 4))
    f = getattr(kl, name)
    np.testing.assert_allclose(f(logp, ref), FORMULAS[name](logp - ref), rtol=1e-9, atol=1e-12)
    grads = jax.grad(lambda a, b: jnp.sum(f(a, b)), (0, 1))(jnp.asarray(logp), jnp.asarray(ref))
    np.testing.assert_allclose(grads[0], SLOPES[name](logp - ref), rtol=1e-9)
    assert not grads[1].any()


@pytest.mark.parametrize("name", [*FORMULAS, "k3_importance"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extreme_gaps_are_finite(name, dtype):
    f = getattr(kl, name)
    logp, ref = jnp.array([[-80.0, -0.1]], dtype), jnp.array([[-0.1, -80.0]], dtype)
    extra = (ref,) if name == "k3_importance" else ()
    value, grad = jax.value_and_grad(lambda x: jnp.sum(f(x, ref, *extra)))(logp)
    assert np.isfinite(value) and np.all(np.isfinite(grad.astype(jnp.float32)))
    assert f(logp, ref, *extra).dtype == jnp.float32


@pytest.mark.exact("divergences over the vocabulary equal float64 formulas")
def test_full_vocabulary_forms(x64):
    for f, truth, slope in (
        (kl.reverse_kl, REVERSE, REVERSE_GRAD),
        (kl.forward_kl, np.sum(PI_REF * np.log(PI_REF / PI)), FORWARD_GRAD),
    ):
        value, grad = jax.value_and_grad(f)(jnp.asarray(LOGITS), REF)
        np.testing.assert_allclose(value, truth, rtol=1e-9)
        np.testing.assert_allclose(grad, slope, rtol=1e-8)


def test_a_banned_token_counts_nothing():
    logits = jnp.array([0.3, -0.2, -jnp.inf])
    ref = jnp.array([0.1, 0.4, -jnp.inf])
    for f in (kl.reverse_kl, kl.forward_kl):
        value, grad = jax.value_and_grad(f)(logits, ref)
        np.testing.assert_allclose(value, f(logits[:2], ref[:2]), rtol=1e-6)
        assert np.all(np.isfinite(grad))
