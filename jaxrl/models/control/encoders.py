"""Convolutions over pictures: flat rows of uint8 become features, for networks that take numbers.

Small pictures have one layer (Young & Tian 2019, "MinAtar"), larger ones three (Mnih et al. 2015,
"Human-level control through deep reinforcement learning"). The parameters say what the network is:
the stride of a layer is half its kernel, rounded down, and a last layer of two axes is linear, with
LayerNorm and tanh after it (Kostrikov et al. 2020, "Image Augmentation Is All You Need", DrQ).
Nothing is padded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.models.control import critics, mlp
from jaxrl.models.control.mlp import Params
from jaxrl.models.linear import precision

SMALL = ((3, 16),)
"""Kernel and channels of each layer, for pictures that `LARGE` would leave nothing of."""
LARGE = ((8, 32), (4, 64), (3, 64))
LEAST = 36
"""Height and width from which on pictures have the layers `LARGE`."""


def layers_of(shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Kernel and channels of each layer for pictures [H, W, C].

    Raises:
      ValueError: pictures without room for one kernel.
    """
    least = min(shape[0], shape[1])
    if least < SMALL[0][0]:
        raise ValueError(
            f"observations are pictures {list(shape)}, and a side of at least {SMALL[0][0]} is "
            "needed; enlarge them"
        )
    return LARGE if least >= LEAST else SMALL


