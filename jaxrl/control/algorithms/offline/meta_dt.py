"""Meta-DT: a decision transformer for tasks not named, which a world model's context tells apart.

Paper: Wang et al. 2024, "Meta-DT: Offline Meta-RL as Conditional Sequence Modeling with World Model
Disentanglement".
Idea: what distinguishes tasks is their rewards and dynamics; a code of recent steps is learnt so
that a model that reads it predicts both, and is then put beside each state of the transformer.
Formula: `z_t = mean_(i < t) e(s_i, a_i, r_i, s_(i+1))`, `min |f(s_t, a_t, z_t) - (r_t, s_(t+1) -
s_t)|^2`; then DT's loss on `(R_t, (s_t, z_t), a_t)`.
Claim: better on unseen tasks than earlier ways, with no demonstration when tested.
Reading: zero-shot: the context is of the episode itself; the prompt of an earlier episode, which
the paper picks where the model errs most, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import dt
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.control.wrappers import History
from jaxrl.models.control import mlp
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are Decision Transformer's."""

    model_steps: int = 1500
    """Updates of the world model, before any of the policy."""
    steps: int = 1500
    context: int = 8
    """Size of z."""
    hidden: tuple[int, ...] = (64, 64)
    """Of the world model."""
    width: int = 32
    layers: int = 2
    heads: int = 2
    learning_rate: float = 1e-3
    window: int = 16
    target: float = 40.0
    batch_size: int = 64


def config() -> Config:
    """A small transformer."""
    return Config()


def make(space: Space, config: Config) -> tuple[Algorithm, Algorithm]:
    """What learns the world model, and what learns the policy; both hold the networks of both."""
    adam = optax.adam(config.learning_rate)
    wide = space._replace(observation=space.observation + config.context)
    inner = dt.make(wide, shared(dt.Config, config, standardise=False))

    def outcomes(history: History) -> tuple[jax.Array, jax.Array]:
        """`(r_t, s_(t+1) - s_t)` [..., K - 1, 1 + O] of all moments but the last, and a mask."""
        rewards = history.returns_to_go[..., :-1] - history.returns_to_go[..., 1:]
        moved = history.observations[..., 1:, :] - history.observations[..., :-1, :]
        return jnp.concatenate([rewards[..., None], moved], -1), history.clock[..., :-1] >= 0

    def code(world: Any, history: History) -> jax.Array:
        """z [..., K, C] of what came before each moment in the window."""
        outcome, valid = outcomes(history)
        parts = [history.observations[..., :-1, :], history.actions[..., :-1, :], outcome]
        codes = mlp.apply(world["encoder"], jnp.concatenate(parts, -1)) * valid[..., None]
        count = jnp.maximum(jnp.cumsum(valid, axis=-1), 1)[..., None]
        mean = jnp.cumsum(codes, axis=-2) / count
        return jnp.concatenate([jnp.zeros_like(mean[..., :1, :]), mean], axis=-2)

    def enriched(params: Any, history: History) -> History:
        z = jax.lax.stop_gradient(code(params["world"], history))
        return history._replace(observations=jnp.concatenate([history.observations, z], axis=-1))

    def init(key: jax.Array) -> TrainState:
        inner_key, encoder_key, model_key = jax.random.split(key, 3)
        pair, outcome = space.observation + space.action, 1 + space.observation
        world = {
            "encoder": mlp.init(encoder_key, (pair + outcome, *config.hidden, config.context)),
            "model": mlp.init(model_key, (pair + config.context, *config.hidden, outcome)),
        }
        return extend(inner.init(inner_key), "world", world, adam)

    def fit(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        history = batch["offline"]

        def loss(world: Any) -> tuple[jax.Array, Metrics]:
            outcome, valid = outcomes(history)
            z = code(world, history)[..., :-1, :]
            parts = [history.observations[..., :-1, :], history.actions[..., :-1, :], z]
            prediction = mlp.apply(world["model"], jnp.concatenate(parts, -1))
            error = jnp.mean(jnp.square(prediction - outcome), axis=-1)
            return jnp.sum(error * valid) / jnp.sum(valid), {}

        state, metrics = descend(state, "world", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return inner.update(key, state, {"offline": enriched(state.params, batch["offline"])})

    def best(key: jax.Array, params: Any, observation: History) -> jax.Array:
        return inner.best(key, params, enriched(params, observation))

    second = inner._replace(init=init, update=update, act=best, best=best)
    return second._replace(update=fit), second


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """The world model, then the policy; both offline."""
    world, policy = make(env.space, config)
    return offline(world, steps=config.model_steps), offline(policy, steps=config.steps)
