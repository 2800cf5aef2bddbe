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
import numpy as np
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
    recurrent: Literal["none", "gru"] = "none"
    """Whether policy and value read a memory of the episode, a GRU after the first hidden layer."""
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

    form, kind = forms(space, config)

    def init(key: jax.Array) -> TrainState:
        both = actor_critic.init(
            key, space.observation, config.hidden, space.action, log_std=config.log_std,
            orthogonal=config.orthogonal, shape=space.shape, recurrent=config.recurrent != "none",
        )  # fmt: skip
        moments = on_policy.moments(space.observation, config.worlds)
        return fresh({"both": both, "moments": moments}, {"both": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = batch["online"]
        advantages, old_logp, targets, old_values = (
            rows.extra[name] for name in ("advantages", "logp", "targets", "values")
        )
        spread = jnp.std(advantages, ddof=1) + 1e-8
        standardised = (advantages - jnp.mean(advantages)) / spread
        observations = on_policy.see(config, state.params, rows.observations)

        def loss(both: Any) -> tuple[jax.Array, Metrics]:
            inputs = on_policy.read(config, both, rows, observations, space.shape)
            logp, entropy = actor_critic.density(both, inputs, rows.actions, **kind)
            surrogate, _ = objectives.ppo_clip(
                *(x.reshape(1, -1) for x in (logp, old_logp, standardised)),
                clip_low=config.clip, clip_high=config.clip,
            )  # fmt: skip
            v = actor_critic.value(both, inputs, **form)
            error = value.squared_error(v, targets)
            if config.value_clip:
                error, _ = value.clipped_value(v, old_values, targets, clip=config.clip)
            value_loss = config.value_weight * error
            total = surrogate.reshape(v.shape) + value_loss - config.entropy * entropy
            return jnp.mean(total), {"entropy": jnp.mean(entropy), "value_error": jnp.mean(error)}

        state, metrics = descend(state, "both", adam, loss)
        return state.replace(step=state.step + 1), metrics

    sample = lambda *args: actor_critic.sample(*args, **kind)  # noqa: E731
    mode = lambda key, *args: actor_critic.mode(*args, **kind)  # noqa: E731
    act, best = (on_policy.policy(choose, config, space.shape) for choose in (sample, mode))
    memory = () if config.recurrent == "none" else np.zeros(config.hidden[0], np.float32)
    return Algorithm(init, update, act, best, memory=memory)


def forms(space: Space, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the value, and of the policy; with a memory both are networks of numbers."""
    shape = space.shape if config.recurrent == "none" else ()
    form = {"activation": config.activation, "shape": shape}
    return form, form | {"discrete": space.discrete}


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Rounds of playing and learning."""

    def annotate(params: Any, steps: Transitions) -> Transitions:
        both, shape, (form, kind) = params["both"], env.space.shape, forms(env.space, config)
        observations, after = (
            on_policy.see(config, params, x) for x in (steps.observations, steps.next_observations)
        )
        inputs = on_policy.read(config, both, steps, observations, shape)
        if config.recurrent != "none":  # an episode that was cut off is remembered
            after = actor_critic.remember(both, inputs, after, **form | {"shape": shape})
        logp, _ = actor_critic.density(both, inputs, steps.actions, **kind)
        values, following = (actor_critic.value(both, x, **form) for x in (inputs, after))
        discounts = {"discount": config.discount, "mixing": config.mixing}
        advantages, targets = on_policy.advantages(steps, values, following, **discounts)
        extra = {"logp": logp, "advantages": advantages, "targets": targets, "values": values}
        return steps._replace(extra={**steps.extra, **extra})

    # the density is of the action as it was drawn
    bounded = wrappers.clipped(env)
    return (on_policy.rounds(make(env.space, config), bounded, annotate, config),)
