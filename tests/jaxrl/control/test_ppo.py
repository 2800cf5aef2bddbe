"""PPO's update is that of CleanRL, and its advantages know an end from a time limit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control import environments, on_policy, train
from jaxrl.control.algorithms.online import ppo
from jaxrl.control.environment import Space
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import running

KEY = jax.random.PRNGKey(0)


def minibatch(space, rows, seed):
    """A minibatch of a rollout whose policy has moved a little since."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    choices = rng.integers(0, space.action, rows).astype(np.int32)
    actions = choices if space.discrete else normal(rows, space.action)
    return normal(rows, space.observation), actions, normal(rows), normal(rows), normal(rows)


def cleanrl(params, batch, old_logp, config, discrete):
    """CleanRL's loss (ppo.py, ppo_continuous_action.py) and its clipped gradient, in float64."""
    torch = pytest.importorskip("torch")
    leaf = lambda x: torch.tensor(np.array(x, np.float64), requires_grad=True)  # noqa: E731
    params = jax.tree.map(leaf, params)
    tensors = [torch.tensor(np.array(x, np.float64)) for x in (batch[0], *batch[2:], old_logp)]
    observations, advantages, returns, values, old_logp = tensors
    actions = torch.tensor(np.array(batch[1]))

    def network(layers, x):
        for layer in layers[:-1]:
            x = torch.tanh(x @ layer["weight"] + layer["bias"])
        return x @ layers[-1]["weight"] + layers[-1]["bias"]

    out = network(params["actor"]["net"], observations)
    if discrete:
        policy = torch.distributions.Categorical(logits=out)
        logp, entropy = policy.log_prob(actions.long()), policy.entropy()
    else:
        policy = torch.distributions.Normal(out, params["actor"]["log_std"].exp().expand_as(out))
        logp, entropy = policy.log_prob(actions.double()).sum(1), policy.entropy().sum(1)
    critic = [{k: v[0] for k, v in layer.items()} for layer in params["critic"]]
    newvalue = network(critic, observations)[:, 0]

    ratio = (logp - old_logp).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    pg_loss = torch.max(
        -advantages * ratio, -advantages * torch.clamp(ratio, 1 - config.clip, 1 + config.clip)
    ).mean()
    v_loss = (newvalue - returns) ** 2
    if config.value_clip:
        near = values + torch.clamp(newvalue - values, -config.clip, config.clip)
        v_loss = torch.max(v_loss, (near - returns) ** 2)
    loss = pg_loss - config.entropy * entropy.mean() + config.value_weight * 0.5 * v_loss.mean()
    loss.backward()
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, torch.Tensor))
    torch.nn.utils.clip_grad_norm_(leaves, config.max_norm)
    gradients = [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves]
    return loss.item(), gradients


@pytest.mark.broad
@pytest.mark.exact("an update of PPO equals CleanRL's loss and gradients")
@pytest.mark.parametrize("value_clip", [False, True])
@pytest.mark.parametrize("discrete", [False, True])
def test_an_update_is_cleanrls(discrete, value_clip):
    space = Space(5, 3, discrete)
    config = ppo.Config(hidden=(16, 16), value_clip=value_clip, entropy=0.01, log_std=0.0)
    learner = ppo.make(space, config)
    state = learner.init(KEY)
    # weights away from their start, so that the ratio is clipped on some rows
    noise = lambda x: x + 0.3 * jax.random.normal(jax.random.fold_in(KEY, x.size), x.shape)  # noqa: E731
    params = state.params | {"both": jax.tree.map(noise, state.params["both"])}
    batch = minibatch(space, 64, 1)
    observations, actions, advantages, targets, values = batch
    kind = {"activation": "tanh", "discrete": discrete}
    logp, _ = ppo.actor_critic.density(params["both"], observations, jnp.asarray(actions), **kind)
    old_logp = np.array(logp) + np.random.default_rng(2).normal(size=64).astype(np.float32) * 0.3
    zeros = np.zeros(64, np.float32)
    extra = {"logp": old_logp, "advantages": advantages, "targets": targets, "values": values}
    rows = Transitions(observations, actions, zeros, observations, zeros, zeros, extra)
    after, metrics = learner.update(KEY, state.replace(params=params), {"online": rows})
    loss, gradients = cleanrl(params["both"], batch, old_logp, config, discrete)
    assert float(metrics["both_loss"]) == pytest.approx(loss, abs=1e-5)
    # Adam's first moment after one step is a tenth of the gradient it was given
    moments = jax.tree.leaves(after.opt_state["both"][1][0].mu)
    for ours, theirs in zip(moments, gradients, strict=True):
        np.testing.assert_allclose(10 * np.array(ours), theirs, atol=1e-5)


