"""FQL: a flow clones the data, a one-step policy is distilled from it and made to seek value.

Paper: Park et al. 2025, "Flow Q-Learning".
Idea: no gradient through the flow's steps: the flow is only ever trained by flow matching; the
policy that acts maps noise to an action in one step, near the flow's answer to the same noise.
Networks have GELU, and the critics LayerNorm after it, as the authors' do.
Formula: `flow: mean_A (v(x_t, t) - (a - x_0))^2`; `pi: -Q(s, pi(s, z)) / mean|Q| + alpha
mean_A (pi(s, z) - flow(s, z))^2`; `y = r + gamma mean_i Q_i(s', pi(s', z'))`.
Claim: best of the methods with expressive policies, offline and offline-to-online, on 73 tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline_first
from jaxrl.losses import control, value
from jaxrl.models.control import critics, mlp, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    online_steps: int = 0
    """Steps of the environment after the offline phase, with the data kept in half of a batch."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    distillation: float = 0.1
    """alpha: how near the policy stays to the data. Tune me for each task: 0.03 to 0.3 with values
    that are normalised, 3 to 300 (the authors' range) without."""
    q_aggregation: Literal["mean", "min"] = "mean"
    """Over the critics, in the target."""
    normalise_q: bool = True
    """Whether the actor's value is divided by the batch's mean of its size."""
    flow_steps: int = 10


def config() -> Config:
    """Small networks and normalised values."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam, form = optax.adam(config.learning_rate), {"activation": jax.nn.gelu}

    def init(key: jax.Array) -> TrainState:
        critic_key, flow_key, actor_key = jax.random.split(key, 3)
        inputs = space.observation + space.action
        critic = critics.init(critic_key, inputs, config.hidden, norm_after=True)
        flow = policies.field_init(flow_key, space.observation, config.hidden, space.action)
        actor = mlp.init(actor_key, (inputs, *config.hidden, space.action))
        params = {"critic": critic, "target": critic, "flow": flow, "actor": actor}
        return fresh(params, dict.fromkeys(("critic", "flow", "actor"), adam))

    def one_step(actor: Any, observation: jax.Array, noise: jax.Array) -> jax.Array:
        out = mlp.apply(actor, jnp.concatenate([observation, noise], axis=-1), **form)
        return jnp.clip(out, -1.0, 1.0)

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        next_key, start_key, time_key, noise_key = jax.random.split(key, 4)
        ahead = act(next_key, state.params, rows.next_observations)
        q_next = critics.values(state.params["target"], rows.next_observations, ahead, **form)
        v_next = getattr(jnp, config.q_aggregation)(q_next, axis=0)
        target = control.td_target(rows.rewards, rows.terminals, v_next, discount=config.discount)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, rows.observations, rows.actions, **form)
            return jnp.sum(jnp.mean(value.squared_error(q, target), 1)), {"q": jnp.mean(q)}

        def flow_loss(flow: Any) -> tuple[jax.Array, Metrics]:
            start = jax.random.normal(start_key, rows.actions.shape)
            time = jax.random.uniform(time_key, (len(start), 1))
            between = (1.0 - time) * start + time * rows.actions
            velocity = policies.field(flow, rows.observations, between, time)
            return jnp.mean(control.flow_matching(velocity, start, rows.actions)), {}

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            noise = jax.random.normal(noise_key, rows.actions.shape)
            flow_actions = policies.flow(
                state.params["flow"], rows.observations, noise, steps=config.flow_steps
            )
            raw = mlp.apply(actor, jnp.concatenate([rows.observations, noise], axis=-1), **form)
            off = jnp.mean(jnp.square(raw - flow_actions), axis=-1)
            actions = jnp.clip(raw, -1.0, 1.0)
            q = critics.values(state.params["critic"], rows.observations, actions, **form)
            q = jnp.mean(q, axis=0)
            scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(q))) if config.normalise_q else 1.0
            return jnp.mean(config.distillation * off - q / scale), {"off": jnp.mean(off)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        state, flow_metrics = descend(state, "flow", adam, flow_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, critic_metrics | flow_metrics | actor_metrics

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, (*observation.shape[:-1], space.action))
        return one_step(params["actor"], observation, noise)

    return Algorithm(init, update, act, act, config.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline, and then online if asked."""
    algorithm = make(env.space, config)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
