"""ONI: a reward learnt, while the policy is, from an annotator that answers late and rarely.

Paper: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language
Model Feedback".
Idea: observations met on the way are put to an annotator that never holds the play up; its answers
train a reward model as they come, and the policy seeks the task's sparse reward and the model's.
Formula: `r + b (R(s') - R(s)) / std`, `R: -log sigmoid(R(preferred) - R(other))` on what has been
answered; a question's answer comes `lag` updates after it was asked.
Claim: best on sparse NetHack tasks, with no data from elsewhere.
Reading: the ranking variant; a script, the distance to the goal, stands for the language model.
What the model rewards is progress, where the paper rewards a state the less the more often an
episode has seen it: its level would pay for waiting beside a goal that ends the episode, as would
SAC's bonus for entropy, which is left out of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import sac
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.environments import maze
from jaxrl.control.program import Program, online
from jaxrl.losses.preference import reward_model
from jaxrl.models.control import mlp
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    steps: int = 6000
    warmup: int = 500
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128
    weight: float = 1.0
    """b; 0 leaves the task's reward alone."""
    lag: int = 100
    """Updates until a question, one an update, is answered."""
    kept: int = 1024
    """Questions, the newest."""


def config() -> Config:
    """A hundred updates late."""
    return Config()


def annotator(env: Environment) -> Callable[[jax.Array], jax.Array]:
    """How far along states [..., O] are: minus the steps of a shortest path, or the distance.

    Raises:
      ValueError: an environment that no script knows.
    """
    layout = env.name.removeprefix("maze_")
    if layout in maze.LAYOUTS:
        table = jnp.asarray(maze.steps_to_goal(layout))

        def by_path(states: jax.Array) -> jax.Array:
            cells = jnp.round((states + 1.0) * (len(table) - 1) / 2.0).astype(jnp.int32)
            return -table[cells[..., 0], cells[..., 1]]

        return by_path
    if env.name == "point_mass":
        return lambda states: -jnp.linalg.norm(states[..., : env.space.action], axis=-1)
    raise ValueError(f"env={env.name!r} has no annotator; choose a maze or point_mass")


def make(space: Space, config: Config, score: Callable[[jax.Array], jax.Array]) -> Algorithm:
    """SAC on a reward that is learnt beside it; `score` is the annotator's."""
    adam = optax.adam(config.learning_rate)
    base = sac.make(space, shared(sac.Config, config, backup_entropy=False))

    def reward(params: Any, states: jax.Array) -> jax.Array:
        return mlp.apply(params, states)[..., 0]

    def init(key: jax.Array) -> TrainState:
        base_key, reward_key = jax.random.split(key)
        reward_net = mlp.init(reward_key, (space.observation, *config.hidden, 1))
        state = extend(base.init(base_key), "reward_model", reward_net, adam)
        questions = jnp.zeros((config.kept, 2, space.observation))
        return state.replace(params=state.params | {"asked": questions})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        base_key, age_key = jax.random.split(key)
        rows = batch["online"]
        step = state.step
        question = batch["question"].next_observations[0]
        questions = state.params["asked"].at[step % config.kept].set(question)
        state = state.replace(params=state.params | {"asked": questions})
        oldest = jnp.maximum(jnp.minimum(step + 1, config.kept), config.lag + 1)
        age = jax.random.randint(age_key, (config.batch_size,), config.lag, oldest)
        answered = (step >= config.lag).astype(jnp.float32)
        pair = questions[(step - age) % config.kept]
        better = score(pair[:, 0]) - score(pair[:, 1])
        ordered = jnp.where((better < 0)[:, None, None], pair[:, ::-1], pair)

        def loss(reward_net: Any) -> tuple[jax.Array, Metrics]:
            rewards = reward(reward_net, ordered)
            losses, _ = reward_model.bradley_terry(rewards[:, 0], rewards[:, 1])
            return answered * jnp.mean(jnp.where(better == 0.0, 0.0, losses)), {}

        state, metrics = descend(state, "reward_model", adam, loss)
        before, after = (
            reward(state.params["reward_model"], states)
            for states in (rows.observations, rows.next_observations)
        )
        bonus = answered * config.weight * (after - before) / (jnp.std(after) + 1e-3)
        rows = rows._replace(rewards=rows.rewards + bonus)
        state, base_metrics = base.update(base_key, state, {"online": rows})
        return state, metrics | base_metrics | {"bonus": jnp.std(bonus)}

    def recall(key: jax.Array, ring: replay.Replay, size: int) -> Batch:
        rows_key, pair_key = jax.random.split(key)
        pair = replay.sample(pair_key, ring, 2)
        return {"online": replay.sample(rows_key, ring, size), "question": pair}

    return base._replace(init=init, update=update, recall=recall)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, from nothing."""
    algorithm = make(env.space, config, annotator(env))
    return (online(algorithm, env, steps=config.steps, warmup=config.warmup),)
