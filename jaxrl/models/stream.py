"""Parameters put together a layer at a time, each where it belongs as soon as it is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models import quantize
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, layout
from jaxrl.models.linear import Kind, Weight

Shardings = Callable[[DecoderConfig], Any]
"""From a config to a pytree of shardings like the parameters, or one sharding for all."""


def places(config: DecoderConfig, shardings: Shardings | None) -> dict[tuple[str, ...], Any]:
    """Where each parameter goes, by its path; None is the default device."""
    where = shardings(config) if shardings else None
    if where is None or isinstance(where, jax.sharding.Sharding):
        return dict.fromkeys(layout(config), where)
    return {
        path: functools.reduce(lambda part, key: part[key], path, where) for path in layout(config)
    }


def assemble(
    leaf: Leaf, layers: Iterable[np.ndarray], where: Any, dtype: str, kind: Kind | None
) -> Weight:
    """One parameter from its layers.

    The host holds one layer of it at a time; where it is quantised, so does the device in full.

    Args:
      leaf: the parameter.
      layers: each of shape `leaf.shape[1:]`; of a parameter that is not stacked, itself alone.
      where: sharding, or shardings like the result; None for the default device.
      dtype: of matrices that are not quantised; vectors and routers are float32.
      kind: quantise the matrices of the layers to this; None: nothing.
    """
    dtype = _dtype(leaf, dtype, kind)
    layers = (np.asarray(layer, jnp.dtype(dtype)) for layer in layers)
    if not leaf.batch:
        return _placed(next(layers), where)
    depth, layer_leaf = leaf.shape[0], leaf._replace(shape=leaf.shape[1:], batch=leaf.batch - 1)

    def finish(layer: jax.Array) -> Weight:
        return (
            quantize.quantize_matrix(layer, layer_leaf, kind)
            if kind and quantize.applies(leaf)
            else layer
        )

    def start() -> Weight:
        return jax.tree.map(lambda row: _bits(jnp.zeros((depth, *row.shape), row.dtype)), rows)

    def put(weight: Weight, layer: jax.Array, row: int) -> Weight:
        return jax.tree.map(
            lambda a, b: jax.lax.dynamic_update_index_in_dim(a, _bits(b), row, 0),
            weight,
            finish(layer),
        )

    def end(weight: Weight) -> Weight:
        return jax.tree.map(lambda a, row: _values(a, row.dtype), weight, rows)

    rows = jax.eval_shape(finish, jax.ShapeDtypeStruct(layer_leaf.shape, jnp.dtype(dtype)))
    put = jax.jit(put, donate_argnums=0, out_shardings=where)
    weight = jax.jit(start, out_shardings=where)()
    for row, layer in enumerate(layers):
        # a layer in flight is host memory: without the wait, all of them would be
        weight = jax.block_until_ready(put(weight, layer, row))
    return jax.jit(end, donate_argnums=0, out_shardings=where)(weight)


def _bits(a: jax.Array) -> jax.Array:
    """The array, bf16 as its bits.

    An update of bf16 that is compiled for a CPU converts the stack to fp32 and back, so that
    loading would take time quadratic in the depth.
    """
    return jax.lax.bitcast_convert_type(a, jnp.uint16) if a.dtype == jnp.bfloat16 else a


def _values(a: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The array that `_bits` was given, whose dtype is `dtype`."""
    return a if a.dtype == dtype else jax.lax.bitcast_convert_type(a, dtype)


def put(leaf: Leaf, value: np.ndarray, where: Any, dtype: str, kind: Kind | None) -> Weight:
    """One parameter that the host holds whole, of shape `leaf.shape`; else as `assemble`."""
    if kind and quantize.applies(leaf):
        return assemble(leaf, value if leaf.batch else [value], where, dtype, kind)
    return _placed(np.asarray(value, jnp.dtype(_dtype(leaf, dtype, kind))), where)


def _dtype(leaf: Leaf, dtype: str, kind: Kind | None) -> str:
    """Of a parameter: matrices that are not quantised have the dtype that is asked for."""
    narrow = "vocab" in leaf.axes or (quantize.applies(leaf) and not kind)
    return dtype if narrow else "float32"


def _placed(value: np.ndarray, where: Any) -> jax.Array:
    if where is None:
        return jax.device_put(value)
    # Not device_put: with several processes, that would compare the whole array in all of them.
    return jax.make_array_from_callback(value.shape, where, lambda index: value[index])
