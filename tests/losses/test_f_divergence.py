"""Generators, estimators and conjugates against numerical definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses.divergence import f_divergence, kl
from tests.losses import checks

GENERATORS = {
    "kl": lambda t: t * np.log(t),
    "forward_kl": lambda t: -np.log(t),
    "js": lambda t: 0.5 * (t * np.log(t) - (t + 1) * np.log((t + 1) / 2)),
    "chi2": lambda t: (t - 1) ** 2,
    "hellinger": lambda t: (np.sqrt(t) - 1) ** 2,
    "tv": lambda t: 0.5 * np.abs(t - 1),
    "alpha": lambda t: (t**1.7 - 1.7 * t + 0.7) / (1.7 * 0.7),
}
LOGITS, REF = np.random.default_rng(0).normal(size=(2, 3, 5))
each_kind = pytest.mark.parametrize("kind", f_divergence.KINDS)


def softmax(z):
    e = np.exp(z)
    return e / e.sum(-1, keepdims=True)


@pytest.mark.exact("f-divergences and their gradients equal float64 formulas")
@each_kind
def test_value_and_gradient(kind, x64):
    def oracle(logits, ref_logits):
        p, q = softmax(logits), softmax(ref_logits)
        return np.sum(q * GENERATORS[kind](p / q), -1)

    ours = functools.partial(f_divergence.f_divergence, kind=kind, alpha=1.7)
    checks.agree(ours, oracle, {"logits": LOGITS}, {"ref_logits": REF})
    np.testing.assert_allclose(ours(REF, REF), 0.0, atol=1e-12)


@each_kind
def test_the_sampled_estimator_is_unbiased_in_value_and_gradient(kind, x64):
    p = softmax(LOGITS)
    exact = functools.partial(f_divergence.f_divergence, ref_logits=REF, kind=kind, alpha=1.7)

    def expected(logits):
        logp, ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(REF)
        return jnp.sum(p * f_divergence.sampled(logp, ref, kind=kind, alpha=1.7))

    value, grad = jax.value_and_grad(expected)(jnp.asarray(LOGITS))
    want, want_grad = jax.value_and_grad(lambda z: jnp.sum(exact(z)))(jnp.asarray(LOGITS))
    np.testing.assert_allclose(value, want, rtol=1e-9)
    np.testing.assert_allclose(grad, want_grad, rtol=1e-7, atol=1e-12)


def test_known_members(x64):
    f = f_divergence.f_divergence
    np.testing.assert_allclose(f(LOGITS, REF, kind="kl"), kl.reverse_kl(LOGITS, REF))
    np.testing.assert_allclose(f(LOGITS, REF, kind="forward_kl"), kl.forward_kl(LOGITS, REF))
    half = f(LOGITS, REF, kind="alpha", alpha=2.0)
    np.testing.assert_allclose(2 * half, f(LOGITS, REF, kind="chi2"))
    for near, kind in ((1 + 1e-6, "kl"), (1e-6, "forward_kl")):
        limit = f(LOGITS, REF, kind="alpha", alpha=near)
        np.testing.assert_allclose(limit, f(LOGITS, REF, kind=kind), rtol=1e-4)


@each_kind
def test_conjugate_is_the_supremum_over_nonnegative_ratios(kind, x64):
    t = np.sort(np.append([1e-300, 1.0], np.geomspace(1e-9, 1e4, 400_000)))
    top = {"forward_kl": -0.02, "hellinger": 0.9, "js": 0.3, "tv": 0.49}.get(kind, 1.5)
    y = np.linspace(-3.0, top, 9)
    brute = np.array([np.max(t * v - GENERATORS[kind](t)) for v in y])
    ours = functools.partial(f_divergence.conjugate, kind=kind, alpha=1.7)
    np.testing.assert_allclose(ours(y), brute, rtol=1e-5, atol=1e-6)
    best = [t[np.argmax(t * v - GENERATORS[kind](t))] for v in y]
    slope = jax.vmap(jax.grad(ours))(jnp.asarray(y))
    np.testing.assert_allclose(slope, best, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["forward_kl", "hellinger", "js", "tv"])
def test_outside_its_domain_the_conjugate_is_infinite(kind):
    assert f_divergence.conjugate(jnp.float32(1.5), kind=kind) == np.inf


@pytest.mark.sample(8, broad=5)
@each_kind
@pytest.mark.parametrize("gap", [80.0, -80.0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extreme_ratios_are_finite(kind, gap, dtype):
    logits, ref = jnp.array([gap, 0.0, 0.0], dtype), jnp.zeros(3, dtype)
    full = functools.partial(f_divergence.f_divergence, kind=kind)
    one = functools.partial(f_divergence.sampled, kind=kind)
    for f in (full, one):
        value, grad = jax.value_and_grad(lambda z, f=f: jnp.sum(f(z, ref)))(logits)
        assert np.isfinite(value) and np.all(np.isfinite(grad.astype(jnp.float32)))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="kind='renyi'"):
        f_divergence.f_divergence(LOGITS, REF, kind="renyi")
    with pytest.raises(ValueError, match="kind='renyi'"):
        f_divergence.conjugate(LOGITS, kind="renyi")
    with pytest.raises(ValueError, match="alpha"):
        f_divergence.f_divergence(LOGITS, REF, kind="alpha", alpha=1.0)
    with pytest.raises(ValueError, match="alpha"):
        f_divergence.conjugate(LOGITS, kind="alpha", alpha=0.5)
