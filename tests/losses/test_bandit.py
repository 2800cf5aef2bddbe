"""A bandit of five arms, solved in closed form: where each regularised objective comes to rest.

Rows are arms and expectations are exact sums, so what is tested is the objective's fixed point and
nothing of sampling. With reward r, reference pi0 and strength beta the optimum of
`E r - beta KL(pi, pi0)` is `pi0 exp(r / beta) / Z`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.losses.advantages import groups
from jaxrl.losses.divergence import f_divergence
from jaxrl.losses.divergence import kl as divergence
from jaxrl.losses.policy import mirror, objectives
from jaxrl.losses.preference import direct

REWARDS = np.array([1.0, 0.2, -0.5, 0.7, 0.0])
PI0 = np.array([0.1, 0.3, 0.2, 0.15, 0.25])
BETA = 0.5
TILTED = PI0 * np.exp(REWARDS / BETA)
TARGET = TILTED / TILTED.sum()
SOFT_VALUE = BETA * np.log(TILTED.sum())
REF = np.log(PI0)[:, None]
ARMS = np.ones((5, 1), bool)
GROUP = np.zeros(5, int)


def solve(loss, steps: int = 1500):
    """Where the gradient of `loss(logp [5, 1], pi)` leads from the reference; `pi` is constant."""

    def objective(theta):
        logp = jax.nn.log_softmax(theta)
        return loss(logp[:, None], jax.lax.stop_gradient(jnp.exp(logp)))

    optimizer = optax.adam(optax.exponential_decay(0.05, 100, 0.7, transition_begin=500))

    def step(_, carry):
        theta, state = carry
        updates, state = optimizer.update(jax.grad(objective)(theta), state)
        return optax.apply_updates(theta, updates), state

    theta = jnp.log(PI0)
    theta, _ = jax.jit(lambda c: jax.lax.fori_loop(0, steps, step, c))(
        (theta, optimizer.init(theta))
    )
    return np.asarray(jax.nn.softmax(theta))


def on_policy(per_token, pi):
    return jnp.sum(pi * per_token[:, 0])


def kl_in_the_reward(logp, pi):
    penalised = REWARDS[:, None] - BETA * jax.lax.stop_gradient(divergence.k1(logp, REF))
    return on_policy(objectives.reinforce(logp, penalised)[0], pi)


def kl_in_the_loss(estimator):
    def loss(logp, pi):
        term = objectives.reinforce(logp, REWARDS[:, None])[0] + BETA * estimator(logp, REF)
        return on_policy(term, pi)

    return loss


def full_vocabulary(logp, pi):
    gain = on_policy(objectives.reinforce(logp, REWARDS[:, None])[0], pi)
    return gain + BETA * divergence.reverse_kl(logp[:, 0], REF[:, 0])


def off_policy_kl(logp, pi):
    """Arms drawn uniformly: the importance-corrected policy gradient and KL."""
    uniform = np.full((5, 1), np.log(0.2))
    r = jnp.exp(logp - uniform)
    kl = divergence.k3_importance(logp, REF, uniform)
    return jnp.mean(-r[:, 0] * REWARDS + BETA * kl[:, 0])


def opmd_pairwise(logp, pi):
    loss, _ = mirror.opmd_pairwise(logp, REF, REWARDS, mask=ARMS, group_ids=GROUP, tau=BETA)
    return jnp.mean(loss)


def regression(function, **kwargs):
    """`d` regressed on the optimal advantage, whatever arms the data holds."""

    def loss(logp, pi):
        gain = (REWARDS - SOFT_VALUE)[:, None]
        return jnp.mean(function(logp, REF, gain, mask=ARMS, **kwargs)[0])

    return loss


def distributional(logp, pi):
    log_z = np.log(TILTED.sum())
    loss, _ = mirror.distributional_pg(logp, REF, REF, REWARDS, mask=ARMS, beta=BETA, log_z=log_z)
    return jnp.sum(PI0 * loss[:, 0])


def preferences(function, flipped=0.0, **kwargs):
    """Every pair of arms, labelled by Bradley-Terry on the rewards, some labels flipped."""
    first, second = np.nonzero(~np.eye(5, dtype=bool))
    wins = 1 / (1 + np.exp(REWARDS[second] - REWARDS[first]))
    wins = (1 - flipped) * wins + flipped * (1 - wins)

    def loss(logp, pi):
        d = logp[:, 0], REF[:, 0]
        pair = d[0][first], d[0][second], d[1][first], d[1][second]
        return jnp.sum(wins * function(*pair, beta=BETA, **kwargs)[0])

    return loss


REVERSE = {
    "kl in the reward": kl_in_the_reward,
    "k2": kl_in_the_loss(divergence.k2),
    "k1_st": kl_in_the_loss(divergence.k1_st),
    "k3_st": kl_in_the_loss(divergence.k3_st),
    "sampled f-divergence": kl_in_the_loss(f_divergence.sampled),
    "full vocabulary": full_vocabulary,
    "k3_importance": off_policy_kl,
    "opmd_pairwise": opmd_pairwise,
    "oapl": regression(mirror.oapl, beta=BETA),
    "kimi_opmd": regression(mirror.kimi_opmd, tau=BETA),
    "distributional_pg": distributional,
    "dpo": preferences(direct.dpo),
    "robust_dpo": preferences(direct.robust_dpo, 0.2, flip_rate=0.2),
}


@pytest.mark.sample(4, broad=5)
@pytest.mark.parametrize("name", REVERSE)
def test_reverse_kl_objectives_reach_the_tilted_reference(name, x64):
    np.testing.assert_allclose(solve(REVERSE[name]), TARGET, atol=1e-4)


def forward_target():
    """`E r - beta KL(pi0, pi)` is stationary at `beta pi0 / (lambda - r)`; lambda by bisection."""
    low, high = REWARDS.max() + 1e-9, REWARDS.max() + 10.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        too_much = np.sum(BETA * PI0 / (middle - REWARDS)) > 1.0
        low, high = (middle, high) if too_much else (low, middle)
    return BETA * PI0 / (low - REWARDS)


def grpo(logp, pi):
    """GRPO's own in-loss k3, whose gradient is the forward KL's."""
    loss, _ = objectives.grpo(
        logp, jax.lax.stop_gradient(logp), REWARDS[:, None], ref_logp=REF, beta=BETA
    )
    return on_policy(loss, pi)


def forward_vocabulary(logp, pi):
    gain = on_policy(objectives.reinforce(logp, REWARDS[:, None])[0], pi)
    return gain + BETA * divergence.forward_kl(logp[:, 0], REF[:, 0])


FORWARD = {
    "grpo": grpo,
    "k3": kl_in_the_loss(divergence.k3),
    "full vocabulary": forward_vocabulary,
    "sampled f-divergence": kl_in_the_loss(
        lambda logp, ref: f_divergence.sampled(logp, ref, kind="forward_kl")
    ),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_kl_objectives_reach_their_own_target(name, x64):
    target = forward_target()
    assert np.abs(target - TARGET).max() > 0.02
    np.testing.assert_allclose(solve(FORWARD[name]), target, atol=1e-4)


def test_k1_in_the_loss_regularises_nothing(x64):
    assert solve(kl_in_the_loss(divergence.k1)).max() > 0.99


@pytest.mark.parametrize("kind", ["js", "hellinger", "chi2", "alpha"])
def test_f_divergence_objectives_balance_reward_and_slope(kind, x64):
    """At the optimum `r - beta f'(pi / pi0)` is the same for every arm."""

    def loss(logp, pi):
        gain = on_policy(objectives.reinforce(logp, REWARDS[:, None])[0], pi)
        return gain + 1.5 * f_divergence.f_divergence(logp[:, 0], REF[:, 0], kind=kind)

    t = solve(loss) / PI0
    slope = {
        "js": 0.5 * np.log(2 * t / (1 + t)),
        "hellinger": 1 - 1 / np.sqrt(t),
        "chi2": 2 * (t - 1),
        "alpha": (t**-0.5 - 1) / -0.5,
    }[kind]
    assert np.ptp(REWARDS - 1.5 * slope) < 2e-3


def test_soft_advantages_are_those_of_the_exact_solution(x64):
    """A group that holds every arm in proportion to pi0."""
    arms = np.repeat(np.arange(5), (PI0 * 20).round().astype(int))
    got = groups.soft_advantages(REWARDS[arms], np.zeros(20, int), num_groups=1, beta=BETA)
    np.testing.assert_allclose(got, (REWARDS - SOFT_VALUE)[arms])
