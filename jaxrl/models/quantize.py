"""Base weights in 8 or 4 bits, for adapters to train on (QLoRA, Dettmers et al. 2023)."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.decoder import abstract as decoder_abstract
from jaxrl.models.linear import NF4, Kind, Quantized

BLOCK = 64
"""Inputs that share a scale, at most."""


def quantize(config: DecoderConfig, params: Params, kind: Kind) -> Params:
    """Parameters whose matrices inside the layers are quantised; `decoder` takes them as they are.

    Blocks of up to 64 inputs of an output share an fp32 scale. A weight is off by at most its
    block's greatest magnitude times 1/254 in int8, times 0.152 in nf4. Embedding, head, norms,
    biases and routers stay as they are. The matrices of the layers take 1.06
    or 0.56 bytes a weight.

    Args:
      config: the decoder's shape.
      params: as from `decoder.init`; what is quantised already stays as it is.
      kind: "int8" or "nf4".

    Raises:
      ValueError: nf4 for a matrix with an odd number of inputs.
    """
    flat = nnx.traversals.flatten_mapping(params)
    for path, leaf in layout(config).items():
        if applies(leaf) and not isinstance(flat[path], Quantized):
            flat[path] = quantize_matrix(flat[path], leaf, kind)
    return nnx.traversals.unflatten_mapping(flat)


def applies(leaf: Leaf) -> bool:
    """Whether a parameter is quantised: the matrices of layers are, but for routers."""
    return leaf.inputs > 0 and leaf.batch > 0 and leaf.axes[-1] != "expert"


def abstract(config: DecoderConfig, kind: Kind) -> tuple[Params, Params]:
    """Shapes of the quantised parameters and, leaf by leaf, their logical axis names."""
    shapes, axes = decoder_abstract(config)
    shapes = jax.eval_shape(functools.partial(quantize, config, kind=kind), shapes)
    flat, axes = (nnx.traversals.flatten_mapping(tree) for tree in (shapes, axes))
    for path, leaf in layout(config).items():
        if applies(leaf):
            # all inputs are one axis, which the first of them names
            names = leaf.axes[: leaf.batch + 1] + leaf.axes[leaf.batch + leaf.inputs :]
            axes[path] = flat[path].replace(codes=names, scales=names)
    return shapes, nnx.traversals.unflatten_mapping(axes)


@functools.partial(jax.jit, static_argnums=(1, 2))
def quantize_matrix(weight: jax.Array, leaf: Leaf, kind: Kind) -> Quantized:
    """One matrix, or a stack of them, quantised."""
    batch, inputs = weight.shape[: leaf.batch], weight.shape[leaf.batch : leaf.batch + leaf.inputs]
    outputs = weight.shape[leaf.batch + leaf.inputs :]
    size = math.prod(inputs)
    if kind == "nf4" and size % 2:
        raise ValueError(f"nf4 packs inputs in pairs, and this matrix has {size}; use int8")
    block = math.gcd(size, BLOCK)
    blocks = weight.astype(jnp.float32).reshape(*batch, size // block, block, *outputs)
    axis = leaf.batch + 1
    peak = jnp.max(jnp.abs(blocks), axis=axis, keepdims=True)
    unit = blocks / jnp.where(peak > 0, peak, 1.0)
    if kind == "int8":
        codes = jnp.round(unit * 127).astype(jnp.int8).reshape(*batch, size, *outputs)
    else:
        bounds = jnp.asarray((NF4[1:] + NF4[:-1]) / 2)
        levels = jnp.searchsorted(bounds, unit).astype(jnp.uint8)
        pairs = levels.reshape(*batch, size // 2, 2, *outputs)
        low, high = (jax.lax.index_in_dim(pairs, i, axis, keepdims=False) for i in (0, 1))
        codes = low | high << 4
    return Quantized(codes, jnp.squeeze(peak, axis), kind, inputs, len(outputs))


def error_bound(kind: Kind) -> float:
    """Greatest error of a weight, as a part of its block's greatest magnitude."""
    return 0.5 / 127 if kind == "int8" else float(np.diff(NF4).max()) / 2
