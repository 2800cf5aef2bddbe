"""DigiRL in the small: imitate the actions that raised the chance of success, first of logs.

Paper: Bai et al. 2024, "DigiRL: Training In-The-Wild Device-Control Agents with Autonomous
Reinforcement Learning".
Idea: success is 0 or 1 and chance has its part in it, so values are probabilities, trained by
cross-entropy on the outcomes. A value of the instruction tells which successes were unexpected, and
a value of the step which actions brought success nearer; the policy imitates those alone, offline
and then online, with hard filters in place of weights.
Formula: `A_inst = 1[success] - V_inst(c)`, the best share of it is kept; of its steps those with
`A_step = gamma^(H - h) R + r_h + V(s_(h+1)) - V(s_h) > margin`; `-log pi(a | s)`
Claim: 67% on Android-in-the-Wild, where filtered imitation has 58% and the best prompted model 38%.
Reading: filters, margin and values are those of the authors' code, which adds the return that the
paper mixes in, and takes the lesser of two step values. Offline, the first filter is by success.
Their filter ranks whole trajectories of the data, here steps of a batch by their trajectory's
advantage. `jaxrl/control/environments/device.py` stands for the phones. Filtered imitation is
`--algorithm.no-step-value --algorithm.no-instruction-value`, AWR `--algorithm.temperature 0.1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.algorithms.online import ppo
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.environments import device
from jaxrl.control.program import Program, offline_first
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control
from jaxrl.models.control import critics, mlp
from jaxrl.types import TrainState

DISCRETE = None
"""Either kind of action."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    online_steps: int = 0
    """Steps of the environment after the offline phase, with the data kept in half of a batch."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 256
    discount: float = 0.5
    """gamma, by which the return fades with the steps to the end."""
    margin: float = 0.05
    """Above which a step's advantage must be."""
    share: float = 0.1
    """Of the steps of a batch, those whose trajectories did best for their instruction."""
    step_value: bool = True
    """Whether steps are filtered by their advantage."""
    instruction_value: bool = True
    """Whether success is compared, online, with what the instruction promises."""
    temperature: float = 0.0
    """Above 0: AWR's weights in place of filters, `exp((success - V) / T)` and at most 20."""
    instruction: int = device.INSTRUCTION
    """Entries of the observation that are the instruction, the last ones."""


def config() -> Config:
    """For the environment `device`."""
    return Config()


def best(ahead: jax.Array, share: float) -> jax.Array:
    """The share of steps whose trajectories are the furthest ahead, [N] bool; ties are in.

    Args:
      ahead: [N], success less its probability; -inf where an outcome is not known.
      share: above 0, up to 1.
    """
    rank = jnp.sort(ahead)[::-1]
    return (ahead >= rank[max(round(share * len(rank)) - 1, 0)]) & jnp.isfinite(ahead)


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    if config.temperature < 0:
        raise ValueError(f"temperature={config.temperature}: give 0 (filters) or more")
    adam = optax.adam(config.learning_rate)
    seen = min(config.instruction, space.observation)

    def init(key: jax.Array) -> TrainState:
        step_key, task_key, actor_key = jax.random.split(key, 3)
        net = mlp.init(actor_key, (space.observation, *config.hidden, space.action), last=0.01)
        params = {
            "value": critics.init(step_key, space.observation, config.hidden),
            "instruction": critics.init(task_key, seen, config.hidden, members=1),
            "actor": {"net": net, "log_std": jnp.full(space.action, -0.5, jnp.float32)},
        }
        return fresh(params, dict.fromkeys(params, adam))

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        reached = rows.extra["return_to_go"]
        known = jnp.isfinite(reached)
        reached = jnp.where(known, reached, 0.0)
        success = (reached > 0).astype(jnp.float32)
        task = rows.observations[..., -seen:]

        def likely(values: Any, inputs: jax.Array, weight: jax.Array) -> jax.Array:
            """Cross-entropy of the outcome, a mean over members and rows that have one."""
            logits = critics.values(values, inputs)
            each = optax.sigmoid_binary_cross_entropy(logits, success[None])
            return jnp.sum(jnp.mean(each, 0) * weight) / jnp.maximum(jnp.sum(weight), 1.0)

        def value_loss(values: Any) -> tuple[jax.Array, Metrics]:
            after = likely(values, rows.next_observations, known * (1.0 - rows.terminals))
            return likely(values, rows.observations, known) + after, {}

        state, value_metrics = descend(state, "value", adam, value_loss)
        state, task_metrics = descend(
            state, "instruction", adam, lambda values: (likely(values, task, known), {})
        )

        def least(inputs: jax.Array) -> jax.Array:
            return jnp.min(jax.nn.sigmoid(critics.values(state.params["value"], inputs)), axis=0)

        expected = jax.nn.sigmoid(critics.values(state.params["instruction"], task)[0])
        surprise = config.instruction_value and "online" in batch
        ahead = success - expected if surprise else success
        keep = best(jnp.where(known, ahead, -jnp.inf), config.share)
        if config.step_value:
            values = least(rows.observations), least(rows.next_observations)
            ahead = control.success_advantage(reached, rows.rewards, rows.terminals, *values)
            keep = keep & (ahead > config.margin)
        if config.temperature:
            ahead = success - least(rows.observations)
            weight = control.advantage_weight(ahead, temperature=config.temperature, high=20.0)
            keep = weight * known

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            logp, _ = ppo.distribution(space, actor, rows.observations, rows.actions)
            loss = jnp.where(keep > 0, keep * -logp, 0.0)
            return jnp.mean(loss), {"kept": jnp.mean(keep > 0)}

        state, metrics = descend(state, "actor", adam, actor_loss)
        return state.replace(step=state.step + 1), value_metrics | task_metrics | metrics

    def prepare(data: Transitions) -> Transitions:
        reached = transitions.returns_to_go(data, config.discount)
        return data._replace(extra={**data.extra, "return_to_go": reached})

    def output(params: Any, observation: jax.Array) -> jax.Array:
        return mlp.apply(params["actor"]["net"], observation, activation=jnp.tanh)

    def mode(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        out = output(params, observation)
        return jnp.argmax(out, axis=-1) if space.discrete else jnp.clip(out, -1.0, 1.0)

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        out = output(params, observation)
        if space.discrete:
            return jax.random.categorical(key, out)
        spread = jnp.exp(params["actor"]["log_std"])
        return jnp.clip(out + spread * jax.random.normal(key, out.shape), -1.0, 1.0)

    given = {"prepare": prepare, "returns": config.discount}
    return Algorithm(init, update, act, mode, config.batch_size, **given)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline, and then online if asked."""
    algorithm = make(env.space, config)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
