"""QWeb without its meta-trainer: DQN on forms, a value for each element, fields filled in at first.

Paper: Gur et al. 2019, "Learning to Navigate the Web".
Idea: a page has many elements and an instruction many fields, so Q is composed of parts that are
shared: one of the element to act on, one of what to type into it. A reward at the end alone is
never met on a long form; so training begins close to it, with each element filled in rightly with
some probability, which falls to 0.
Formula: `Q(s, type(e, j)) = Q_D(s, e) + Q_T(s, e, j)`, `Q(s, send)`; the loss is DQN's; episodes
begin with each element filled with probability p, p falling over the phases
Claim: 100% on World-of-Bits forms of up to 100 elements, without demonstrations; DQN alone fails.
Reading: recalled. Forms are those of `form`: names and places, without text or tree, so there is no
recurrent encoder of the page; an element sees what it holds and the mean over the page. Not here:
the trainer that generates instructions, sub-goals, and potential-based rewards. A phase has
a replay buffer of its own. The ablation is `--algorithm.prefill 0`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import dqn
from jaxrl.control.environment import Environment
from jaxrl.control.environments import form
from jaxrl.control.program import Program, online
from jaxrl.models.control import mlp

DISCRETE = True
ENVIRONMENT = "form"


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are DQN's own."""

    prefill: tuple[float, ...] = (0.8, 0.6, 0.4, 0.2, 0.0)
    """Probability that an element is filled in from the start, in phases of equal length."""
    steps: int = 20_000
    """Of all phases together."""
    worlds: int = 4
    every: int = 2
    updates: int = 2
    warmup: int = 500
    """Steps at random that a phase begins with."""
    hidden: tuple[int, ...] = (32,)
    learning_rate: float = 1e-3
    batch_size: int = 64
    discount: float = 0.95
    polyak: float = 0.01


def config() -> Config:
    """Five phases, for forms of some five fields."""
    return Config()


def network(config: Config, count: int) -> dqn.Network:
    """Q of each pair of element and field, and of sending, for forms of `count` fields."""
    width = config.hidden[-1]

    def init(key: jax.Array) -> dict[str, Any]:
        page, element, place, field, typing, send = jax.random.split(key, 6)
        own = 2 * count + 1
        return {
            "page": mlp.init(page, (own, *config.hidden, width)),
            "element": mlp.init(element, (own + width, *config.hidden, 1)),
            "place": mlp.init(place, (own + width, width)),
            "field": mlp.init(field, (count, width)),
            "typing": mlp.init(typing, (width, 1)),
            "send": mlp.init(send, (width, *config.hidden, 1)),
        }

    def outputs(params: Any, observation: jax.Array) -> jax.Array:
        elements, fields, typed = form.parts(observation)
        held, empty = typed[..., :-1] @ fields, typed[..., -1:]
        own = jnp.concatenate([elements, held, empty], axis=-1)  # [..., K, 2 K + 1]
        whole = jnp.mean(mlp.apply(params["page"], own), axis=-2)
        over = (*own.shape[:-1], width)
        seen = jnp.concatenate([own, jnp.broadcast_to(whole[..., None, :], over)], axis=-1)
        place, field = mlp.apply(params["place"], seen), mlp.apply(params["field"], fields)
        pairs = jax.nn.relu(place[..., :, None, :] + field[..., None, :, :])  # [..., K, K, width]
        q = mlp.apply(params["element"], seen) + mlp.apply(params["typing"], pairs)[..., 0]
        send = mlp.apply(params["send"], whole)
        return jnp.concatenate([q.reshape(*q.shape[:-2], -1), send], axis=-1)

    return dqn.Network(init, outputs)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """A phase for each probability."""
    count = round((env.space.action - 1) ** 0.5)
    length = -(-config.steps // len(config.prefill))
    rounds = len(config.prefill) * length * config.updates // (config.worlds * config.every)
    own = shared(dqn.Config, config, epsilon_updates=max(rounds // 2, 1))
    algorithm = dqn.make(env.space, own, network(config, count))
    names = "worlds", "every", "updates", "warmup"
    given = {name: getattr(config, name) for name in names}
    return tuple(
        online(algorithm, form.make(count, each, env.horizon), steps=length, **given)
        for each in config.prefill
    )
