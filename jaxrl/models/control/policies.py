"""Policies over actions in [-1, 1]^A: deterministic, Gaussian, squashed Gaussian, flow, diffusion.

Each is an `init` and pure functions of `(params, observation)`, with any leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.models.control import mlp
from jaxrl.models.control.mlp import Params

LOG_STD_RANGE = (-5.0, 2.0)
_EDGE = 1.0 - 1e-5  # of the squashed range; beyond it arctanh is not finite


def deterministic(params: tuple[Params, ...], observation: jax.Array) -> jax.Array:
    """The action `tanh(f(s))` [..., A] of a perceptron."""
    return jnp.tanh(mlp.apply(params, observation))


def gaussian_init(
    key: jax.Array, observation: int, hidden: tuple[int, ...], action: int, **kwargs: bool
) -> dict[str, Params]:
    """A policy with a mean that is squashed and a spread that no state changes (IQL, AWAC)."""
    net = mlp.init(key, (observation, *hidden, action), last=0.01, **kwargs)
    return {"net": net, "log_std": jnp.zeros(action)}


def gaussian(params: dict[str, Params], observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean [..., A] in (-1, 1) and standard deviation [A] of the unsquashed policy."""
    return deterministic(params["net"], observation), _std(params["log_std"])


def gaussian_log_prob(mean: jax.Array, std: jax.Array, action: jax.Array) -> jax.Array:
    """Log-density [...] of `action` [..., A] under a diagonal normal, in nats."""
    z = (action - mean) / std
    return jnp.sum(-0.5 * jnp.square(z) - jnp.log(std) - 0.5 * math.log(2 * math.pi), axis=-1)


