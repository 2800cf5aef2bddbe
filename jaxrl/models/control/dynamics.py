"""A learnt model of a task: an ensemble of normals over the next state and the reward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models.control import critics, policies
from jaxrl.models.control.mlp import Params


def init(
    key: jax.Array, observation: int, action: int, hidden: tuple[int, ...], members: int
) -> tuple[Params, ...]:
    """Parameters of an ensemble (Chua et al. 2018, PETS)."""
    outputs = 2 * (observation + 1)
    return critics.init(key, observation + action, hidden, members=members, outputs=outputs)


def predict(params: Any, states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation [E, ..., O + 1] of `(s' - s, r)`."""
    mean, log_std = jnp.split(critics.outputs(params, states, actions), 2, axis=-1)
    # softly bounded: a certain model's density has no upper bound
    log_std = 0.5 - jax.nn.softplus(0.5 - log_std)
    return mean, jnp.exp(-5.0 + jax.nn.softplus(log_std + 5.0))


def surprise(params: Any, states: jax.Array, actions: jax.Array, outcome: jax.Array) -> jax.Array:
    """Negative log-density [E, ...], in nats, of `outcome` [..., O + 1]: `(s' - s, r)`."""
    mean, std = predict(params, states, actions)
    return -policies.gaussian_log_prob(mean, std, outcome)


def imagine(
    key: jax.Array, params: Any, states: jax.Array, actions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A step of one member drawn for each row.

    Returns:
      Next states [B, O], rewards [B], and how unsure the ensemble is [B]: the largest norm of a
      member's standard deviation (Yu et al. 2020, MOPO).
    """
    member_key, noise_key = jax.random.split(key)
    mean, std = predict(params, states, actions)
    rows = jnp.arange(len(states))
    member = jax.random.randint(member_key, (len(states),), 0, len(mean))
    sample = mean[member, rows]
    sample = sample + std[member, rows] * jax.random.normal(noise_key, sample.shape)
    unsure = jnp.max(jnp.linalg.norm(std, axis=-1), axis=0)
    return states + sample[:, :-1], sample[:, -1], unsure
