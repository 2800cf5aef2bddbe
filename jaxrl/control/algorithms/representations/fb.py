"""FB: one representation of all rewards; a task is then a closed-form average, with no training.

Paper: Touati & Ollivier 2021, "Learning One Representation to Optimize All Rewards".
Idea: F(s, a, z) . B(s') is learnt as the density of future states under the policy of z, which
maximises F . z; for any reward the vector `E_D[r B(s')]` names its optimal policy.
Formula: `E[(F . B(s_j) - gamma F' . B'(s_j))^2] / 2 - E[F . B(s')]`, `z_r = E_D[r B(s')]`,
`pi_z = argmax_a F(s, a, z) . z`.
Networks: F reads (s, a) and (s, z), and the policy s and (s, z), through preprocessors of their
own, as in Touati et al. 2023, "Does Zero-Shot Reinforcement Learning Exist?".
Claim: zero-shot policies near those trained for each reward. The rewards of the data serve for z_r
alone; F, B and the policies never see one. For a terminal step, whose next state is never read, its
own state stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.losses import control
from jaxrl.models.control import critics, mlp, policies
from jaxrl.types import TrainState

_EXACT = jax.lax.Precision.HIGHEST


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 4000
    features: int = 16
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 5e-4
    batch_size: int = 128
    discount: float = 0.95
    polyak: float = 0.01
    max_norm: float = 1.0
    """Of the gradients of each network."""
    orthonormality: float = 1.0
    mixed: float = 0.5
    """Share of the task vectors that are B of a state in the data; the rest are uniform."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.chain(optax.clip_by_global_norm(config.max_norm), optax.adam(config.learning_rate))
    radius = config.features**0.5

    def on_sphere(x: jax.Array) -> jax.Array:
        return radius * x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def backward(params: Any, states: jax.Array) -> jax.Array:
        return on_sphere(mlp.apply(params, states))

    def read(params: Any, *inputs: jax.Array) -> jax.Array:
        """What a preprocessor makes of its inputs: linear, LayerNorm, tanh, linear, ReLU."""
        return jax.nn.relu(mlp.apply(params, jnp.concatenate(inputs, -1), activation=jnp.tanh))

    def forward(params: Any, states: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        of_action, of_task = params["of_action"], params["of_task"]
        parts = read(of_action, states, actions), read(of_task, states, z / radius)
        return critics.outputs(params["head"], *parts)

    def chosen(actor: Any, states: jax.Array, z: jax.Array) -> jax.Array:
        parts = read(actor["of_state"], states), read(actor["of_task"], states, z / radius)
        return policies.deterministic(actor["head"], jnp.concatenate(parts, axis=-1))

    def init(key: jax.Array) -> TrainState:
        forward_key, backward_key, actor_key, *keys = jax.random.split(key, 7)
        wide, width = space.observation + config.features, config.hidden[0]

        def reader(key: jax.Array, inputs: int) -> Any:
            return mlp.init(key, (inputs, width, width), norm=True)

        maps = {
            "forward": {
                "of_action": reader(keys[0], space.observation + space.action),
                "of_task": reader(keys[1], wide),
                "head": critics.init(
                    forward_key, 2 * width, config.hidden, outputs=config.features
                ),
            },
            "backward": mlp.init(
                backward_key, (space.observation, *config.hidden, config.features)
            ),
        }
        actor = {
            "of_state": reader(keys[2], space.observation),
            "of_task": reader(keys[3], wide),
            "head": mlp.init(actor_key, (2 * width, *config.hidden, space.action), last=0.01),
        }
        params = {"maps": maps, "target": maps, "actor": actor, "task": jnp.zeros(config.features)}
        return fresh(params, {"maps": adam, "actor": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        draw_key, coin_key, order_key, noise_key = jax.random.split(key, 4)
        size, target = len(rows.rewards), state.params["target"]
        embeddings = backward(target["backward"], rows.next_observations)
        z = on_sphere(jax.random.normal(draw_key, embeddings.shape))
        coin = jax.random.uniform(coin_key, (size, 1)) < config.mixed
        z = jnp.where(coin, jax.random.permutation(order_key, embeddings), z)

        ahead = chosen(state.params["actor"], rows.next_observations, z)
        noise = 0.2 * jax.random.normal(noise_key, ahead.shape)
        ahead = jnp.clip(ahead + jnp.clip(noise, -0.3, 0.3), -1.0, 1.0)
        f_next = forward(target["forward"], rows.next_observations, ahead, z)
        m_next = jnp.min(jnp.matmul(f_next, embeddings.T, precision=_EXACT), axis=0)
        discount = config.discount * (1.0 - rows.terminals)

        def maps_loss(maps: Any) -> tuple[jax.Array, Metrics]:
            b = backward(maps["backward"], rows.next_observations)
            f = forward(maps["forward"], rows.observations, rows.actions, z)
            m = jnp.matmul(f, b.T, precision=_EXACT)
            member_losses = jax.vmap(
                lambda measure: control.forward_backward(measure, m_next, discount=discount)
            )
            apart = config.orthonormality * jnp.mean(control.orthonormality(b))
            return jnp.sum(jnp.mean(member_losses(m), axis=1)) + apart, {"measure": jnp.mean(m)}

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            actions = chosen(actor, rows.observations, z)
            f = forward(state.params["maps"]["forward"], rows.observations, actions, z)
            return -jnp.mean(jnp.min(jnp.sum(f * z, axis=-1), axis=0)), {}

        state, metrics = descend(state, "maps", adam, maps_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(target, state.params["maps"], config.polyak)
        # the average over the data of r B(s'), of which only the direction matters
        direction = jnp.mean(rows.rewards[:, None] * embeddings, axis=0)
        task = critics.polyak(state.params["task"], direction, 0.01)
        state = state.replace(params=state.params | {"target": moved, "task": task})
        return state.replace(step=state.step + 1), metrics | actor_metrics

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        z = on_sphere(params["task"])
        return chosen(
            params["actor"],
            observation,
            jnp.broadcast_to(z, (*observation.shape[:-1], config.features)),
        )

    return Algorithm(init, update, best, best, config.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
