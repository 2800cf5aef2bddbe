"""Multi-layer perceptrons: initialised once, applied by one function, stacked into ensembles.

The parameters say what the network is: a layer that holds a `scale` is normalised, and parameters
whose leaves lead with an axis [E] are an ensemble of E networks. In fp32, matrix products are
computed at full precision on every device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models.linear import precision

Params = dict[str, Any]
Activation = Callable[[jax.Array], jax.Array]
ACTIVATIONS: dict[str, Activation] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu}


def init(
    key: jax.Array,
    sizes: Sequence[int],
    *,
    norm: bool = False,
    norm_after: bool = False,
    last: float = 1.0,
    orthogonal: bool = False,
) -> tuple[Params, ...]:
    """Fresh fp32 layers: weights and biases uniform in +-1 / sqrt(inputs) (LeCun et al. 1998).

    The biases are drawn too: a network of rectifiers without them is homogeneous, its values grow
    with the observation's norm, and bootstrapping from states further out can diverge.

    Args:
      key: of the draw.
      sizes: of the input, the hidden layers and the output.
      norm: LayerNorm before each hidden activation (Ball et al. 2023, RLPD).
      norm_after: LayerNorm after it (Tarasov et al. 2023, ReBRAC; Park et al. 2025, FQL).
      last: gain of the output layer; 0.01 starts a policy near zero.
      orthogonal: weights orthogonal, with gain sqrt(2) in hidden layers, and biases 0 (Huang et al.
        2022, "The 37 Implementation Details of PPO").

    Returns:
      One dict a layer.
    """
    shapes = [(fan_in + 1, fan_out) for fan_in, fan_out in itertools.pairwise(sizes)]
    # one draw for all layers: a draw is what takes long to compile
    draw = jax.random.uniform(key, (sum(i * o for i, o in shapes),), minval=-1.0)
    parts = jnp.split(draw, list(itertools.accumulate(i * o for i, o in shapes[:-1])))
    layers = []
    for shape, part in zip(shapes, parts, strict=True):
        hidden = len(layers) < len(shapes) - 1
        scaled = part.reshape(shape) * (1.0 if hidden else last) * (shape[0] - 1) ** -0.5
        layer = {"weight": scaled[:-1], "bias": scaled[-1]}
        if orthogonal:
            turn = jax.nn.initializers.orthogonal(2**0.5 if hidden else last)
            turned = turn(jax.random.fold_in(key, len(layers)), layer["weight"].shape)
            layer = {"weight": turned, "bias": jnp.zeros(shape[1])}
        if norm_after and hidden:
            layer |= {"after_scale": jnp.ones(shape[1]), "after_shift": jnp.zeros(shape[1])}
        if norm and hidden:
            layer |= {"scale": jnp.ones(shape[1]), "shift": jnp.zeros(shape[1])}
        layers.append(layer)
    return tuple(layers)


def apply(
    params: tuple[Params, ...],
    x: jax.Array,
    *,
    activation: Activation = jax.nn.relu,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """The network's output [..., sizes[-1]] for `x` [..., sizes[0]].

    Args:
      params: as from `init`.
      x: input.
      activation: after each hidden layer, and after its norm.
      dropout: rate at hidden layers, before the norm (Hiraoka et al. 2021, DroQ).
      key: needed for dropout; without one nothing is dropped.
    """
    for i, layer in enumerate(params[:-1]):
        x = jnp.matmul(x, layer["weight"], precision=precision(x.dtype)) + layer["bias"]
        if dropout and key is not None:
            keep_mask = jax.random.bernoulli(jax.random.fold_in(key, i), 1.0 - dropout, x.shape)
            x = jnp.where(keep_mask, x / (1.0 - dropout), 0.0)
        if "scale" in layer:
            x = standardised(x) * layer["scale"] + layer["shift"]
        x = activation(x)
        if "after_scale" in layer:
            x = standardised(x) * layer["after_scale"] + layer["after_shift"]
    last = params[-1]
    return jnp.matmul(x, last["weight"], precision=precision(x.dtype)) + last["bias"]


def standardised(x: jax.Array) -> jax.Array:
    """`x` less its mean over its standard deviation, along the last axis."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-6)


def ensemble(key: jax.Array, members: int, sizes: Sequence[int], **kwargs: Any) -> tuple:
    """Parameters of `members` independent networks, stacked on a leading axis."""
    return jax.vmap(lambda k: init(k, sizes, **kwargs))(jax.random.split(key, members))