def test_advantages_know_an_end_from_a_time_limit():
    """Four steps, worked out by hand: a terminal, a time limit, both at once, and neither."""
    row = lambda *xs: jnp.asarray([xs], jnp.float32)  # noqa: E731
    rewards, values, after = row(1, 2, 3, 4), row(10, 20, 30, 40), row(11, 21, 31, 41)
    steps = Transitions(None, None, rewards, None, row(1, 0, 1, 0), row(1, 1, 1, 0))
    advantages, targets = on_policy.advantages(steps, values, after, discount=0.5, mixing=0.5)
    expected = [1 - 10, 2 + 0.5 * 21 - 20, 3 - 30, 4 + 0.5 * 41 - 40]
    np.testing.assert_allclose(advantages[0], expected)
    np.testing.assert_allclose(targets[0], np.add(expected, [10, 20, 30, 40]))
    flowing = steps._replace(terminals=row(0, 0, 0, 0), ends=row(0, 0, 0, 0))
    chained, _ = on_policy.advantages(flowing, values, after, discount=0.5, mixing=0.5)
    last = 4 + 0.5 * 41 - 40
    assert float(chained[0, 2]) == pytest.approx(3 + 0.5 * 40 - 30 + 0.25 * last)


@pytest.mark.broad
def test_the_rate_falls_from_round_to_round():
    config = ppo.Config(
        steps=32, worlds=2, segment=4, epochs=2, minibatches=2, hidden=(4,), anneal=True
    )
    env = environments.get("cartpole")
    still = dataclasses.replace(config, anneal=False)
    moved = {}
    for name, each in (("falling", config), ("constant", still)):
        *_, last = train.train(ppo.programs(env, each), env, seeds=[0], points=4, episodes=1)
        moved[name] = last.carry.learner.params["both"]["actor"]["net"][0]["weight"]
    assert np.any(moved["falling"] != moved["constant"])


def test_moments_of_a_stream_are_those_of_the_whole():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (60, 4)).astype(np.float32)
    moments = running.start((4,))
    for part in np.split(rows, [7, 30]):
        moments = running.update(moments, jnp.asarray(part))
    np.testing.assert_allclose(moments["mean"], rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments["variance"], rows.var(0), rtol=1e-4)


def test_rewards_are_scaled_by_the_spread_of_discounted_returns():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(2, 5)).astype(np.float32)
    ends = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]], np.float32)
    steps = Transitions(None, None, jnp.asarray(rewards), None, ends, jnp.asarray(ends))
    held, scaled = on_policy.scale_rewards(on_policy.moments(3, 2), steps, 0.9)
    reached = []
    for w in range(2):
        total = 0.0
        for t in range(5):
            total = rewards[w, t] + 0.9 * total
            reached.append(total)
            total *= 1 - ends[w, t]
    np.testing.assert_allclose(scaled.rewards, rewards / np.std(reached), rtol=1e-3)
    assert held["total"].shape == (2,)


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("preset", sorted(ppo.PRESETS))
def test_a_policy_that_normalises_trains_and_plays(preset):
    both = {"normalise_observations": True, "normalise_rewards": True}
    small = {"steps": 64, "worlds": 4, "segment": 8, "epochs": 1, "minibatches": 2, "hidden": (4,)}
    config = dataclasses.replace(ppo.PRESETS[preset], **small, **both)
    env = environments.get("pendulum", horizon=6)
    *_, last = train.train(ppo.programs(env, config), env, seeds=[0, 1], points=1, episodes=2)
    held = last.carry.learner.params["moments"]
    assert np.all(np.isfinite(jax.tree.leaves(held["return"])))
    np.testing.assert_allclose(held["observation"]["count"], 64, rtol=1e-3)
