"""PPO: on-policy updates from short segments of many worlds, kept near by clipping the ratio.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; Huang et al. 2022, "The 37
Implementation Details of Proximal Policy Optimization", for the parts that are fields here.
Idea: play T steps in W worlds, estimate advantages by GAE, take a few epochs of minibatches on the
clipped surrogate and a value loss.
Formula: `-min(r A, clip(r, 1 - c, 1 + c) A) + w max((V - R)^2, (V_near - R)^2) / 2 - e H(pi)`,
`r = pi / pi_old`, `V_near = V_old + clip(V - V_old, -c, c)`, A standardised in the minibatch.
Claim: the reliability of trust regions with first-order updates; the default of on-policy control.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxrl.control import on_policy, wrappers
from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import value
from jaxrl.losses.policy import objectives
from jaxrl.models.control import actor_critic
from jaxrl.types import TrainState

DISCRETE = None
"""Either kind of action."""
PICTURES = True
"""Observations may be pictures."""


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
    activation: Literal["tanh", "relu", "gelu"] = "tanh"
    orthogonal: bool = True
    """Whether weights begin orthogonal and biases at 0."""
    log_std: float = -0.5
    """Of continuous actions at the start, the logarithm of the standard deviation."""
    learning_rate: float = 1e-3
    anneal: bool = True
    """Whether the rate falls linearly to 0, from round to round."""
    discount: float = 0.99
    mixing: float = 0.95
    """GAE's lambda."""
    clip: float = 0.2
    value_weight: float = 0.5
    value_clip: bool = False
    """Whether a value that moves further than `clip` (in units of the return) earns nothing."""
    entropy: float = 0.0
    """e, the weight of the policy's entropy."""
    max_norm: float = 0.5
    normalise_observations: bool = True
    """Whether observations are standardised by their moments so far, at most 10 in size."""
    normalise_rewards: bool = True
    """Whether rewards are divided by the standard deviation of the discounted return so far."""


PRESETS = {
    "cleanrl": Config(
        steps=500_000, worlds=4, segment=128, epochs=4, minibatches=4, learning_rate=2.5e-4,
        log_std=0.0, value_clip=True, entropy=0.01, normalise_observations=False,
        normalise_rewards=False,
    ),
    "purejaxrl_minatar": Config(
        steps=10_000_000, worlds=64, segment=128, epochs=4, minibatches=8, learning_rate=5e-3,
        log_std=0.0, activation="relu", value_clip=True, entropy=0.01,
        normalise_observations=False, normalise_rewards=False,
    ),
}  # fmt: skip
"""The authors' values, by name; `--preset NAME` starts from them."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes; `update` takes one minibatch."""
    rounds, rate = -(-config.steps // (config.worlds * config.segment)), config.learning_rate
    passes = config.epochs * config.minibatches
    falling = lambda count: rate * (1.0 - count // passes / rounds)  # noqa: E731
    steps = optax.adam(falling if config.anneal else rate, eps=1e-5)
    adam = optax.chain(optax.clip_by_global_norm(config.max_norm), steps)

    network_form = {"activation": config.activation, "shape": space.shape}
    kind = network_form | {"discrete": space.discrete}

    def init(key: jax.Array) -> TrainState:
        sizes = space.observation, config.hidden, space.action
        form = {"log_std": config.log_std, "orthogonal": config.orthogonal, "shape": space.shape}
        both = actor_critic.init(key, *sizes, **form)
        moments = on_policy.moments(space.observation, config.worlds)
        return fresh({"both": both, "moments": moments}, {"both": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = batch["online"]
        advantages, old_logp, targets, old_values = (
            rows.extra[name] for name in ("advantages", "logp", "targets", "values")
        )
        spread = jnp.std(advantages, ddof=1) + 1e-8
        standardised = (advantages - jnp.mean(advantages)) / spread
        observations = see(config, state.params, rows.observations)

        def loss(both: Any) -> tuple[jax.Array, Metrics]:
            logp, entropy = actor_critic.density(both, observations, rows.actions, **kind)
            surrogate, _ = objectives.ppo_clip(
                logp[None], old_logp[None], standardised[None],
                clip_low=config.clip, clip_high=config.clip,
            )  # fmt: skip
            v = actor_critic.value(both, observations, **network_form)
            error = value.squared_error(v, targets)
            if config.value_clip:
                error, _ = value.clipped_value(v, old_values, targets, clip=config.clip)
            total = surrogate[0] + config.value_weight * error - config.entropy * entropy
            return jnp.mean(total), {"entropy": jnp.mean(entropy), "value_error": jnp.mean(error)}

        state, metrics = descend(state, "both", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return actor_critic.mode(params["both"], see(config, params, observation), **kind)

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return actor_critic.sample(key, params["both"], see(config, params, observation), **kind)

    return Algorithm(init, update, act, best)


def see(config: Config, params: Any, observations: jax.Array) -> jax.Array:
    """Observations as the networks take them."""
    if not config.normalise_observations:
        return observations
    return actor_critic.standardise(params["moments"]["observation"], observations)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Rounds of playing and learning."""

    def annotate(params: Any, steps: Transitions) -> Transitions:
        observations, after = (
            see(config, params, x) for x in (steps.observations, steps.next_observations)
        )
        network_form = {"activation": config.activation, "shape": env.space.shape}
        kind = network_form | {"discrete": env.space.discrete}
        logp, _ = actor_critic.density(params["both"], observations, steps.actions, **kind)
        values, following = (
            actor_critic.value(params["both"], x, **network_form) for x in (observations, after)
        )
        discounts = {"discount": config.discount, "mixing": config.mixing}
        advantages, targets = on_policy.advantages(steps, values, following, **discounts)
        extra = {"logp": logp, "advantages": advantages, "targets": targets, "values": values}
        return steps._replace(extra=extra)

    # the density is of the action as it was drawn
    bounded = wrappers.clipped(env)
    return (on_policy.rounds(make(env.space, config), bounded, annotate, config),)
