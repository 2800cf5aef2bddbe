"""ReCOIL: imitation from a few demonstrations among other data, with no discriminator.

Paper: Sikchi et al. 2023, "Dual RL: Unification and New Methods for Reinforcement and Imitation
Learning".
Idea: imitation is the dual of matching mixtures of visitations, expert with other data: Q rises on
the expert, falls on the rest, and stays consistent along both, so that ways to the expert's states
are valued too. V and the policy follow as in IQL. No reward is read.
Formula: `Q: w (E_rest Q - E_expert Q) + (gamma V(s') - Q)^2 / 2`, `V: expectile of Q`,
`pi: -exp((Q - V) / T) log pi`.
Claim: imitates where the data hardly cover the expert, above methods with a discriminator.
Reading: the trajectories of highest return stand for the demonstrations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data.offline import transitions
from data.offline.transitions import Transitions
from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, of_actor
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.types import TrainState
from losses import control, value
from models.control import critics, policies


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    demonstrations: int = 4
    """Trajectories."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    expectile: float = 0.8
    temperature: float = 0.3
    weight: float = 0.5
    """Of raising Q on the expert and lowering it elsewhere; it sets the scale of Q."""


def config() -> Config:
    """Four demonstrations."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)

    def init(key: jax.Array) -> TrainState:
        v_key, q_key, actor_key = jax.random.split(key, 3)
        critic = critics.init(q_key, space.observation + space.action, config.hidden)
        v = critics.init(v_key, space.observation, config.hidden, members=1)
        actor = policies.gaussian_init(actor_key, space.observation, config.hidden, space.action)
        params = {"value": v, "critic": critic, "target": critic, "actor": actor}
        return fresh(params, dict.fromkeys(("value", "critic", "actor"), adam))

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        seen = critics.values(state.params["target"], batch.observations, batch.actions)
        q_data = value.ensemble_target(seen)

        def value_loss(v: Any) -> tuple[jax.Array, Metrics]:
            here = critics.values(v, batch.observations)[0]
            return jnp.mean(value.expectile_loss(here, q_data, tau=config.expectile)), {}

        state, value_metrics = descend(state, "value", adam, value_loss)
        here, ahead = (
            critics.values(state.params["value"], s)[0]
            for s in (batch.observations, batch.next_observations)
        )
        weight = control.advantage_weight(q_data - here, temperature=config.temperature)
        given = {"discount": config.discount, "weight": config.weight}

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, batch.observations, batch.actions)
            expert = batch.extra["expert"]
            loss = control.dual_imitation(q, ahead, batch.terminals, expert, **given)
            gap = jnp.mean((2.0 * expert - 1.0) * q)
            return jnp.sum(jnp.mean(loss, axis=1)), {"gap": gap}

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            mean, std = policies.gaussian(actor, batch.observations)
            logp = policies.gaussian_log_prob(mean, std, batch.actions)
            return -jnp.mean(weight * logp), {"weight": jnp.mean(weight)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, value_metrics | critic_metrics | actor_metrics

    def prepare(data: Transitions) -> tuple[Transitions, Transitions]:
        shown = set(np.argsort(-transitions.returns(data))[: config.demonstrations].tolist())
        rest = sorted(set(range(len(transitions.episodes(data)))) - shown)
        parts = transitions.choose(data, sorted(shown)), transitions.choose(data, rest)
        flags = (np.full(len(p.rewards), 1.0 - i, np.float32) for i, p in enumerate(parts))
        return tuple(p._replace(extra={"expert": f}) for p, f in zip(parts, flags, strict=True))

    def sample(key: jax.Array, data: Any, size: int) -> Transitions:
        keys = jax.random.split(key)
        halves = [replay.uniform(k, part, size // 2) for k, part in zip(keys, data, strict=True)]
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *halves)

    act, best = of_actor(policies.gaussian_act), of_actor(policies.gaussian_mode)
    return Algorithm(init, update, act, best, config.batch_size, prepare, sample)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
