"""TD3: a deterministic actor behind two critics, smoothed targets and a delayed actor.

Paper: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods";
Fujimoto & Gu 2021 (TD3+BC) and Tarasov et al. 2023 (ReBRAC) for the terms that stay near the data.
Idea: the target takes the least of two critics at a next action with clipped noise; the actor, and
all targets, move at every second update of the critics.
Formula: `y = r + gamma (min_i Q_i(s', a') - b_c |a' - a'_data|^2)`, `a' = pi'(s') + clipped noise`;
`pi: -Q_1(s, pi(s)) / mean|Q| + b_a |pi(s) - a_data|^2`, where b_a, b_c are 0 online (TD3+BC takes
the mean over the action's dimensions, ReBRAC their sum and the least of the critics).
Claim: beats DDPG by far and the SAC of its time on continuous control.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, standardised
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control, value
from jaxrl.models.control import critics, mlp, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; TD3+BC and ReBRAC are other values of them."""

    steps: int = 20_000
    worlds: int = 1
    warmup: int = 1000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    delay: int = 2
    """Steps, each with an update of the critics, to one update of the actor."""
    exploration: float = 0.1
    """Standard deviation of the noise on actions taken."""
    smoothing: float = 0.2
    """Of the noise on the target's actions, clipped at 0.5."""
    actor_penalty: float = 0.0
    critic_penalty: float = 0.0
    distance: Literal["sum", "mean"] = "sum"
    """Over the action's dimensions, of the squares that the penalties weigh."""
    least: bool = False
    """Whether the actor seeks the least of both critics, not the first's value."""
    standardise: bool = False
    """Whether states are seen less the data's mean, over its standard deviation."""
    norm: bool = False
    """LayerNorm in the critics, before the activation."""
    norm_after: bool = False
    """The same after it, as ReBRAC's authors have it."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(
    space: Space,
    config: Config,
    *,
    executed: Callable[[jax.Array, jax.Array], jax.Array] = lambda states, actions: actions,
) -> Algorithm:
    """The algorithm for observations and actions of these sizes.

    Args:
      space: sizes.
      config: hyperparameters.
      executed: states and the actor's actions -> those taken, which data hold and critics see.
    """
    adam = optax.adam(config.learning_rate)

    def apart(actions: jax.Array, data: jax.Array) -> jax.Array:
        return getattr(jnp, config.distance)(jnp.square(actions - data), axis=-1)

    def init(key: jax.Array) -> TrainState:
        critic_key, actor_key = jax.random.split(key)
        inputs = space.observation + space.action
        norms = {"norm": config.norm, "norm_after": config.norm_after}
        critic = critics.init(critic_key, inputs, config.hidden, **norms)
        sizes = (space.observation, *config.hidden, space.action)
        actor = mlp.init(actor_key, sizes, last=0.01)
        params = {"critic": critic, "actor": actor, "target": {"critic": critic, "actor": actor}}
        return fresh(params, {"critic": adam, "actor": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def improve_critic(state: TrainState, inputs: Any) -> tuple[TrainState, Metrics]:
            key, rows = inputs[0], mixed(inputs[1])
            ahead = policies.deterministic(state.params["target"]["actor"], rows.next_observations)
            noise = config.smoothing * jax.random.normal(key, ahead.shape)
            ahead = jnp.clip(ahead + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
            ahead = executed(rows.next_observations, ahead)
            q_next = critics.values(state.params["target"]["critic"], rows.next_observations, ahead)
            v_next = value.ensemble_target(q_next)
            if config.critic_penalty:
                v_next -= config.critic_penalty * apart(ahead, rows.extra["next_actions"])
            target = control.td_target(
                rows.rewards, rows.terminals, v_next, discount=config.discount
            )

            def loss(critic: Any) -> tuple[jax.Array, Metrics]:
                q = critics.values(critic, rows.observations, rows.actions)
                return jnp.sum(jnp.mean(value.squared_error(q, target), 1)), {"q": jnp.mean(q)}

            return descend(state, "critic", adam, loss)

        keys = jax.random.split(key, config.delay)
        state, metrics = jax.lax.scan(improve_critic, state, (keys, batch))
        last = mixed(jax.tree.map(lambda x: x[-1], batch))

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            actions = executed(last.observations, policies.deterministic(actor, last.observations))
            q = critics.values(state.params["critic"], last.observations, actions)
            q = jnp.min(q, axis=0) if config.least else q[0]
            if not config.actor_penalty:
                return -jnp.mean(q), {}
            off = apart(actions, last.actions)
            scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
            return jnp.mean(config.actor_penalty * off - q / scale), {"off": jnp.mean(off)}

        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        online_parts = {name: state.params[name] for name in ("critic", "actor")}
        moved = critics.polyak(state.params["target"], online_parts, config.polyak)
        metrics = jax.tree.map(jnp.mean, metrics) | actor_metrics
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, metrics

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return policies.deterministic(params["actor"], observation)

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        action = best(key, params, observation)
        noise = config.exploration * jax.random.normal(key, action.shape)
        return jnp.clip(action + noise, -1.0, 1.0)

    def prepare(data: Transitions) -> Transitions:
        if not config.critic_penalty:
            return data
        ahead = transitions.next_actions(data)
        return data._replace(extra={**data.extra, "next_actions": ahead})

    algorithm = Algorithm(init, update, act, best, config.batch_size, config.delay, prepare)
    return standardised(algorithm, space) if config.standardise else algorithm


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, from nothing."""
    settings = {name: getattr(config, name) for name in ("steps", "worlds", "warmup")}
    return (online(make(env.space, config), env, every=config.delay, **settings),)
