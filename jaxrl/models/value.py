"""Value heads: a number for each token's state, regressed or as a distribution over bins."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.models.decoder import Params


@dataclasses.dataclass(frozen=True)
class ValueConfig:
    """The form of a value head."""

    bins: int = 1
    """1 for a scalar; more for a categorical distribution (Farebrother et al. 2024)."""
    low: float = 0.0
    high: float = 1.0
    """Centres of a categorical head's first and last bin."""

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ValueError(f"bins={self.bins}: use 1 for a scalar head, or more")
        if self.bins > 1 and self.low >= self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}")


def init(config: ValueConfig, hidden_size: int) -> Params:
    """Zeroed fp32 weights: the first value is 0, or the middle of the bins, for every state."""
    return {"weight": jnp.zeros((hidden_size, config.bins)), "bias": jnp.zeros(config.bins)}


def outputs(params: Params, hidden: jax.Array) -> jax.Array:
    """What the head says of states [..., D]: [..., bins] fp32, logits if there is more than one.

    Products are fp32 on every device, whatever the compute dtype.
    """
    weight, states = params["weight"], hidden.astype(jnp.float32)
    return jnp.matmul(states, weight, precision=jax.lax.Precision.HIGHEST) + params["bias"]


def support(config: ValueConfig) -> jax.Array:
    """Centres of the bins, [bins]."""
    return jnp.linspace(config.low, config.high, config.bins)


def values(config: ValueConfig, out: jax.Array) -> jax.Array:
    """Values [...] of `outputs` [..., bins]: themselves, or the mean of the distribution."""
    if config.bins == 1:
        return out[..., 0]
    shares = jax.nn.softmax(out, axis=-1)
    return jnp.matmul(shares, support(config), precision=jax.lax.Precision.HIGHEST)
