"""BC: the action that the data took, by regression.

Paper: Pomerleau 1988, "ALVINN"; Fujimoto & Gu 2021 and Kostrikov et al. 2021 (as their baseline);
Chen et al. 2021, "Decision Transformer" (%BC: only the best part of the data).
Idea: maximise the likelihood of the actions; with `share` below 1, of those trajectories alone that
have the highest returns (%BC).
Formula: `min -log pi(a | s)` over the best `share` of the steps.
Claim: hard to beat on expert data; on mixed data %BC is far above BC, and needs no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, of_actor
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import policies
from jaxrl.types import TrainState

DISCRETE = None
"""Either kind of action."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    share: float = 1.0
    """Part of the steps, in whole trajectories of highest return, that is imitated."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam, kind = optax.adam(config.learning_rate), {"discrete": space.discrete}

    def init(key: jax.Array) -> TrainState:
        sizes = space.observation, config.hidden, space.action
        return fresh({"actor": policies.regression_init(key, *sizes)}, {"actor": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)

        def loss(actor: Any) -> tuple[jax.Array, Metrics]:
            logp = policies.regression_log_prob(actor, rows.observations, rows.actions, **kind)
            return -jnp.mean(logp), {}

        state, metrics = descend(state, "actor", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def prepare(data: Transitions) -> Transitions:
        return transitions.best(data, config.share) if config.share < 1.0 else data

    act, best = (
        of_actor(policy(space.discrete))
        for policy in (policies.regression_act, policies.regression_mode)
    )
    return Algorithm(init, update, act, best, config.batch_size, prepare=prepare)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
