"""MOORL: offline and online data as two tasks, between which one actor-critic is meta-learnt.

Paper: Chaudhary et al. 2025, "MOORL: A Framework for Integrating Offline-Online Reinforcement
Learning".
Idea: the learner takes a few steps on one source and moves part of the way to where they led, then
on the other: it settles where both are served, without pessimism or a large ensemble.
Formula: `theta <- theta + eta (theta' - theta)`, `theta'` after k steps of SAC on one source;
recalled, as the abstract gives none (after Reptile, Nichol et al. 2018).
Claim: above offline and hybrid methods on 28 tasks at little cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import sac
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.models.control import critics
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    steps: int = 3000
    warmup: int = 500
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128
    """Of each step on each source."""
    inner: int = 2
    """Steps on a source before the move."""
    rate: float = 0.5
    """eta."""


def config() -> Config:
    """Two inner steps, half of the way."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """SAC, whose batch holds minibatches of offline and of online steps."""
    base = sac.make(space, shared(sac.Config, config))

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        sources = jax.tree.map(lambda *xs: jnp.stack(xs), batch["offline"], batch["online"])

        def visit(state: TrainState, inputs: tuple) -> tuple[TrainState, Metrics]:
            key, source = inputs
            keys = jax.random.split(key, config.inner)

            def inner(state: TrainState, inputs: tuple) -> tuple[TrainState, Metrics]:
                key, rows = inputs
                return base.update(key, state, {"source": jax.tree.map(lambda x: x[None], rows)})

            after, metrics = jax.lax.scan(inner, state, (keys, source))
            return after.replace(
                params=critics.polyak(state.params, after.params, config.rate)
            ), metrics

        state, metrics = jax.lax.scan(visit, state, (jax.random.split(key, 2), sources))
        return state, jax.tree.map(jnp.mean, metrics)

    return base._replace(update=update, batch_size=2 * config.batch_size, minibatches=config.inner)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, with the data in half of each batch."""
    algorithm = make(env.space, config)
    settings = {"steps": config.steps, "warmup": config.warmup, "prior": 0.5}
    return (online(algorithm, env, **settings),)
