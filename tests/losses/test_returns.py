"""Recursions along trajectories, against loops over the action tokens alone."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.losses.advantages import returns as losses_returns

FEW = settings(max_examples=6, deadline=None)
seeds = st.integers(0, 9999)
# Compiled once: an eager scan is traced and compiled anew at every call.
NAMES = ["gae", "turn_gae", "bilevel_gae", "td_lambda", "vtrace", "retrace", "potential_shaping"]
returns = SimpleNamespace(**{f: jax.jit(getattr(losses_returns, f)) for f in NAMES})


def draw(seed, rows=4, length=7):
    """Everything at masked tokens is NaN; the last row does not act."""
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, length)) < 0.6
    mask[-1] = False
    turns = np.cumsum(rng.random((rows, length)) < 0.4, 1)
    rewards, values, q, logp, behavior = np.where(mask, rng.normal(size=(5, rows, length)), np.nan)
    return mask, turns, rewards, values, q, logp, behavior, rng.normal(size=rows)


def walk(mask):
    """Each row with the positions of its actions."""
    for row in range(len(mask)):
        yield row, list(np.flatnonzero(mask[row]))


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


def gae_row(r, v, last, gamma, lam):
    """Textbook GAE on one compact row."""
    a, nxt, out = 0.0, last, []
    for reward, value, g, m in zip(r[::-1], v[::-1], gamma[::-1], lam[::-1], strict=True):
        a = reward + g * nxt - value + g * m * a
        nxt = value
        out.insert(0, a)
    return out


@pytest.mark.exact("GAE and TD(lambda) returns equal loops over tokens")
@FEW
@given(seed=seeds)
def test_gae_and_td_lambda(seed):
    mask, _, rewards, values, *_, last = draw(seed)
    lam = np.linspace(0.5, 1.0, 4)[:, None]
    want, target = np.zeros(mask.shape), np.zeros(mask.shape)
    for i, at in walk(mask):
        n = len(at)
        want[i, at] = gae_row(rewards[i, at], values[i, at], last[i], [0.9] * n, [lam[i, 0]] * n)
        g, nxt = last[i], last[i]
        for t in reversed(at):
            g = rewards[i, t] + 0.9 * (0.3 * nxt + 0.7 * g)
            nxt, target[i, t] = values[i, t], g
    with jax.enable_x64(True):
        got, ret = returns.gae(
            rewards, values, mask=mask, discount=0.9, mixing=lam, last_value=last
        )
        close(got, want)
        close(ret, np.where(mask, want + values, 0.0))
        close(
            returns.td_lambda(
                rewards, values, mask=mask, discount=0.9, mixing=0.7, last_value=last
            ),
            target,
        )
        # The two are one: G = A + V at equal mixing.
        _, g = returns.gae(rewards, values, mask=mask, discount=0.9, mixing=0.7, last_value=last)
        close(g, target)


@pytest.mark.exact("turn-level and bi-level GAE equal loops over tokens")
@FEW
@given(seed=seeds)
def test_turn_and_bilevel_gae(seed):
    mask, turns, rewards, values, *_, last = draw(seed)
    by_turn, by_token = np.zeros(mask.shape), np.zeros(mask.shape)
    for i, at in walk(mask):
        groups = [[t for t in at if turns[i, t] == k] for k in sorted(set(turns[i, at]))]
        n = len(groups)
        coarse = gae_row(
            [rewards[i, g].sum() for g in groups], [values[i, g[0]] for g in groups], last[i],
            [0.9] * n, [0.8] * n,
        )  # fmt: skip
        ends = gae_row(
            [rewards[i, g[-1]] for g in groups], [values[i, g[-1]] for g in groups], last[i],
            [0.9] * n, [0.8] * n,
        )  # fmt: skip
        for g, a, end in zip(groups, coarse, ends, strict=True):
            by_turn[i, g] = a
            by_token[i, g[-1]] = carry = end
            for t, after in zip(g[-2::-1], g[:0:-1], strict=True):
                delta = rewards[i, t] + 0.95 * values[i, after] - values[i, t]
                by_token[i, t] = carry = delta + 0.95 * 0.7 * carry
    with jax.enable_x64(True):
        got, _ = returns.turn_gae(
            rewards, values, turns, mask=mask, discount=0.9, mixing=0.8, last_value=last
        )
        close(got, by_turn)
        got, ret = returns.bilevel_gae(
            rewards, values, turns, mask=mask, turn_discount=0.9, turn_mixing=0.8,
            discount=0.95, mixing=0.7, last_value=last,
        )  # fmt: skip
        close(got, by_token)
        close(ret, np.where(mask, by_token + values, 0.0))
        # Turns of one token each make the turn form the token form.
        every = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)
        fine = returns.turn_gae(rewards, values, every, mask=mask, last_value=last)
        close(fine[0], returns.gae(rewards, values, mask=mask, last_value=last)[0])


@pytest.mark.exact("V-trace and Retrace targets equal loops over tokens")
@FEW
@given(seed=seeds)
def test_vtrace_and_retrace(seed):
    mask, _, rewards, values, q, logp, behavior, last = draw(seed)
    rho = np.exp(logp - behavior)
    advantage, target, action = (np.zeros(mask.shape) for _ in range(3))
    for i, at in walk(mask):
        v_next, vs_next = last[i], last[i]
        for t in reversed(at):
            clipped, c = min(rho[i, t], 1.2), 0.9 * min(rho[i, t], 1.0)
            # q of the policy gradient mixes the target and the value of the next state by lambda.
            boot = 0.9 * vs_next + 0.1 * v_next
            delta = clipped * (rewards[i, t] + 0.95 * v_next - values[i, t])
            vs = values[i, t] + delta + 0.95 * c * (vs_next - v_next)
            if t == at[-1]:
                boot = last[i]
            advantage[i, t] = min(rho[i, t], 1.5) * (rewards[i, t] + 0.95 * boot - values[i, t])
            target[i, t] = vs
            v_next, vs_next = values[i, t], vs
        follow = 0.0
        for t in reversed(at):
            action[i, t] = rewards[i, t] + 0.95 * follow
            c = 0.9 * min(rho[i, t], 1.0)
            follow = values[i, t] + c * (action[i, t] - q[i, t])
    with jax.enable_x64(True):
        a, v = returns.vtrace(
            logp, behavior, rewards, values, mask=mask, discount=0.95, mixing=0.9, clip_rho=1.2,
            clip_advantage_rho=1.5, last_value=last,
        )  # fmt: skip
        close(v, target)
        close(a, advantage)
        got = returns.retrace(
            logp, behavior, rewards, q, values, mask=mask, discount=0.95, mixing=0.9
        )
        close(got, action)


def test_token_rewards_stand_on_the_last_action():
    mask = np.array([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    kl = np.where(mask, 0.5, np.nan)
    got = losses_returns.token_rewards(np.array([3.0, 5.0, 7.0]), mask=mask, kl=kl, beta=0.2)
    want = [[-0.1, 0, 2.9, 0], [-0.1, -0.1, -0.1, 4.9], [0, 0, 0, 0]]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    got = losses_returns.token_rewards(np.array([3.0, 5.0, 7.0]), mask=mask)
    np.testing.assert_allclose(got.sum(1), [3.0, 5.0, 0.0])


def test_on_policy_vtrace_is_td_one(x64):
    mask, _, rewards, values, _, logp, _, last = draw(0)
    _, targets = returns.vtrace(logp, logp, rewards, values, mask=mask, last_value=last)
    close(targets, returns.td_lambda(rewards, values, mask=mask, mixing=1.0, last_value=last))


@FEW
@given(seed=seeds)
def test_shaping_changes_every_return_by_the_potential_alone(seed):
    mask, _, rewards, phi, *_ = draw(seed)
    zeros = np.zeros(mask.shape)
    with jax.enable_x64(True):
        shaped = returns.potential_shaping(rewards, phi, mask=mask, discount=0.9)
        kwargs = {"mask": mask, "discount": 0.9, "mixing": 1.0}
        before = returns.td_lambda(rewards, zeros, **kwargs)
        after = returns.td_lambda(shaped, zeros, **kwargs)
    close(after - before, np.where(mask, -phi, 0.0))


def test_nothing_carries_a_gradient(x64):
    mask, turns, rewards, values, q, logp, behavior, _ = draw(1)
    r, v, q, logp, behavior = (np.nan_to_num(x) for x in (rewards, values, q, logp, behavior))
    for f in (
        lambda x: returns.gae(r, x, mask=mask)[0],
        lambda x: returns.turn_gae(r, x, turns, mask=mask)[0],
        lambda x: returns.bilevel_gae(r, x, turns, mask=mask)[0],
        lambda x: returns.td_lambda(r, x, mask=mask),
        lambda x: returns.vtrace(logp, behavior, r, x, mask=mask)[0],
        lambda x: returns.retrace(logp, behavior, r, q, x, mask=mask),
        lambda x: returns.potential_shaping(r, x, mask=mask),
    ):
        assert not jax.grad(lambda x, f=f: f(x).sum())(v).any()