def gaussian_entropy(std: jax.Array) -> jax.Array:
    """Entropy [...] of a diagonal normal, in nats."""
    return jnp.sum(jnp.log(std) + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


def gaussian_kl(
    mean: jax.Array, std: jax.Array, other_mean: jax.Array, other_std: jax.Array
) -> jax.Array:
    """KL divergence [...] of a diagonal normal from another, in nats; squashing both keeps it."""
    spread = jnp.square(std / other_std)
    apart = jnp.square((mean - other_mean) / other_std)
    return 0.5 * jnp.sum(spread + apart - 1.0 - jnp.log(spread), axis=-1)


def categorical(logits: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability of `actions` [...] and entropy [...] of the softmax of `logits` [..., A]."""
    logp = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logp, actions[..., None], axis=-1)[..., 0]
    return chosen, -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def regression_init(
    key: jax.Array, observation: int, hidden: tuple[int, ...], action: int
) -> dict[str, Params]:
    """A policy that regresses on actions of data: `gaussian`, or the softmax of as many choices."""
    return gaussian_init(key, observation, hidden, action)


def regression_log_prob(
    params: dict[str, Params], observation: jax.Array, action: jax.Array, *, discrete: bool
) -> jax.Array:
    """Log-density [...] of `action`, [..., A] or [...] int, in nats."""
    if discrete:
        return categorical(mlp.apply(params["net"], observation), action)[0]
    return gaussian_log_prob(*gaussian(params, observation), action)


def regression_act(discrete: bool) -> Callable[..., jax.Array]:
    """key, parameters, observation [..., O] -> an action of the policy."""
    if not discrete:
        return gaussian_act
    return lambda key, params, x: jax.random.categorical(key, mlp.apply(params["net"], x))


def regression_mode(discrete: bool) -> Callable[..., jax.Array]:
    """key, parameters, observation [..., O] -> its most likely action."""
    if not discrete:
        return gaussian_mode
    return lambda key, params, x: jnp.argmax(mlp.apply(params["net"], x), axis=-1)


def features(action: jax.Array, choices: int, *, discrete: bool) -> jax.Array:
    """Actions as a critic takes them: [..., A], choices as one-hot vectors."""
    return jax.nn.one_hot(action, choices) if discrete else action


def gaussian_act(key: jax.Array, params: dict[str, Params], observation: jax.Array) -> jax.Array:
    """An action [..., A] of the unsquashed policy, clipped to the box."""
    mean, std = gaussian(params, observation)
    return jnp.clip(mean + std * jax.random.normal(key, mean.shape), -1.0, 1.0)


def gaussian_mode(key: jax.Array, params: dict[str, Params], observation: jax.Array) -> jax.Array:
    """Its most likely action; the key is not read."""
    return gaussian(params, observation)[0]


def squashed_init(
    key: jax.Array, observation: int, hidden: tuple[int, ...], action: int
) -> tuple[Params, ...]:
    """A policy whose mean and spread both depend on the state (SAC)."""
    return mlp.init(key, (observation, *hidden, 2 * action), last=0.01)


def squashed(params: tuple[Params, ...], observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation [..., A] before the tanh."""
    mean, log_std = jnp.split(mlp.apply(params, observation), 2, axis=-1)
    return mean, _std(log_std)


def squashed_sample(key: jax.Array, mean: jax.Array, std: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An action `tanh(u)` [..., A], `u ~ N(mean, std)`, and its log-density [...]."""
    u = mean + std * jax.random.normal(key, mean.shape)
    return jnp.tanh(u), _squashed_density(mean, std, u)


def squashed_act(key: jax.Array, params: tuple[Params, ...], observation: jax.Array) -> jax.Array:
    """An action [..., A] of the squashed policy."""
    return squashed_sample(key, *squashed(params, observation))[0]


def squashed_mode(key: jax.Array, params: tuple[Params, ...], observation: jax.Array) -> jax.Array:
    """The action of its mean; the key is not read."""
    return jnp.tanh(squashed(params, observation)[0])


def squashed_log_prob(mean: jax.Array, std: jax.Array, action: jax.Array) -> jax.Array:
    """Log-density [...] of `action` [..., A]; one on the edge counts as just inside it."""
    return _squashed_density(mean, std, jnp.arctanh(jnp.clip(action, -_EDGE, _EDGE)))


def _squashed_density(mean: jax.Array, std: jax.Array, u: jax.Array) -> jax.Array:
    # log(1 - tanh(u)^2) in the form that stays finite for large u
    slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
    return gaussian_log_prob(mean, std, u) - jnp.sum(slope, axis=-1)


def _std(log_std: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(log_std, *LOG_STD_RANGE))


def field_init(
    key: jax.Array, observation: int, hidden: tuple[int, ...], action: int
) -> tuple[Params, ...]:
    """A vector field over actions, for flow and diffusion policies: reads s, the point and t."""
    return mlp.init(key, (observation + action + 1, *hidden, action))


def field(
    params: tuple[Params, ...], observation: jax.Array, point: jax.Array, time: jax.Array
) -> jax.Array:
    """The field [..., A] at `point` [..., A] and `time` [..., 1] in [0, 1]."""
    return mlp.apply(
        params, jnp.concatenate([observation, point, time], -1), activation=jax.nn.gelu
    )


def flow(
    params: tuple[Params, ...], observation: jax.Array, noise: jax.Array, *, steps: int = 10
) -> jax.Array:
    """The action that `noise` [..., A] flows to by Euler's method (Lipman et al. 2022)."""
    action = noise
    for i in range(steps):
        time = jnp.full((*action.shape[:-1], 1), i / steps)
        action = action + field(params, observation, action, time) / steps
    return jnp.clip(action, -1.0, 1.0)


def diffusion_schedule(steps: int) -> jax.Array:
    """The variance-preserving betas [steps] of Wang et al. 2022 (Diffusion-QL)."""
    i = jnp.arange(1, steps + 1)
    return 1.0 - jnp.exp(-0.1 / steps - 0.5 * 9.9 * (2 * i - 1) / steps**2)


def diffusion(
    key: jax.Array, params: tuple[Params, ...], observation: jax.Array, action: int, *, steps: int
) -> jax.Array:
    """An action drawn by ancestral sampling from a field that predicts the noise (DDPM)."""
    betas = diffusion_schedule(steps)
    alpha_bar = jnp.cumprod(1.0 - betas)
    keys = jax.random.split(key, steps + 1)
    x = jax.random.normal(keys[steps], (*observation.shape[:-1], action))
    for i in reversed(range(steps)):
        time = jnp.full((*x.shape[:-1], 1), i / steps)
        noise = field(params, observation, x, time)
        x = (x - betas[i] / jnp.sqrt(1.0 - alpha_bar[i]) * noise) / jnp.sqrt(1.0 - betas[i])
        if i:
            x = x + jnp.sqrt(betas[i]) * jax.random.normal(keys[i], x.shape)
    return jnp.clip(x, -1.0, 1.0)
