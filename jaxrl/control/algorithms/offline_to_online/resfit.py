"""ResFiT: a frozen clone of the data acts; a small policy learns, off-policy, what to add to it.

Left out: returns over 5 steps (here one), ten critics (here two), updates of the critics alone
before the first of the actor, and the actor's far smaller learning rate.

Paper: Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning Policies".
Idea: the base policy is a black box that is never trained again, so nothing it knows is lost; the
residual sees the state and the base's action and starts at zero.
Formula: `a = clip(b(s) + c pi(s, b(s)), -1, 1)`, trained as TD3 with LayerNorm critics of
`(s, b(s), a)`, `a` clipped in target and actor too, on minibatches of half data, half replay.
Claim: first real-world RL on a humanoid with dexterous hands, from sparse rewards alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import bc
from jaxrl.control.algorithms.online import td3
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline, online
from jaxrl.models.control import policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are BC's and TD3's."""

    steps: int = 1500
    """Updates of the base policy."""
    online_steps: int = 3000
    warmup: int = 500
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128
    bound: float = 0.5
    """c, of what is added in each dimension; the authors' is 0.1 to 0.2."""
    critic_updates: int = 4
    """After each step, to one of the actor, as the authors have it."""


def config() -> Config:
    """A residual of half the range."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """TD3 on what is added, seeing the base's action beside the state."""
    wide = space._replace(observation=space.observation + space.action)

    def executed(inputs: jax.Array, added: jax.Array) -> jax.Array:
        return jnp.clip(inputs[..., space.observation :] + config.bound * added, -1.0, 1.0)

    td3_config = shared(td3.Config, config, norm=True, delay=config.critic_updates)
    inner = td3.make(wide, td3_config, executed=executed)

    def with_base_action(base: Any, states: jax.Array) -> jax.Array:
        return jnp.concatenate([states, policies.gaussian(base, states)[0]], axis=-1)

    def init(key: jax.Array) -> TrainState:
        state = inner.init(key)
        base = bc.make(space, shared(bc.Config, config)).init(key).params["actor"]
        return state.replace(params=state.params | {"base": base})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def with_base_actions(part: Any) -> Any:
            observations, next_observations = (
                with_base_action(state.params["base"], s)
                for s in (part.observations, part.next_observations)
            )
            return part._replace(observations=observations, next_observations=next_observations)

        return inner.update(
            key, state, {name: with_base_actions(part) for name, part in batch.items()}
        )

    def corrected(policy: Any) -> Any:
        def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
            inputs = with_base_action(params["base"], observation)
            return executed(inputs, policy(key, params, inputs))

        return act

    act, best = corrected(inner.act), corrected(inner.best)
    return inner._replace(init=init, update=update, act=act, best=best)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """BC, then its correction online."""
    clone = bc.make(env.space, shared(bc.Config, config))
    algorithm = make(env.space, config)

    def adopt(before: TrainState, fresh: TrainState) -> TrainState:
        return fresh.replace(params=fresh.params | {"base": before.params["actor"]})

    settings = {"steps": config.online_steps, "warmup": config.warmup, "prior": 0.5}
    second = online(algorithm, env, warm=algorithm.act, adopt=adopt, **settings)
    return offline(clone, steps=config.steps), second
