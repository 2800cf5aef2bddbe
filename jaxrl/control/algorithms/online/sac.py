"""SAC: an actor that maximises value and entropy, a critic of two, a temperature that tunes itself.

Paper: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications".
Idea: the policy is a squashed Gaussian; the Bellman target takes the least of two critics and adds
the entropy of the next action; the temperature holds the entropy at minus the action's dimensions.
Formula: `y = r + gamma (min_i Q_i(s', a') - alpha log pi(a' | s'))`, `pi: min alpha log pi - Q`.
Claim: matches or beats DDPG, PPO and TD3 on continuous control, with little tuning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, of_actor, temper
from jaxrl.control.batches import Batch, augmented, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.losses import control, value
from jaxrl.models.control import critics, encoders, policies
from jaxrl.types import TrainState

PICTURES = True
"""Observations may be pictures."""

Term = Callable[[jax.Array, Any, TrainState, Batch], jax.Array]
"""key, the parameters of what is trained, state, minibatch -> a scalar added to its loss."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters; REDQ, DroQ and RLPD are other values of them."""

    steps: int = 20_000
    worlds: int = 1
    updates: int = 1
    """Updates after each step of the worlds, of which each is `critic_updates` and one actor's."""
    warmup: int = 1000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    members: int = 2
    """Critics."""
    subset: int = 2
    """Critics, drawn anew each time, whose least value is the target."""
    critic_updates: int = 1
    """Of the critics, each on a minibatch of its own, to one of the actor, on the last of them."""
    norm: bool = False
    """LayerNorm in the critics."""
    dropout: float = 0.0
    """In the critics: in targets and predictions; the actor then seeks the members' mean."""
    temperature: float = 1.0
    """At the start."""
    target_entropy: float = -1.0
    """Of the policy, for each dimension of the action, in nats; RLPD's authors have -1/2."""
    backup_actions: int = 1
    """Actions of each next state, of which the target takes the best (CQL's maximum: 10)."""
    actor_rate: float | None = None
    """Learning rate of the actor; the critics' when omitted."""
    backup_entropy: bool = True
    """Whether the target counts the next action's entropy."""
    latent: int = 50
    """Features of a picture; actor and critic read the same, which the critic's loss trains."""
    shift: int = 0
    """Pixels by which pictures are moved at random in updates; DrQ and SERL: 4."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(
    space: Space, config: Config, *, critic_term: Term | None = None, actor_term: Term | None = None
) -> Algorithm:
    """The algorithm for observations and actions of these sizes.

    Args:
      space: sizes.
      config: hyperparameters.
      critic_term, actor_term: what an offline or robust variant adds to the losses.

    Parts whose `extra` hold a `weight` [rows] weigh their Bellman errors by it.
    """
    adam = optax.adam(config.learning_rate)
    slow = optax.adam(config.actor_rate or config.learning_rate)
    parts, shape = {"critic": adam, "actor": slow, "temperature": adam}, space.shape

    def init(key: jax.Array) -> TrainState:
        critic_key, actor_key = jax.random.split(key)
        sizes = {"members": config.members, "norm": config.norm}
        sizes |= {"action": space.action, "latent": config.latent}
        critic = encoders.critic(critic_key, space.observation, shape, config.hidden, **sizes)
        width = config.latent if shape else space.observation
        actor = policies.squashed_init(actor_key, width, config.hidden, space.action)
        log_alpha = jnp.log(jnp.float32(config.temperature))
        params = {"critic": critic, "target": critic, "actor": actor, "temperature": log_alpha}
        return fresh(params, parts)

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        alpha = jnp.exp(state.params["temperature"])
        own_keys, *keys = jax.random.split(key, (config.critic_updates + 1, 5))

        def improve_critic(state: TrainState, inputs: Any) -> tuple[TrainState, Metrics]:
            (act_key, pick_key, drop_key, target_key, term_key), minibatch = inputs
            rows = augmented(act_key, mixed(minibatch), shape, config.shift)
            read = encoders.see(state.params["critic"], rows.next_observations, shape)
            states = encoders.see(state.params["target"], rows.next_observations, shape)
            ahead = policies.squashed(state.params["actor"], read)
            if config.backup_actions > 1:
                lead = (config.backup_actions, *rows.rewards.shape)
                states = jnp.broadcast_to(states, (*lead, states.shape[-1]))
                ahead = tuple(jnp.broadcast_to(x, (*lead, space.action)) for x in ahead)
            actions, logp = policies.squashed_sample(act_key, *ahead)
            chosen = encoders.ensemble(state.params["target"], shape)
            if config.subset < config.members:
                pick = jax.random.choice(pick_key, config.members, (config.subset,), replace=False)
                chosen = jax.tree.map(lambda x: x[pick], chosen)
            drop = {"dropout": config.dropout, "key": target_key} if config.dropout else {}
            q_next = critics.values(chosen, states, actions, **drop)
            v_next = value.ensemble_target(q_next) - config.backup_entropy * alpha * logp
            v_next = jnp.max(v_next, axis=0) if config.backup_actions > 1 else v_next
            y = control.td_target(rows.rewards, rows.terminals, v_next, discount=config.discount)

            def loss(critic: Any) -> tuple[jax.Array, Metrics]:
                drop_settings = drop | {"key": drop_key} if drop else {}
                q = encoders.values(critic, rows.observations, rows.actions, shape, **drop_settings)
                error = rows.extra.get("weight", 1.0) * value.squared_error(q, y)
                term = critic_term(term_key, critic, state, minibatch) if critic_term else 0.0
                metrics = {"q": jnp.mean(q), "q_spread": jnp.mean(jnp.std(q, axis=0))}
                return jnp.sum(jnp.mean(error, axis=1)) + term, metrics

            state, metrics = descend(state, "critic", adam, loss)
            moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
            return state.replace(params=state.params | {"target": moved}), metrics

        state, metrics = jax.lax.scan(improve_critic, state, (jnp.stack(keys), batch))
        last = jax.tree.map(lambda x: x[-1], batch)
        rows = augmented(keys[-1][0], mixed(last), shape, config.shift)  # the critics' last ones
        critic = state.params["critic"]
        states = encoders.see(critic, rows.observations, shape)
        least = config.subset == config.members and not config.dropout

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            actions, logp = policies.squashed_sample(own_keys[0], *policies.squashed(actor, states))
            drop = {"dropout": config.dropout, "key": own_keys[2]} if config.dropout else {}
            q = critics.values(encoders.ensemble(critic, shape), states, actions, **drop)
            q = jnp.min(q, axis=0) if least else jnp.mean(q, axis=0)
            loss = jnp.mean(control.soft_actor(logp, q, temperature=alpha))
            term = actor_term(own_keys[1], actor, state, last) if actor_term else 0.0
            return loss + term, {"logp": logp}

        state, actor_metrics = descend(state, "actor", slow, actor_loss)
        state, temperature_metrics = temper(
            state, adam, actor_metrics.pop("logp"), space, config.target_entropy
        )
        metrics = jax.tree.map(jnp.mean, metrics | actor_metrics | temperature_metrics)
        return state.replace(step=state.step + 1), metrics

    act, best = of_actor(policies.squashed_act, shape), of_actor(policies.squashed_mode, shape)
    return Algorithm(init, update, act, best, config.batch_size, config.critic_updates)


def programs(env: Environment, config: Config, *, prior: float = 0.0) -> tuple[Program, ...]:
    """Online, from nothing; `prior` is the share of offline data in a minibatch (RLPD)."""
    settings = {name: getattr(config, name) for name in ("steps", "worlds", "updates", "warmup")}
    return (online(make(env.space, config), env, prior=prior, **settings),)
