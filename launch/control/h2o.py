"""H2O: a simulator that is off and a little real data, trusted where their dynamics agree.

Paper: Niu et al. 2022, "When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online
Reinforcement Learning".
Idea: two classifiers of real against simulated, with the next state and without, give the ratio of
the two dynamics. Simulated Bellman errors are weighed by it, and values pushed down where the gap
is wide; SAC does the rest, playing in the simulator.
Formula: `b (log sum_sim w exp Q - E_real Q) + E_real (Q - y)^2 + E_sim rho (Q - y)^2`,
`rho = P_real(s' | s, a) / P_sim`, `w ~ max(-log rho, 0)`.
Claim: above online and offline methods across dynamics, in simulation and on a wheeled robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from data.offline.transitions import Transitions
from jaxrl.control import environments
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.types import TrainState
from launch.control import sac
from losses import control
from models.control import critics, mlp


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    steps: int = 3000
    warmup: int = 500
    simulator: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it the simulator, such as `{"gravity": 15.0}`."""
    hidden: tuple[int, ...] = (64, 64)
    batch_size: int = 256
    """Half real, half simulated."""
    penalty: float = 0.01
    """b."""
    aware: bool = True
    """Whether the gap is estimated; otherwise the two sources are simply mixed."""
    noise: float = 0.1
    """Added to what the classifiers read, against their certainty."""


def config() -> Config:
    """The paper's penalty."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """SAC on batches of real steps first, then simulated ones."""
    adam = optax.adam(1e-3)
    half = config.batch_size // 2

    def push(key: jax.Array, critic: Any, state: TrainState, batch: Transitions) -> jax.Array:
        q = critics.values(critic, batch.observations, batch.actions)
        term = control.dynamics_gap(q[:, half:], batch.extra["gap"][half:], q[:, :half])
        return config.penalty * jnp.sum(term)

    own = sac.Config(hidden=config.hidden, batch_size=config.batch_size)
    base = sac.make(space, own, critic_term=push if config.aware else None)

    def init(key: jax.Array) -> TrainState:
        base_key, *keys = jax.random.split(key, 3)
        sizes = {"sa": space.observation + space.action}
        sizes["sas"] = sizes["sa"] + space.observation
        judges = {
            name: mlp.init(k, (size, *config.hidden, 1))
            for k, (name, size) in zip(keys, sizes.items(), strict=True)
        }
        return extend(base.init(base_key), "judges", judges, adam)

    def logits(judges: Any, batch: Transitions) -> tuple[jax.Array, jax.Array]:
        """Of being real: of (s, a), and of (s, a, s' - s), [B] each."""
        pair = jnp.concatenate([batch.observations, batch.actions], axis=-1)
        moved = batch.next_observations - batch.observations
        triple = jnp.concatenate([pair, moved / (jnp.std(moved, axis=0) + 1e-6)], axis=-1)
        return mlp.apply(judges["sa"], pair)[:, 0], mlp.apply(judges["sas"], triple)[:, 0]

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        if not config.aware:
            return base.update(key, state, batch)
        base_key, noise_key = jax.random.split(key)
        real = (jnp.arange(config.batch_size) < half).astype(jnp.float32)

        def loss(judges: Any) -> tuple[jax.Array, Metrics]:
            noise = config.noise * jax.random.normal(noise_key, batch.actions.shape)
            both = logits(judges, batch._replace(actions=batch.actions + noise))
            return sum(jnp.mean(optax.sigmoid_binary_cross_entropy(x, real)) for x in both), {}

        state, metrics = descend(state, "judges", adam, loss)
        without, with_next = logits(state.params["judges"], batch)
        log_ratio = with_next - without
        weight = jnp.where(real > 0, 1.0, jnp.exp(jnp.clip(log_ratio, -7.0, 0.0)))
        more = {"weight": weight, "gap": jnp.clip(-log_ratio, 1e-3, 10.0)}
        state, own_metrics = base.update(base_key, state, batch._replace(extra=more))
        return state, metrics | own_metrics | {"trust": 2.0 * jnp.mean((1.0 - real) * weight)}

    return base._replace(init=init, update=update)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online in the simulator, with the real data in half of each batch."""
    simulator = env
    if config.simulator:
        simulator = environments.get(env.name, horizon=env.horizon, **config.simulator)
    algorithm = make(env.space, config)
    given = {"steps": config.steps, "warmup": config.warmup, "prior": 0.5}
    return (online(algorithm, simulator, **given),)
