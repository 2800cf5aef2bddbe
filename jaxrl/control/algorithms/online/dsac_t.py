"""DSAC-T: SAC whose critics are normal distributions of the return, with three refinements.

Paper: Duan et al. 2023, "Distributional Soft Actor-Critic with Three Refinements".
Idea: knowing the return's spread tempers over-estimation; the mean learns from the target's mean
and only the spread from its draws, of two distributions the one of lower mean is the target, and
gradients are scaled by the spread itself, so that no reward scale needs tuning.
Policy, temperature and targets move at every second update of the critics.
Formula: gradients `w (y_q - Q) / (s^2 + e)` of Q, `w ((clip(y_z) - Q)^2 - s^2) / (s^3 + e)` of s, w
a running mean of `s^2`; `y_z = r + gamma (Z(s', a') - alpha log pi)`, clipped to 3 mean spreads.
Claim: matches or beats SAC, TD3 and PPO with no tuning for a task, whatever the reward's scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, of_actor, temper
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.losses import control
from jaxrl.models.control import critics, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 20_000
    warmup: int = 1000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    delay: int = 2
    """Steps, each with an update of the critics, to one of the policy and of the targets."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it, as they are learnt from."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)
    parts = ("critic", "actor", "temperature")

    def returned(critic: Any, states: jax.Array, actions: jax.Array) -> tuple:
        """Mean and standard deviation [2, ...] of the return."""
        mean, spread = jnp.moveaxis(critics.outputs(critic, states, actions), -1, 0)
        return mean, jax.nn.softplus(spread) + 1e-3

    def init(key: jax.Array) -> TrainState:
        critic_key, actor_key = jax.random.split(key)
        inputs = space.observation + space.action
        critic = critics.init(critic_key, inputs, config.hidden, outputs=2)
        actor = policies.squashed_init(actor_key, space.observation, config.hidden, space.action)
        running = {"std": jnp.ones(2), "variance": jnp.ones(2)}
        params = {"critic": critic, "target": {"critic": critic, "actor": actor}, "actor": actor}
        params |= {"running": running, "temperature": jnp.zeros(())}
        return fresh(params, dict.fromkeys(parts, adam))

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        own_key, *keys = jax.random.split(key, config.delay + 1)
        alpha = jnp.exp(state.params["temperature"])

        def improve_critic(state: TrainState, inputs: Any) -> tuple[TrainState, Metrics]:
            (act_key, draw_key), rows = jax.random.split(inputs[0]), mixed(inputs[1])
            old, running = state.params["target"], state.params["running"]
            ahead = policies.squashed(old["actor"], rows.next_observations)
            actions, logp = policies.squashed_sample(act_key, *ahead)
            mean, std = returned(old["critic"], rows.next_observations, actions)
            lower = jnp.argmin(mean, axis=0)[None]
            mean, std = (jnp.take_along_axis(x, lower, axis=0)[0] for x in (mean, std))
            draw = jnp.clip(jax.random.normal(draw_key, mean.shape), -3.0, 3.0)
            rewards = config.reward_scale * rows.rewards
            soft = {"discount": config.discount}
            expected, sampled = (
                control.td_target(rewards, rows.terminals, v - alpha * logp, **soft)
                for v in (mean, mean + std * draw)
            )

            def loss(critic: Any) -> tuple[jax.Array, Metrics]:
                q, s = returned(critic, rows.observations, rows.actions)
                scale, width = running["variance"][:, None], 3.0 * running["std"][:, None]
                bounds = {"scale": scale, "width": width}
                losses = control.distributional_critic(q, s, expected, sampled, **bounds)
                moments = {"std": jnp.mean(s, 1), "variance": jnp.mean(jnp.square(s), 1)}
                return jnp.sum(jnp.mean(losses, axis=1)), {"q": jnp.mean(q), "seen": moments}

            state, metrics = descend(state, "critic", adam, loss)
            running = critics.polyak(running, metrics.pop("seen"), config.polyak)
            return state.replace(params=state.params | {"running": running}), metrics

        state, critic_metrics = jax.lax.scan(improve_critic, state, (jnp.stack(keys), batch))
        states = mixed(jax.tree.map(lambda x: x[-1], batch)).observations

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            actions, logp = policies.squashed_sample(own_key, *policies.squashed(actor, states))
            q = jnp.min(returned(state.params["critic"], states, actions)[0], axis=0)
            return jnp.mean(control.soft_actor(logp, q, temperature=alpha)), {"logp": logp}

        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        logp = actor_metrics.pop("logp")
        state, temperature_metrics = temper(state, adam, logp, space)
        current_params = {name: state.params[name] for name in ("critic", "actor")}
        params = state.params | {
            "target": critics.polyak(state.params["target"], current_params, config.polyak)
        }
        metrics = critic_metrics | actor_metrics | temperature_metrics
        metrics = jax.tree.map(jnp.mean, metrics | {"std": state.params["running"]["std"]})
        return state.replace(params=params, step=state.step + 1), metrics

    act, best = of_actor(policies.squashed_act), of_actor(policies.squashed_mode)
    return Algorithm(init, update, act, best, config.batch_size, config.delay)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, from nothing."""
    settings = {"steps": config.steps, "warmup": config.warmup, "every": config.delay}
    return (online(make(env.space, config), env, **settings),)
