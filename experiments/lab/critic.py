"""PPO's critic in the lab: the losses, targets and head of `jaxrl.extensions.critic`, all seeds at
once."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.lab import policy
from jaxrl.config import from_dict
from jaxrl.extensions import critic
from jaxrl.extensions.critic import CriticConfig
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.models import value
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params, Trajectory


class Critic(NamedTuple):
    """Of all seeds."""

    params: Params
    opt_state: optax.OptState


class Steps(NamedTuple):
    """What a critic does; S seeds, N sequences of L tokens."""

    init: Callable[[Params], Critic]
    """policies -> their critics."""
    advised: Callable[[Critic, Trajectory, jax.Array | None], Trajectory]
    """(critics, batch, reference's log-probabilities) -> with advantages, returns and values."""
    update: Callable[[Critic, Trajectory], Critic]


def steps(
    config: CriticConfig, model: DecoderConfig, optimize: optax.GradientTransformation
) -> Steps:
    """Of a config; its optimizer gives the learning rate alone."""
    return _steps(json.dumps(dataclasses.asdict(config), sort_keys=True), model, optimize)


@functools.cache
def _steps(text: str, model: DecoderConfig, optimize: optax.GradientTransformation) -> Steps:
    config = from_dict(CriticConfig, json.loads(text))

    def outputs(params: Params, tokens: jax.Array, after: int = 0) -> jax.Array:
        """[N, L + after, bins], of the states that tokens are chosen in and of that after them."""
        hidden = policy.states(model, params["decoder"], tokens)[:, : tokens.shape[1] - 1 + after]
        return jnp.pad(value.outputs(params["value"], hidden), ((0, 0), (1, 0), (0, 0)))

    def init(copied: Params) -> Critic:
        body = {name: leaf for name, leaf in copied.items() if name != "head"}
        params = {"decoder": body, "value": value.init(config.head, model.hidden_size)}
        return Critic(params, optimize.init(params))

    def advised(own: Critic, batch: Trajectory, ref_logp: jax.Array | None) -> Trajectory:
        values = value.values(config.head, outputs(own.params, batch.tokens, after=1))
        last = None
        if config.bootstrap:
            mask = batch.action_mask
            after = mask.shape[1] - jnp.argmax(mask[:, ::-1], axis=1)
            cut = ~batch.stopped & jnp.any(mask, axis=1)
            last = jnp.where(cut, values[jnp.arange(len(values)), after], 0.0)
        return critic.estimate(config, batch, values[:, :-1], ref_logp, last_value=last)

    def update(own: Critic, batch: Trajectory) -> Critic:
        def loss(params: Params) -> jax.Array:
            out = outputs(params, batch.tokens)
            each = critic.losses(config, out, values=batch.values, returns=batch.returns)
            learned = batch.valid & batch.learned
            return masked_mean(each, batch.action_mask & learned[:, None])

        updates, opt_state = optimize.update(jax.grad(loss)(own.params), own.opt_state)
        rate = config.optimizer.learning_rate
        return Critic(jax.tree.map(lambda p, u: p - rate * u, own.params, updates), opt_state)

    return Steps(*(jax.jit(jax.vmap(step)) for step in (init, advised, update)))
