"""Decision Transformer: offline RL as sequence modelling, conditioned on the return to reach.

Paper: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling".
Idea: a causal transformer over (return to go, state, action) predicts the action; when tested it is
asked for a high return. No bootstrap and no value.
Formula: `min |pi(R_1, s_1, a_1, ..., R_t, s_t) - a_t|^2` over windows of K moments.
Claim: on a par with value-based offline methods; it does not stitch.
Reading: squares are averaged over the action's dimensions before gradients are clipped at 1/4, as
in the authors' code. Left out: their dropout and the warm-up of the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.control import wrappers
from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.control.wrappers import History
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import sequence
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 1500
    width: int = 32
    layers: int = 2
    heads: int = 2
    window: int = 8
    """K, moments that the policy sees."""
    target: float = 50.0
    """Return that an episode is asked for; also the scale of returns."""
    standardise: bool = True
    """Whether states are seen less the data's mean, over its standard deviation plus 1e-6."""
    learning_rate: float = 1e-3
    batch_size: int = 64


def config() -> Config:
    """A small transformer."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.chain(optax.clip_by_global_norm(0.25), optax.adamw(config.learning_rate))
    form = sequence.shape(config.width, config.layers, config.heads)

    def init(key: jax.Array) -> TrainState:
        actor = sequence.init(form, key, space.observation, space.action)
        moments = {"mean": jnp.zeros(space.observation), "std": jnp.ones(space.observation)}
        params = {"actor": actor} | ({"moments": moments} if config.standardise else {})
        return fresh(params, {"actor": adam})

    def begin(state: TrainState, data: History) -> TrainState:
        if not config.standardise:
            return state
        rows = jnp.asarray(data.observations)
        moments = {"mean": jnp.mean(rows, axis=0), "std": jnp.std(rows, axis=0) + 1e-6}
        return state.replace(params=state.params | {"moments": moments})

    def predict(params: Any, actor: Any, history: History) -> jax.Array:
        returns_to_go, states = history.returns_to_go / config.target, history.observations
        if config.standardise:
            states = (states - params["moments"]["mean"]) / params["moments"]["std"]
            states = jnp.where(history.clock[..., None] >= 0, states, 0.0)
        return sequence.actions(form, actor, returns_to_go, states, history.actions, history.clock)

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        history = batch["offline"]

        def loss(actor: Any) -> tuple[jax.Array, Metrics]:
            error = jnp.square(predict(state.params, actor, history) - history.actions)
            error = jnp.mean(error, axis=-1)
            valid = history.clock >= 0
            return jnp.sum(jnp.where(valid, error, 0.0)) / jnp.sum(valid), {}

        state, metrics = descend(state, "actor", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def best(key: jax.Array, params: Any, observation: History) -> jax.Array:
        batch = jax.tree.map(lambda x: x[None], observation)
        return predict(params, params["actor"], batch)[0, -1]

    def prepare(data: Transitions) -> History:
        clock = [np.arange(e.stop - e.start) for e in transitions.episodes(data)]
        reached = transitions.returns_to_go(data)
        return History(data.observations, data.actions, reached, np.concatenate(clock))

    def sample(key: jax.Array, data: History, size: int) -> Batch:
        last = jax.random.randint(key, (size, 1), 0, len(data.clock))
        back = jnp.arange(config.window)[::-1]
        inside = back <= data.clock[last]
        rows = jax.tree.map(lambda x: x[jnp.maximum(last - back, 0)], data)
        blank = lambda x: jnp.where(inside[..., None] if x.ndim == 3 else inside, x, 0)  # noqa: E731
        clock = jnp.where(inside, rows.clock, -1)
        return {"offline": jax.tree.map(blank, rows)._replace(clock=clock)}

    def observe(env: Environment) -> Environment:
        return wrappers.history(env, config.window, target=config.target)

    hooks = {"prepare": prepare, "begin": begin, "sample": sample, "observe": observe}
    return Algorithm(init, update, best, best, config.batch_size, **hooks)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
