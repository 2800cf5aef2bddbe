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

from jaxrl.control import environments
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import sac
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control
from jaxrl.models.control import critics, mlp
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    steps: int = 3000
    warmup: int = 500
    simulator: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it the simulator, such as `{"gravity": 15.0}`."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
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
    """SAC on batches whose part `offline` is real and whose part `online` is simulated."""
    adam = optax.adam(config.learning_rate)

    def push(key: jax.Array, critic: Any, state: TrainState, batch: Batch) -> jax.Array:
        real, simulated = (
            critics.values(critic, batch[name].observations, batch[name].actions)
            for name in ("offline", "online")
        )
        term = control.dynamics_gap(simulated, batch["online"].extra["gap"], real)
        return config.penalty * jnp.sum(term)

    sac_config = shared(sac.Config, config)
    base = sac.make(space, sac_config, critic_term=push if config.aware else None)

    def init(key: jax.Array) -> TrainState:
        base_key, *keys = jax.random.split(key, 3)
        sizes = {"sa": space.observation + space.action}
        sizes["sas"] = sizes["sa"] + space.observation
        nets = {
            name: mlp.init(k, (size, *config.hidden, 1))
            for k, (name, size) in zip(keys, sizes.items(), strict=True)
        }
        return extend(base.init(base_key), "discriminators", nets, adam)

    def logits(nets: Any, part: Transitions, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of being real: of (s, a), and of (s, a, s' - s), [rows] each."""
        pair = jnp.concatenate([part.observations, part.actions], axis=-1)
        moved = (part.next_observations - part.observations) / scale
        triple = jnp.concatenate([pair, moved], axis=-1)
        return mlp.apply(nets["sa"], pair)[:, 0], mlp.apply(nets["sas"], triple)[:, 0]

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        if not config.aware:
            return base.update(key, state, batch)
        base_key, *noise_keys = jax.random.split(key, 3)
        real, simulated = (
            jax.tree.map(lambda x: x[0], batch[name]) for name in ("offline", "online")
        )
        # nothing is read of what a terminal would lead to
        both = mixed({"real": real, "simulated": simulated})
        goes_on = 1.0 - both.terminals
        moved = both.next_observations - both.observations
        scale = jnp.std(moved, axis=0, where=goes_on[:, None] > 0) + 1e-6

        def loss(nets: Any) -> tuple[jax.Array, Metrics]:
            total = 0.0
            for part, label, k in zip((real, simulated), (1.0, 0.0), noise_keys, strict=True):
                noise = config.noise * jax.random.normal(k, part.actions.shape)
                out = logits(nets, part._replace(actions=part.actions + noise), scale)
                errors = [optax.sigmoid_binary_cross_entropy(x, label) for x in out]
                last = jnp.where(part.terminals > 0, 0.0, errors[1])
                total += jnp.sum(errors[0]) / len(goes_on) + jnp.sum(last) / jnp.sum(goes_on)
            return total, {}

        state, metrics = descend(state, "discriminators", adam, loss)
        without, with_next = logits(state.params["discriminators"], simulated, scale)
        log_ratio = jnp.where(simulated.terminals > 0, 0.0, with_next - without)
        weight = jnp.exp(jnp.clip(log_ratio, -7.0, 0.0))
        gap = {"weight": weight, "gap": jnp.clip(-log_ratio, 1e-3, 10.0)}
        none = {"weight": jnp.ones_like(real.rewards), "gap": jnp.zeros_like(real.rewards)}
        parts = {
            "offline": real._replace(extra=none),
            "online": simulated._replace(extra=gap),
        }
        parts = jax.tree.map(lambda x: x[None], parts)
        state, own_metrics = base.update(base_key, state, parts)
        return state, metrics | own_metrics | {"trust": jnp.mean(weight)}

    return base._replace(init=init, update=update)


def programs(
    env: Environment, config: Config, simulator: Environment | None = None
) -> tuple[Program, ...]:
    """Online in the simulator, with the real data in half of each batch.

    Args:
      env: the real task.
      config: hyperparameters.
      simulator: when omitted, `env` made anew with `config.simulator`.

    Raises:
      ValueError: an environment that cannot be made anew by its name, such as a wrapped one.
    """
    if simulator is None and config.simulator:
        if env.name not in environments.names():
            raise ValueError(
                f"env={env.name!r} cannot be made anew with simulator={dict(config.simulator)}; "
                f"choose one of {', '.join(environments.names())}, or give the simulator itself"
            )
        simulator = environments.get(env.name, horizon=env.horizon, **config.simulator)
    simulator = env if simulator is None else simulator
    algorithm = make(env.space, config)
    settings = {"steps": config.steps, "warmup": config.warmup, "prior": 0.5}
    return (online(algorithm, simulator, **settings),)
