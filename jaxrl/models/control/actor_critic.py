"""A policy and a value of states side by side, for on-policy methods; any leading axes.

Where observations are pictures, one encoder serves both; `shape` is then theirs, [H, W, C]. With a
memory both read it in place of the observation: `remember` gives it, and the functions of a policy
and a value then have no `shape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models.control import critics, encoders, mlp, policies, sequence


def init(
    key: jax.Array,
    observation: int,
    hidden: tuple[int, ...],
    action: int,
    *,
    log_std: float,
    orthogonal: bool,
    shape: Sequence[int] = (),
    recurrent: bool = False,
) -> dict[str, Any]:
    """Parameters `actor` and `critic`; `log_std` is what a continuous policy begins with.

    A recurrent one has `memory` too: the first hidden layer and a GRU of as many units, both
    shared, after which the other hidden layers follow.
    """
    actor_key, critic_key = jax.random.split(key)
    form = {"orthogonal": orthogonal}
    encoder = {}
    if shape:
        encoder = {"encoder": encoders.init(jax.random.fold_in(key, 2), shape, **form)}
        observation = encoders.features(shape)
    memory = {}
    if recurrent:
        layer_key, gru_key = jax.random.split(jax.random.fold_in(key, 3))
        size, gain = hidden[0], 2**0.5 if orthogonal else 1.0
        layer = mlp.init(layer_key, (observation, size), last=gain, **form)
        memory = {"memory": {"layer": layer, "gru": sequence.gru_init(gru_key, size, size, **form)}}
        observation, hidden = size, hidden[1:]
    net = mlp.init(actor_key, (observation, *hidden, action), last=0.01, **form)
    actor = {"net": net, "log_std": jnp.full(action, log_std, jnp.float32)}
    return {
        "actor": actor,
        "critic": critics.init(critic_key, observation, hidden, members=1, **form),
        **encoder,
        **memory,
    }


def _inputs(both: Any, observations: jax.Array, shape: Sequence[int]) -> jax.Array:
    """What the networks take of observations [..., O]."""
    return encoders.apply(both["encoder"], observations, shape) if shape else observations


def _gru_inputs(
    both: Any, observations: jax.Array, activation: str, shape: Sequence[int]
) -> jax.Array:
    """What the gates of the GRU take of observations [..., O]."""
    memory, inputs = both["memory"], _inputs(both, observations, shape)
    embedded = mlp.ACTIVATIONS[activation](mlp.apply(memory["layer"], inputs))
    return sequence.gru_inputs(memory["gru"], embedded)


def remember(
    both: Any,
    memory: jax.Array,
    observations: jax.Array,
    *,
    activation: str,
    shape: Sequence[int] = (),
) -> jax.Array:
    """The memory [..., H] after observations [..., O], from the one before."""
    inputs = _gru_inputs(both, observations, activation, shape)
    return sequence.gru(both["memory"]["gru"], memory, inputs)


def unroll(
    both: Any,
    memory: jax.Array,
    observations: jax.Array,
    ends: jax.Array,
    *,
    activation: str,
    shape: Sequence[int] = (),
) -> jax.Array:
    """The memories [W, T, H] after each observation of sequences.

    Args:
      both: parameters.
      memory: [W, H], before the first.
      observations: [W, T, O].
      ends: [W, T], above 0 where an episode ends after the step; the next one begins with zeros.
      activation, shape: of the networks.
    """

    def step(memory: jax.Array, moment: tuple) -> tuple[jax.Array, jax.Array]:
        inputs, end = moment
        after = sequence.gru(both["memory"]["gru"], memory, inputs)
        return jnp.where(end[:, None] > 0, 0.0, after), after

    inputs = jnp.swapaxes(_gru_inputs(both, observations, activation, shape), 0, 1)
    return jnp.swapaxes(jax.lax.scan(step, memory, (inputs, ends.T))[1], 0, 1)


def value(
    both: Any, observations: jax.Array, *, activation: str, shape: Sequence[int] = ()
) -> jax.Array:
    """V [...] of observations [..., O]."""
    function, inputs = mlp.ACTIVATIONS[activation], _inputs(both, observations, shape)
    return critics.values(both["critic"], inputs, activation=function)[0]


def _outputs(
    both: Any, observations: jax.Array, activation: str, shape: Sequence[int]
) -> jax.Array:
    """Logits, or means, [..., A] of observations [..., O]."""
    inputs = _inputs(both, observations, shape)
    return mlp.apply(both["actor"]["net"], inputs, activation=mlp.ACTIVATIONS[activation])


def density(
    both: Any,
    observations: jax.Array,
    actions: jax.Array,
    *,
    activation: str,
    discrete: bool,
    shape: Sequence[int] = (),
) -> tuple[jax.Array, jax.Array]:
    """Log-density [...] of the actions and entropy [...] of the policy, in nats.

    The actions are those that were drawn, before they are cut to the box.
    """
    out = _outputs(both, observations, activation, shape)
    if discrete:
        return policies.categorical(out, actions)
    std = jnp.exp(both["actor"]["log_std"])
    logp = policies.gaussian_log_prob(out, std, actions)
    return logp, jnp.broadcast_to(policies.gaussian_entropy(std), logp.shape)


def sample(
    key: jax.Array,
    both: Any,
    observations: jax.Array,
    *,
    activation: str,
    discrete: bool,
    shape: Sequence[int] = (),
) -> jax.Array:
    """An action of the policy, [..., A] and not cut to the box, or [...] int."""
    out = _outputs(both, observations, activation, shape)
    if discrete:
        return jax.random.categorical(key, out)
    return out + jnp.exp(both["actor"]["log_std"]) * jax.random.normal(key, out.shape)


def mode(
    both: Any,
    observations: jax.Array,
    *,
    activation: str,
    discrete: bool,
    shape: Sequence[int] = (),
) -> jax.Array:
    """The most likely action, [..., A] inside the box, or [...] int."""
    out = _outputs(both, observations, activation, shape)
    return jnp.argmax(out, axis=-1) if discrete else jnp.clip(out, -1.0, 1.0)


Moments = dict[str, jax.Array]
"""`mean` and `variance` [...], and `count`, a scalar, of what went in."""


def start_moments(shape: tuple[int, ...]) -> Moments:
    """Mean 0 and variance 1 of arrays [*shape], which the first batch replaces."""
    return {"mean": jnp.zeros(shape), "variance": jnp.ones(shape), "count": jnp.float32(1e-4)}


def update_moments(moments: Moments, batch: jax.Array) -> Moments:
    """The moments with a further `batch` [N, ...] (Chan et al. 1979)."""
    size = len(batch)
    count = moments["count"] + size
    apart = jnp.mean(batch, axis=0) - moments["mean"]
    squares = moments["variance"] * moments["count"] + jnp.var(batch, axis=0) * size
    squares += jnp.square(apart) * moments["count"] * size / count
    mean = moments["mean"] + apart * size / count
    return {"mean": mean, "variance": squares / count, "count": count}


def standardise(moments: Moments, x: jax.Array, *, bound: float = 10.0) -> jax.Array:
    """`x` [..., *shape] less the mean, over the standard deviation, at most `bound` in size."""
    scaled = (x - moments["mean"]) / jnp.sqrt(moments["variance"] + 1e-8)
    return jnp.clip(scaled, -bound, bound)
