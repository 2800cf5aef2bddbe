"""Critic losses against float64 formulas."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.losses import value
from tests.losses import checks

FEW = settings(max_examples=8, deadline=None)
CENTERS = np.linspace(-1.0, 1.0, 9)


def softmax(z):
    e = np.exp(z)
    return e / e.sum(-1, keepdims=True)


@pytest.mark.exact("losses of values equal float64 formulas")
@FEW
@given(seed=st.integers(0, 9999))
def test_elementwise_losses(seed):
    rng = np.random.default_rng(seed)
    values, old, targets = rng.normal(size=(3, 2, 4))

    def clipped(values, old_values, returns):
        near = np.clip(values, old_values - 0.3, old_values + 0.3)
        return 0.5 * np.maximum((values - returns) ** 2, (near - returns) ** 2)

    def expectile(values, targets):
        u = targets - values
        return np.abs(0.8 - (u < 0)) * u**2

    def dual(values, targets):
        y = targets - values
        t = np.maximum(1 + y / 2, 0.0)
        return 0.4 * values + 0.6 * (t * y - (t - 1) ** 2)

    with jax.enable_x64(True):
        checks.agree(
            value.squared_error,
            lambda values, returns: (values - returns) ** 2 / 2,
            {"values": values},
            {"returns": targets},
        )
        checks.agree(
            functools.partial(value.clipped_value, clip=0.3),
            clipped,
            {"values": values},
            {"old_values": old, "returns": targets},
        )
        checks.agree(
            functools.partial(value.expectile_loss, tau=0.8),
            expectile,
            {"values": values},
            {"targets": targets},
        )
        checks.agree(
            functools.partial(value.dual_value_loss, weight=0.6),
            dual,
            {"values": values},
            {"targets": targets},
        )


@FEW
@given(seed=st.integers(0, 9999))
def test_action_values(seed):
    rng = np.random.default_rng(seed)
    q, online = rng.normal(size=(2, 3, 4))
    actions = rng.integers(0, 4, 3)

    def cql(q_values, actions):
        soft = 0.7 * np.log(np.exp(q_values / 0.7).sum(-1))
        return soft - q_values[np.arange(3), actions]

    def quantile(quantiles, targets):
        loss = np.zeros(len(quantiles))
        for b, (qs, ys) in enumerate(zip(quantiles, targets, strict=True)):
            for i, x in enumerate(qs):
                for y in ys:
                    u, tau = y - x, (i + 0.5) / len(qs)
                    huber = 0.5 * u**2 if abs(u) <= 0.5 else 0.5 * (abs(u) - 0.25)
                    loss[b] += abs(tau - (u < 0)) * huber / len(ys)
        return loss

    with jax.enable_x64(True):
        checks.agree(
            functools.partial(value.cql_term, temperature=0.7),
            cql,
            {"q_values": q},
            {"actions": actions},
        )
        checks.agree(
            functools.partial(value.quantile_loss, huber=0.5),
            quantile,
            {"quantiles": q},
            {"targets": rng.normal(size=(3, 5))},
        )
        np.testing.assert_allclose(
            value.double_q_target(online, q), q[np.arange(3), online.argmax(-1)]
        )
        np.testing.assert_allclose(value.ensemble_target(q), q.min(0))
        want = q.mean(0) - 0.5 * q.std(0)
        np.testing.assert_allclose(value.ensemble_target(q, pessimism=0.5), want)


@pytest.mark.broad
@pytest.mark.exact("losses of categorical critics equal float64 formulas")
@FEW
@given(seed=st.integers(0, 9999))
def test_categorical_critics(seed):
    rng = np.random.default_rng(seed)
    y, logits = rng.uniform(-1.3, 1.3, 6), rng.normal(size=(6, 9))

    def normal_cdf(x):
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    def histogram(target):
        target = min(max(target, -1.125), 1.125)
        mass = [
            normal_cdf((c + 0.125 - target) / (0.75 * 0.25))
            - normal_cdf((c - 0.125 - target) / (0.75 * 0.25))
            for c in CENTERS
        ]
        return np.array(mass) / sum(mass)

    def neighbours(target):
        target, p = min(max(target, -1.0), 1.0), np.zeros(9)
        i = min(int((target + 1) / 0.25), 7)
        p[i + 1] = (target - CENTERS[i]) / 0.25
        p[i] = 1 - p[i + 1]
        return p

    with jax.enable_x64(True):
        gauss, hot = value.hl_gauss(y, CENTERS), value.two_hot(y, CENTERS)
        np.testing.assert_allclose(gauss, [histogram(t) for t in y], atol=1e-9)
        np.testing.assert_allclose(hot, [neighbours(t) for t in y], atol=1e-9)
        np.testing.assert_allclose(hot @ CENTERS, np.clip(y, -1, 1), atol=1e-9)
        checks.agree(
            value.categorical_loss,
            lambda logits, target_probs: -(target_probs * np.log(softmax(logits))).sum(-1),
            {"logits": logits},
            {"target_probs": np.asarray(gauss)},
        )
        checks.agree(
            functools.partial(value.categorical_value, centers=CENTERS),
            lambda logits: softmax(logits) @ CENTERS,
            {"logits": logits},
        )
        inner = np.linspace(-0.4, 0.4, 5)
        # Far from the ends the histogram's mean is the target, up to the width of a bin.
        np.testing.assert_allclose(value.hl_gauss(inner, CENTERS) @ CENTERS, inner, atol=0.01)


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("size", [80.0, -80.0])
def test_extreme_inputs_are_finite(dtype, size):
    x, y = jnp.full((2, 3), size, dtype), jnp.zeros((2, 3), dtype)
    probs = value.hl_gauss(jnp.array([size, 0.0], dtype), jnp.linspace(-1, 1, 3))
    assert np.all(np.isfinite(probs)) and np.allclose(probs.sum(-1), 1.0)
    for f in (
        lambda v: value.squared_error(v, y),
        lambda v: value.clipped_value(v, y, y)[0],
        lambda v: value.expectile_loss(v, y),
        lambda v: value.dual_value_loss(v, y),
        lambda v: value.cql_term(v, jnp.array([0, 1])),
        lambda v: value.quantile_loss(v, y),
        lambda v: value.categorical_loss(v.at[:, 0].set(0.0), probs),
        lambda v: value.categorical_value(v.at[:, 0].set(0.0), jnp.arange(3.0)),
    ):
        out, grad = jax.value_and_grad(lambda v, f=f: jnp.sum(f(v)))(x)
        assert np.isfinite(out) and np.all(np.isfinite(grad.astype(jnp.float32)))
        assert out.dtype == jnp.float32
