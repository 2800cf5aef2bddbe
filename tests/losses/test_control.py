"""Losses of control against float64 formulas written from the papers, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from jaxrl.losses import control

FEW = settings(max_examples=8, deadline=None)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)


@pytest.mark.exact("losses of control equal formulas in NumPy")
@FEW
@given(seed=st.integers(0, 9999))
def test_values_against_numpy(seed):
    rng = np.random.default_rng(seed)
    q, v, logp = rng.normal(size=(3, 6)) * 3
    close(
        control.td_target(q, np.arange(6) % 2, v, discount=0.9),
        q + 0.9 * (1 - np.arange(6) % 2) * v,
    )
    close(control.soft_actor(logp, q, temperature=0.3), 0.3 * logp - q)
    close(control.temperature_loss(0.5, logp, target_entropy=-2.0), -0.5 * (logp - 2.0))
    close(control.advantage_weight(q, temperature=0.5, high=9.0), np.minimum(np.exp(q / 0.5), 9.0))
    z = np.minimum((q - v) / 2.0, 1.5)
    close(control.gumbel_loss(v, q, temperature=2.0, high=1.5), np.exp(z) - z - 1)
    u = np.abs(q - v)
    close(control.huber(v, q, width=0.7), np.where(u <= 0.7, u**2 / 2, 0.7 * (u - 0.35)))
    velocity, noise, actions = rng.normal(size=(3, 6, 2))
    matched = ((velocity - (actions - noise)) ** 2).mean(-1)
    close(control.flow_matching(velocity, noise, actions), matched)


@FEW
@given(seed=st.integers(0, 9999))
def test_the_conservative_term_is_a_log_mean_of_weighted_exponentials(seed):
    rng = np.random.default_rng(seed)
    q, density = rng.normal(size=(2, 7, 3))
    data, floor = rng.normal(size=(2, 3))
    mean = special.logsumexp(q - density, axis=0) - np.log(7)
    close(control.sampled_cql(q, density, data), mean - data)
    lifted = special.logsumexp(np.maximum(q, floor) - density, axis=0) - np.log(7)
    close(control.sampled_cql(q, density, data, floor=floor), lifted - data)


@pytest.mark.exact("Cal-QL's term equals its authors' up to a constant")
def test_cal_qls_term_is_its_authors_up_to_a_constant():
    """conservative_sac.py: random, next and current actions, the last two lifted to the returns."""
    rng = np.random.default_rng(0)
    current, following, anywhere, logp, logp_next = rng.normal(size=(5, 3, 4))
    reached, shown = rng.normal(size=(2, 4))
    uniform = np.full((3, 4), np.log(0.5**2))
    cat = [anywhere - uniform, np.maximum(following, reached) - logp_next]
    authors = special.logsumexp([*cat, np.maximum(current, reached) - logp], axis=(0, 1)) - shown
    floor = np.concatenate([np.tile(reached, (6, 1)), np.full((3, 4), -np.inf)])
    ours = control.sampled_cql(
        np.concatenate([current, following, anywhere]),
        np.concatenate([logp, logp_next, uniform]),
        shown,
        floor=floor,
    )
    close(ours, authors - np.log(9))


def test_a_target_reads_no_value_after_a_terminal():
    rewards, over = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0])
    ahead = jnp.array([jnp.nan, 3.0])
    close(control.td_target(rewards, over, ahead, discount=0.5), [1.0, 3.5])
    q = jnp.array([0.5, 1.0])
    given_ = {"discount": 0.5, "weight": 0.0}
    close(control.dual_imitation(q, ahead, over, over, **given_), [0.125, 0.125])
    slope = jax.grad(lambda q: control.dual_imitation(q, ahead, over, over, **given_).sum())(q)
    close(slope, [0.5, -0.5])


def test_below_the_floor_cal_ql_pushes_nothing_down():
    slope = jax.grad(lambda q: control.sampled_cql(q, jnp.zeros((2, 1)), q[0], floor=1.0).sum())
    np.testing.assert_allclose(slope(jnp.array([[0.0], [2.0]]))[0], -1.0)  # only data's own term
    assert slope(jnp.array([[0.0], [2.0]]))[1] > 0.5


@FEW
@given(seed=st.integers(0, 9999))
def test_diversity_is_the_mean_cosine_over_pairs(seed):
    g = np.random.default_rng(seed).normal(size=(4, 3, 2))
    unit = g / np.linalg.norm(g, axis=-1, keepdims=True)
    pairs = sum((unit[i] * unit[j]).sum(-1) for i in range(4) for j in range(4) if i != j)
    close(control.gradient_diversity(jnp.asarray(g)), pairs / 3)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_gumbel_regression_finds_the_soft_maximum(temperature):
    q = jnp.array([0.0, 0.2, 0.3, 0.5])
    soft = temperature * np.log(np.mean(np.exp(np.asarray(q) / temperature)))
    slope = jax.grad(
        lambda v: control.gumbel_loss(jnp.full(4, v), q, temperature=temperature).mean()
    )
    assert abs(slope(jnp.asarray(soft))) < 1e-4
    assert slope(jnp.asarray(soft + 0.1)) > 0 > slope(jnp.asarray(soft - 0.1))


def test_targets_carry_no_gradient():
    x = jnp.array([0.3, -0.2])
    for f in (
        lambda t: control.td_target(t, t, t, discount=0.9),
        lambda t: control.advantage_weight(t, temperature=1.0),
        lambda t: control.gumbel_loss(x, t, temperature=1.0),
        lambda t: control.huber(x, t),
        lambda t: control.temperature_loss(jnp.array(0.1), t, target_entropy=1.0),
    ):
        assert not np.any(jax.grad(lambda t, f=f: f(t).sum())(x))


@pytest.mark.exact("the forward-backward loss equals loops over rows")
@FEW
@given(seed=st.integers(0, 9999))
def test_forward_backward_by_loops(seed):
    rng = np.random.default_rng(seed)
    m, target = rng.normal(size=(2, 4, 4))
    gamma, b = rng.uniform(size=4), rng.normal(size=(4, 3))
    expected = [
        sum((m[i, j] - gamma[i] * target[i, j]) ** 2 for j in range(4) if j != i) / 6 - m[i, i]
        for i in range(4)
    ]
    close(control.forward_backward(m, target, discount=gamma), expected)
    alike = [
        sum((b[i] @ b[j]) ** 2 for j in range(4) if j != i) / 3 - 2 * b[i] @ b[i] for i in range(4)
    ]
    close(control.orthonormality(b), alike)


@pytest.mark.exact("terms of later control algorithms equal loops over rows")
@FEW
@given(seed=st.integers(0, 9999))
def test_later_terms_by_loops(seed):
    rng = np.random.default_rng(seed)
    q, v, gap = rng.normal(size=(3, 6))
    ends, expert = np.arange(6) % 3 == 0, np.arange(6) < 3
    given_ = {"discount": 0.9, "weight": 0.3}
    loops = [
        0.3 * (-q[i] if expert[i] else q[i]) + (0.9 * (not ends[i]) * v[i] - q[i]) ** 2 / 2
        for i in range(6)
    ]
    close(control.dual_imitation(q, v, ends * 1.0, expert * 1.0, **given_), loops)
    near = rng.normal(size=(4, 6))
    worst = [max((near[k, i] - q[i]) ** 2 for k in range(4)) for i in range(6)]
    close(control.worst_change(q, near), worst)
    u = np.abs(gap) + 0.01
    close(
        control.dynamics_gap(q, u, v),
        np.log(sum(u[i] / u.sum() * np.exp(q[i]) for i in range(6))) - v.mean(),
    )
    predicted, noise = rng.normal(size=(2, 6, 3))
    close(control.denoising(predicted, noise), ((predicted - noise) ** 2).sum(-1) / 3)


@FEW
@given(seed=st.integers(0, 9999))
def test_the_distributional_critic_has_the_gradients_of_the_paper(seed):
    rng = np.random.default_rng(seed)
    q, expected, sampled = rng.normal(size=(3, 5)) * 3
    s = np.exp(rng.normal(size=5))

    def total(q, s):
        given_ = {"scale": 2.0, "width": 1.5}
        return control.distributional_critic(q, s, expected, sampled, **given_).sum()

    by_mean, by_std = jax.grad(total, (0, 1))(jnp.asarray(q), jnp.asarray(s))
    close(by_mean, -2.1 * (expected - q) / (s**2 + 0.1))
    drawn = np.minimum(np.maximum(sampled, q - 1.5), q + 1.5)
    close(by_std, -2.1 * ((drawn - q) ** 2 - s**2) / (s**3 + 0.1))
