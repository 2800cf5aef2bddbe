"""ResFiT: a frozen clone of the data acts; a small policy learns, off-policy, what to add to it.

Paper: Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning Policies".
Idea: the base policy is a black box that is never trained again, so nothing it knows is lost; the
residual sees the state and the base's action and starts at zero.
Formula: `a = b(s) + c pi(s, b(s))`, trained as TD3 with LayerNorm critics of `(s, b(s), a)` on half
data, half replay; c, and one step in place of the paper's n, our reading.
Claim: first real-world RL on a humanoid with dexterous hands, from sparse rewards alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from data.offline.transitions import Transitions
from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline, online
from jaxrl.types import TrainState
from launch.control import bc, td3
from models.control import policies


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are BC's and TD3's."""

    steps: int = 1500
    """Updates of the base policy."""
    online_steps: int = 3000
    warmup: int = 500
    hidden: tuple[int, ...] = (64, 64)
    batch_size: int = 128
    bound: float = 0.5
    """c, of what is added in each dimension."""


def config() -> Config:
    """A residual of half the range."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """TD3 on what is added, seeing the base's action beside the state."""
    wide = space._replace(observation=space.observation + space.action)
    sizes = {"hidden": config.hidden, "batch_size": config.batch_size}
    inner = td3.make(wide, td3.Config(norm=True, **sizes))

    def seen(base: Any, states: jax.Array) -> jax.Array:
        return jnp.concatenate([states, policies.gaussian(base, states)[0]], axis=-1)

    def init(key: jax.Array) -> TrainState:
        state = inner.init(key)
        base = bc.make(space, bc.Config(**sizes)).init(key).params["actor"]
        return state.replace(params=state.params | {"base": base})

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        base = state.params["base"]
        here, ahead = (seen(base, s) for s in (batch.observations, batch.next_observations))
        added = (batch.actions - here[:, space.observation :]) / config.bound
        batch = batch._replace(observations=here, actions=added, next_observations=ahead)
        return inner.update(key, state, batch)

    def corrected(policy: Any) -> Any:
        def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
            here = seen(params["base"], observation)
            added = config.bound * policy(key, params, here)
            return jnp.clip(here[..., space.observation :] + added, -1.0, 1.0)

        return act

    act, best = corrected(inner.act), corrected(inner.best)
    return Algorithm(init, update, act, best, inner.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """BC, then its correction online."""
    clone = bc.make(env.space, bc.Config(hidden=config.hidden, batch_size=config.batch_size))
    algorithm = make(env.space, config)

    def adopt(before: TrainState, fresh: TrainState) -> TrainState:
        return fresh.replace(params=fresh.params | {"base": before.params["actor"]})

    given = {"steps": config.online_steps, "every": 2, "warmup": config.warmup, "prior": 0.5}
    second = online(algorithm, env, warm=algorithm.act, adopt=adopt, **given)
    return offline(clone, steps=config.steps), second
