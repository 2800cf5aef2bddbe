"""Critics: values of states, of actions, of every choice; scalar or as a distribution over atoms.

A critic is an ensemble, so every answer leads with the axis [E] of its members; one member is an
ensemble of one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models.control import mlp
from jaxrl.models.control.mlp import Params


def init(
    key: jax.Array,
    inputs: int,
    hidden: tuple[int, ...],
    *,
    members: int = 2,
    outputs: int = 1,
    **kwargs: Any,
) -> tuple[Params, ...]:
    """Parameters of an ensemble.

    Args:
      key: of the draw.
      inputs: features of the state, and of the action where the critic sees one.
      hidden: sizes of the hidden layers.
      members: E.
      outputs: 1, the number of choices, of atoms, or their product.
      **kwargs: of `mlp.init`.
    """
    return mlp.ensemble(key, members, (inputs, *hidden, outputs), **kwargs)


def outputs(params: Any, *inputs: jax.Array, **kwargs: Any) -> jax.Array:
    """What the members say, [E, ..., outputs], of the inputs' features side by side."""
    x = jnp.concatenate(inputs, axis=-1)
    key = kwargs.pop("key", None)
    if key is None:
        return jax.vmap(lambda p: mlp.apply(p, x, **kwargs))(params)
    keys = jax.random.split(key, jax.tree.leaves(params)[0].shape[0])
    return jax.vmap(lambda p, k: mlp.apply(p, x, key=k, **kwargs))(params, keys)


def values(params: Any, *inputs: jax.Array, **kwargs: Any) -> jax.Array:
    """Scalar values [E, ...] of a critic with one output."""
    return outputs(params, *inputs, **kwargs)[..., 0]


def polyak(target: Any, online: Any, rate: float) -> Any:
    """The target a step closer to the online parameters: `(1 - rate) target + rate online`."""
    return jax.tree.map(lambda t, p: t + rate * (p - t), target, online)