def features(shape: Sequence[int]) -> int:
    """How many features a picture [H, W, C] has."""
    height, width, _ = shape
    layers = layers_of(shape)
    for kernel, _ in layers:
        height, width = ((side - kernel) // (kernel // 2) + 1 for side in (height, width))
    return height * width * layers[-1][1]


def init(
    key: jax.Array, shape: Sequence[int], *, orthogonal: bool = False, latent: int = 0
) -> tuple[Params, ...]:
    """Fresh fp32 layers: weights [k, k, in, out] and biases [out], uniform in +-1 / sqrt(inputs).

    Args:
      key: of the draw.
      shape: H, W, C of the pictures.
      orthogonal: weights orthogonal with gain sqrt(2), and biases 0, as `mlp.init` has them.
      latent: features, of a linear layer with LayerNorm and tanh; 0: those of the convolutions.
    """
    form = layers_of(shape)
    channels = [shape[2], *(count for _, count in form)]
    layers = []
    for i, ((kernel, _), (fan_in, fan_out)) in enumerate(
        zip(form, itertools.pairwise(channels), strict=True)
    ):
        size = (kernel, kernel, fan_in, fan_out)
        weight_key, bias_key = jax.random.split(jax.random.fold_in(key, i))
        bound = (kernel * kernel * fan_in) ** -0.5
        weight = jax.random.uniform(weight_key, size, minval=-bound, maxval=bound)
        bias = jax.random.uniform(bias_key, (fan_out,), minval=-bound, maxval=bound)
        if orthogonal:
            weight = jax.nn.initializers.orthogonal(2**0.5)(weight_key, size)
            bias = jnp.zeros(fan_out)
        layers.append({"weight": weight, "bias": bias})
    if latent:
        # the only layer of a perceptron of two sizes
        (last,) = mlp.init(jax.random.fold_in(key, len(form)), (features(shape), latent))
        layers.append(last | {"scale": jnp.ones(latent), "shift": jnp.zeros(latent)})
    return tuple(layers)


def apply(params: Sequence[Params], pictures: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Features [..., F] float32 of pictures [..., H W C] in 0 to 255."""
    lead = pictures.shape[:-1]
    x = pictures.astype(jnp.float32).reshape(-1, *shape) / 255.0
    for layer in params:
        if layer["weight"].ndim == 2:
            flat = x.reshape(len(x), -1)
            x = jnp.matmul(flat, layer["weight"], precision=precision(x.dtype)) + layer["bias"]
            x = jnp.tanh(mlp.standardised(x) * layer["scale"] + layer["shift"])
            continue
        stride = layer["weight"].shape[0] // 2
        x = jax.lax.conv_general_dilated(
            x, layer["weight"], (stride, stride), "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=precision(x.dtype),
        )  # fmt: skip
        x = jax.nn.relu(x + layer["bias"])
    return x.reshape(*lead, -1)


def shifted(key: jax.Array, pictures: jax.Array, shape: Sequence[int], most: int) -> jax.Array:
    """Pictures [B, H W C], each moved by up to `most` pixels along both axes, its edge repeated.

    The augmentation of DrQ (Kostrikov et al. 2020), and of SERL's authors (`batched_random_crop`).
    """
    pad = ((most, most), (most, most), (0, 0))

    def move(start: jax.Array, flat: jax.Array) -> jax.Array:
        padded = jnp.pad(flat.reshape(shape), pad, mode="edge")
        return jax.lax.dynamic_slice(padded, (*start, 0), shape).ravel()

    starts = jax.random.randint(key, (len(pictures), 2), 0, 2 * most + 1)
    return jax.vmap(move)(starts, pictures)


def critic(
    key: jax.Array,
    observation: int,
    shape: tuple[int, ...],
    hidden: tuple[int, ...],
    *,
    action: int,
    latent: int,
    **kwargs: Any,
) -> Any:
    """Parameters of a critic of actions: an ensemble, behind one encoder where it sees pictures.

    Args:
      key: of the draw.
      observation: O.
      shape: H, W, C of pictures; empty for numbers.
      hidden: sizes of the hidden layers.
      action: A.
      latent: features of a picture.
      **kwargs: of `critics.init`.

    Returns:
      The ensemble, or with pictures a dict of `encoder` and `net`.
    """
    if not shape:
        return critics.init(key, observation + action, hidden, **kwargs)
    # far from the numbers of the members, whose keys `split` makes as `fold_in` does
    encoder = init(jax.random.fold_in(key, 0x5E715E71), shape, latent=latent)
    return {"encoder": encoder, "net": critics.init(key, latent + action, hidden, **kwargs)}


def see(params: Any, observations: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """What networks read of observations [..., O]: these, or features of pictures by a critic.

    Only the critic's own loss trains its encoder: an actor reads the features as they are, so that
    its loss does not change them (SAC-AE, DrQ, SERL).
    """
    return apply(params["encoder"], observations, shape) if shape else observations


def ensemble(params: Any, shape: tuple[int, ...]) -> Any:
    """The ensemble of a critic, whose first input is what `see` gives."""
    return params["net"] if shape else params


def values(
    params: Any, observations: jax.Array, actions: jax.Array, shape: tuple[int, ...], **kwargs: Any
) -> jax.Array:
    """The values [E, ...] that a critic gives actions [..., A]; `kwargs` are of `mlp.apply`."""
    read = see(params, observations, shape)
    return critics.values(ensemble(params, shape), read, actions, **kwargs)


class Network(NamedTuple):
    """What says the value of every choice."""

    init: Callable[[jax.Array], Any]
    """key -> parameters."""
    outputs: Callable[[Any, jax.Array], jax.Array]
    """parameters, observations -> [..., choices], or the atoms of all of them side by side."""


def network(
    observation: int, shape: tuple[int, ...], hidden: tuple[int, ...], outputs: int
) -> Network:
    """A perceptron of observations [..., O], or of an encoder's features of pictures.

    Args:
      observation: O.
      shape: H, W, C of pictures; empty for numbers.
      hidden: sizes of the hidden layers.
      outputs: numbers that it gives.
    """
    form = {"members": 1, "outputs": outputs}
    if not shape:
        return Network(
            lambda key: critics.init(key, observation, hidden, **form),
            lambda params, observations: critics.outputs(params, observations)[0],
        )

    def init_both(key: jax.Array) -> Any:
        encoder = init(jax.random.fold_in(key, 1), shape)
        return {"encoder": encoder, "head": critics.init(key, features(shape), hidden, **form)}

    def evaluate(params: Any, pictures: jax.Array) -> jax.Array:
        return critics.outputs(params["head"], apply(params["encoder"], pictures, shape))[0]

    return Network(init_both, evaluate)
