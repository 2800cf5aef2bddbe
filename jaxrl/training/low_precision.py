"""Train state in fewer bits: bfloat16 parameters and block-wise 8-bit moments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

BLOCK = 256
"""Most elements that have one scale in common."""
SMALLEST = 4096
"""Elements of the smallest array whose moments are quantised."""
_SHORTEST = 8
"""Of its last axis: with a scale for fewer, little is saved."""


def round_stochastically(x: jax.Array, key: jax.Array) -> jax.Array:
    """Float32 to bfloat16: up or down to a neighbour, so that the mean over keys is `x`.

    The part of the bits that is cut off is the probability of the neighbour that is farther from
    zero. What bfloat16 holds stays as it is, infinities and nan too. Bits are drawn by the global
    position of an element, so that the result does not depend on how `x` is sharded.

    Paper: Zamirai et al. 2020, "Revisiting BFloat16 Training"

    Args:
      x: float32, of any shape.
      key: a typed PRNG key.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    added = bits + jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    rounded = jax.lax.bitcast_convert_type((added >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def dynamic_map(*, signed: bool) -> np.ndarray:
    """The 256 levels of dynamic quantisation, in ascending order: float32, 1 the largest.

    Seven decades down from 1, of which each has half as many levels as the one above. Levels are
    the centres of equal parts of [0.1, 1] of a decade, with 0 and 1 beside them.

    Paper: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"
    """
    levels, low = [0.0, 1.0], np.float32(0.1)
    for decade in range(7):
        parts = 2 ** (decade + (not signed))
        # rounded as in the authors' bitsandbytes, which calls torch.linspace
        i, step = np.arange(parts + 1.0), float((1 - low) / np.float32(parts))
        halves = (float(low) + step * i, 1 - step * (parts - i))
        edges = np.where(i < (parts + 1) // 2, *halves).astype(np.float32)
        centres = np.float32(10.0 ** (decade - 6)) * ((edges[:-1] + edges[1:]) / np.float32(2))
        levels += [*centres, *(-centres if signed else ())]
    return np.sort(np.array(levels, np.float32))


class BlockCodes(NamedTuple):
    """An array as 8-bit codes, with a scale for each block of its last axis."""

    codes: jax.Array
    """[..., n] uint8, each a place in a `dynamic_map`."""
    scales: jax.Array
    """[..., blocks] float32, the largest absolute value of each block."""


def blocks(shape: tuple[int, ...]) -> int:
    """Number of equal blocks of the last axis of an array: the smallest power of two for which they
    have at most `BLOCK` elements. 0: the array is too small, or its last axis cannot be cut so.
    """
    if not shape or np.prod(shape) < SMALLEST or shape[-1] < _SHORTEST:
        return 0
    count = 1 << max(0, -(-shape[-1] // BLOCK) - 1).bit_length()
    return 0 if shape[-1] % count else count


def quantize(x: jax.Array, *, signed: bool) -> BlockCodes:
    """The nearest levels of a float32 array, for which `blocks` is not 0.

    Of an unsigned one, what is above 0 does not become 0: Adam divides by the root of it (Li et al.
    2023, "Memory Efficient Optimizers with 4-bit States": the zero-point problem).
    """
    count = blocks(x.shape)
    cut = x.reshape(*x.shape[:-1], count, -1)
    scales = jnp.max(jnp.abs(cut), axis=-1)
    unit = (cut / jnp.where(scales > 0, scales, 1.0)[..., None]).reshape(x.shape)
    code = _nearest(jnp.abs(unit), signed)
    if signed:
        code = jnp.where(unit < 0, 127 - jnp.minimum(code, 127), 127 + code)
    else:
        code = jnp.maximum(code, (x > 0).astype(code.dtype))
    return BlockCodes(code.astype(jnp.uint8), scales)


def dequantize(x: BlockCodes, *, signed: bool) -> jax.Array:
    """The float32 array of codes."""
    place = x.codes.astype(jnp.int32)
    level = _level(jnp.abs(place - 127) if signed else place, signed)
    level = jnp.where(place < 127, -level, level) if signed else level
    cut = level.reshape(*x.scales.shape, -1) * x.scales[..., None]
    return cut.reshape(x.codes.shape)


def _nearest(unit: jax.Array, signed: bool) -> jax.Array:
    """Places of the levels from 0 on that values from 0 to 1 are nearest to: int32.

    By arithmetic and not by a table, which TPUs read one element after another. At the middle of
    two levels it is either.
    """
    levels = dynamic_map(signed=signed)
    levels = levels[levels >= 0]
    place = jnp.zeros(unit.shape, jnp.int32)
    for decade in range(7):
        parts = 2 ** (decade + (not signed))
        first = parts - (not signed)
        part = jnp.floor((unit - 10.0 ** (decade - 7)) * (10.0 ** (6 - decade) / 0.9 * parts))
        inside = first + jnp.clip(part, 0, parts - 1).astype(jnp.int32)
        place = jnp.where(unit > (levels[first - 1] + levels[first]) / 2, inside, place)
    return jnp.where(unit > (levels[-2] + levels[-1]) / 2, len(levels) - 1, place)


def _level(place: jax.Array, signed: bool) -> jax.Array:
    """The levels at places from that of 0 on, as of `dynamic_map` to rounding: float32.

    Sums come before products, which no compiler can then fuse into one rounding: the result is the
    same in every program.
    """
    level = jnp.zeros(place.shape, jnp.float32)
    for decade in range(7):
        parts = 2 ** (decade + (not signed))
        first = parts - (not signed)
        inside = (place - first).astype(jnp.float32) + np.float32(0.5 + parts / 9)
        level = jnp.where(
            place >= first, inside * np.float32(10.0 ** (decade - 6) * 0.9 / parts), level
        )
    return jnp.where(place == (128 if signed else 255), 1.0, level)


def with_int8_moments(
    adam: optax.GradientTransformation, matrices: Callable[[optax.Params], optax.Params]
) -> optax.GradientTransformation:
    """A transformation whose Adam moments are stored as `BlockCodes`, the first one signed.

    An update computes with moments of float32, and rounds those that it stores.

    Args:
      adam: has states `optax.ScaleByAdamState`.
      matrices: which of the parameters have such moments, if `blocks` cuts them.
    """

    def is_adam(state: Any) -> bool:
        return isinstance(state, optax.ScaleByAdamState)

    def stored(state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        def codes(signed: bool, x: jax.Array, is_matrix: bool) -> jax.Array | BlockCodes:
            return quantize(x, signed=signed) if is_matrix and blocks(x.shape) else x

        mu, nu = (
            jax.tree.map(functools.partial(codes, signed), moments, matrices(moments))
            for signed, moments in ((True, state.mu), (False, state.nu))
        )
        return state._replace(mu=mu, nu=nu)

    def read(state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        def values(signed: bool, x: jax.Array | BlockCodes) -> jax.Array:
            return dequantize(x, signed=signed) if isinstance(x, BlockCodes) else x

        mu, nu = (
            jax.tree.map(functools.partial(values, signed), moments, is_leaf=_is_codes)
            for signed, moments in ((True, state.mu), (False, state.nu))
        )
        return state._replace(mu=mu, nu=nu)

    def map_adam(function: Callable[[Any], Any], state: optax.OptState) -> optax.OptState:
        return jax.tree.map(lambda s: function(s) if is_adam(s) else s, state, is_leaf=is_adam)

    def init(params: optax.Params) -> optax.OptState:
        return map_adam(stored, adam.init(params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, state = adam.update(updates, map_adam(read, state), params)
        return updates, map_adam(stored, state)

    return optax.GradientTransformation(init, update)


def _is_codes(x: Any) -> bool:
    return isinstance(x, BlockCodes)


def scale_sharding(where: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """The sharding of the scales of an array: that of the array, where its shards are of whole
    blocks; else the last axis of the scales is not split.

    Args:
      where: of the array.
      shape: of the array.
    """
    spec = [*where.spec, *[None] * (len(shape) - len(where.spec))]
    last = where.shard_shape(shape)[-1]
    if blocks(shape) % (shape[-1] // last):
        spec[-1] = None
    return NamedSharding(where.mesh, PartitionSpec(*spec), memory_kind=where.memory_kind)
