"""PPO: on-policy updates from short segments of many worlds, kept near by clipping the ratio.

Left out: a bonus for entropy, annealing, normalised observations and rewards, a clipped value loss.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms".
Idea: play T steps in W worlds, estimate advantages by GAE, take a few epochs of minibatches on the
clipped surrogate and a value loss.
Formula: `-min(r A, clip(r, 1 - c, 1 + c) A) + w (V - R)^2 / 2`, `r = pi / pi_old`.
Claim: the reliability of trust regions with first-order updates; the default of on-policy control.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control import wrappers
from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space, begin
from jaxrl.control.program import Carry, Program, split
from jaxrl.control.rollout import play_all
from jaxrl.losses import value
from jaxrl.losses.advantages import returns
from jaxrl.losses.policy import objectives
from jaxrl.models.control import critics, mlp, policies
from jaxrl.types import TrainState

DISCRETE = None
"""Either kind of action."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 100_000
    worlds: int = 16
    segment: int = 64
    """Steps of each world to one round of updates."""
    epochs: int = 8
    minibatches: int = 8
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    mixing: float = 0.95
    """GAE's lambda."""
    clip: float = 0.2
    value_weight: float = 0.5
    max_norm: float = 0.5


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes; `update` takes one minibatch."""
    steps = optax.adam(config.learning_rate, eps=1e-5)
    adam = optax.chain(optax.clip_by_global_norm(config.max_norm), steps)

    def init(key: jax.Array) -> TrainState:
        actor_key, critic_key = jax.random.split(key)
        net = mlp.init(actor_key, (space.observation, *config.hidden, space.action), last=0.01)
        actor = {"net": net, "log_std": jnp.full(space.action, -0.5, jnp.float32)}
        critic = critics.init(critic_key, space.observation, config.hidden, members=1)
        return fresh({"both": {"actor": actor, "critic": critic}}, {"both": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = batch["online"]
        old_logp, advantages, targets = (rows.extra[n] for n in ("logp", "advantages", "targets"))
        standardised = (advantages - jnp.mean(advantages)) / (jnp.std(advantages) + 1e-8)

        def loss(both: Any) -> tuple[jax.Array, Metrics]:
            logp, entropy = distribution(space, both["actor"], rows.observations, rows.actions)
            surrogate, _ = objectives.ppo_clip(
                logp[None], old_logp[None], standardised[None],
                clip_low=config.clip, clip_high=config.clip,
            )  # fmt: skip
            here = critics.values(both["critic"], rows.observations)[0]
            error = value.squared_error(here, targets)
            total = jnp.mean(surrogate + config.value_weight * error)
            return total, {"entropy": jnp.mean(entropy), "value_error": jnp.mean(error)}

        state, metrics = descend(state, "both", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def output(params: Any, observation: jax.Array) -> jax.Array:
        return mlp.apply(params["both"]["actor"]["net"], observation, activation=jnp.tanh)

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        out = output(params, observation)
        return jnp.argmax(out, axis=-1) if space.discrete else jnp.clip(out, -1.0, 1.0)

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        out, log_std = output(params, observation), params["both"]["actor"]["log_std"]
        if space.discrete:
            return jax.random.categorical(key, out)
        return out + jnp.exp(log_std) * jax.random.normal(key, out.shape)

    return Algorithm(init, update, act, best)


def distribution(space: Space, actor: Any, observations: jax.Array, actions: jax.Array) -> tuple:
    """Log-density [...] of the actions under the actor, and its entropy [...]."""
    out = mlp.apply(actor["net"], observations, activation=jnp.tanh)
    if space.discrete:
        return policies.categorical(out, actions)
    std = jnp.exp(actor["log_std"])
    logp = policies.gaussian_log_prob(out, std, actions)
    return logp, jnp.broadcast_to(policies.gaussian_entropy(std), logp.shape)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Rounds of playing and learning."""
    algorithm = make(env.space, config)
    count = config.worlds * config.segment
    # the density is of the action as it was drawn
    bounded = wrappers.clipped(env)

    def init(key: jax.Array, learner: TrainState, data: Any) -> Carry:
        key, start = jax.random.split(key)
        world = jax.vmap(lambda k: begin(env, k))(jax.random.split(start, config.worlds))
        return Carry(learner, key, world)

    def collect(key: jax.Array, carry: Carry) -> tuple[Any, Batch]:
        """The worlds after a segment, and the rows of all of them."""
        params = carry.learner.params

        def move(world: Any, key: jax.Array) -> tuple[Any, Any]:
            keys = jax.random.split(key, (2, config.worlds))
            return play_all(bounded, algorithm.act, params, keys, world)

        world, played = jax.lax.scan(move, carry.world, jax.random.split(key, config.segment))
        played = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), played)  # [W, T, ...]
        actor, critic = (params["both"][name] for name in ("actor", "critic"))
        value_of = lambda seen: critics.values(critic, seen)[0]  # noqa: E731
        # an episode that was cut off is worth what its last state promises
        cut = played.ends * (1.0 - played.terminals) * value_of(played.next_observations)
        advantages, targets = returns.gae(
            played.rewards + config.discount * cut,
            value_of(played.observations),
            mask=jnp.ones_like(cut, bool),
            discount=config.discount * (1.0 - played.ends),
            mixing=config.mixing,
            last_value=value_of(world.observation),
        )
        logp, _ = distribution(env.space, actor, played.observations, played.actions)
        batch = played._replace(extra={"logp": logp, "advantages": advantages, "targets": targets})
        return world, {"online": jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), batch)}

    def step(carry: Carry, data: Any) -> tuple[Carry, Metrics]:
        key, playing, learning = split(carry, 2)
        world, flat = collect(playing, carry)

        def epoch(learner: TrainState, key: jax.Array) -> tuple[TrainState, Metrics]:
            order = jax.random.permutation(key, count).reshape(config.minibatches, -1)
            cut = jax.tree.map(lambda x: x[order], flat)
            return jax.lax.scan(lambda s, rows: algorithm.update(key, s, rows), learner, cut)

        keys = jax.random.split(learning, config.epochs)
        learner, metrics = jax.lax.scan(epoch, carry.learner, keys)
        carry = carry._replace(learner=learner, key=key, world=world)
        return carry, jax.tree.map(jnp.mean, metrics)

    rounds = -(-config.steps // count)
    draw = lambda key, carry, data: collect(key, carry)[1]  # noqa: E731
    return (Program(algorithm, init, step, rounds, "online", draw, count),)
