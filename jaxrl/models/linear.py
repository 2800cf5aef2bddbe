"""Projections by weights of any kind: plain arrays, quantised ones, and those with an adapter.

The kinds are pytrees that stand where an array would. Their leaves lead with the same axes of
layers and experts, so they are scanned, unstacked and sharded like it.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.ad_checkpoint import checkpoint_name

Kind = Literal["int8", "nf4"]

_NEGATIVE = (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004)
_POSITIVE = (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)
PROJECTION = "projection"
"""Names what projections put out, for `remat`."""
NF4 = np.array((*_NEGATIVE, 0.0, *_POSITIVE), np.float32)
"""The levels of 4-bit NormalFloat (Dettmers et al. 2023): quantiles of a normal, in [-1, 1]."""


@struct.dataclass
class Quantized:
    """A matrix in few bits; made by `quantize.quantize`."""

    codes: jax.Array
    """[..., I, *O] int8, or [..., I / 2, *O] uint8 with two levels of NF4 each, the first low."""
    scales: jax.Array
    """[..., blocks, *O] fp32: the greatest magnitude of each run of inputs."""
    kind: Kind = struct.field(pytree_node=False)
    inputs: tuple[int, ...] = struct.field(pytree_node=False)
    """Sizes of the input axes; I is their product."""
    outputs: int = struct.field(pytree_node=False)
    """Number of output axes."""


@struct.dataclass
class Adapted:
    """A frozen matrix and its trained low-rank change; made by `lora.attach`."""

    base: Weight
    a: jax.Array
    """[..., *I, R]."""
    b: jax.Array
    """[..., R, *O]."""
    magnitude: jax.Array | None
    """[..., *O], the norm of each output's weights; None without DoRA."""
    key: jax.Array | None
    """Typed PRNG key of each layer's dropout; None for none."""
    scale: float = struct.field(pytree_node=False)
    dropout: float = struct.field(pytree_node=False)


@struct.dataclass
class AdaptedRows:
    """A frozen matrix and N low-rank changes, of which each row of a batch has one or none; made by
    `lora_stack.attach`, and its rows by `lora_stack.choose`."""

    base: Weight
    a: jax.Array
    """[N, R, *I], zeros beyond an adapter's own rank."""
    b: jax.Array
    """[N, R, *O], times the adapter's scale; zeros likewise."""
    chosen: jax.Array | None = None
    """[B, N] bool, the adapter of each row, or [1, N] of all; None: no row has one."""


@struct.dataclass
class Transposed:
    """A matrix with its outputs first; made by `outputs_first`."""

    values: jax.Array
    """[*O, *I]."""


Weight = jax.Array | Quantized | Adapted | AdaptedRows | Transposed


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """How products of arrays of this type are to be computed: those of fp32 in fp32.

    By default they are one pass of bf16 on TPU, and TF32 on GPU. Products of 16-bit numbers are
    exact as they are.
    """
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def dense(weight: Weight, dtype: jnp.dtype) -> jax.Array:
    """The weight as one array of the compute dtype; an adapter is added in, without dropout."""
    match weight:
        case Quantized():
            return _dequantize(weight).astype(dtype)
        case Adapted():
            return _merged(weight).astype(dtype)
    return weight.astype(dtype)


def project(x: jax.Array, weight: Weight, *, inputs: int = 1) -> jax.Array:
    """Contract the last `inputs` axes of x with the first of the weight, in x's dtype."""
    if isinstance(weight, Transposed):
        return project_transposed(x, weight.values.astype(x.dtype), inputs=inputs)
    if isinstance(weight, AdaptedRows):
        y = project(x, weight.base, inputs=inputs)
        return y if weight.chosen is None else y + project_by_row(x, weight, inputs=inputs)
    if not isinstance(weight, Adapted):
        return checkpoint_name(_matmul(inputs, x, dense(weight, x.dtype)), PROJECTION)
    low = project(_drop(x, weight), weight.a, inputs=inputs)
    y = project(x, weight.base, inputs=inputs) + project(low, weight.b) * weight.scale
    if weight.magnitude is None:
        return y
    return y * _stretch(weight).astype(y.dtype)


def project_transposed(
    x: jax.Array, matrix: jax.Array, *, inputs: int = 1, dtype: jnp.dtype | None = None
) -> jax.Array:
    """Contract the last `inputs` axes of x with the last of `matrix` [*O, *I], as `matrix @ x.T`.

    XLA's CPU kernels repack the right factor at every product, which for few tokens costs as much
    as the product; so the weights stand on the left, and the barriers keep XLA from swapping.

    Args:
      x: [..., *I].
      matrix: [*O, *I].
      inputs: number of axes in I.
      dtype: of the result; None: x's.

    Returns:
      [..., *O].
    """
    outputs, tokens = matrix.shape[: matrix.ndim - inputs], x.shape[: x.ndim - inputs]
    size = math.prod(matrix.shape[matrix.ndim - inputs :])
    right = jax.lax.optimization_barrier(x.reshape(-1, size).T)
    left, exact = matrix.reshape(-1, size), precision(x.dtype)
    y = jnp.matmul(left, right, precision=exact, preferred_element_type=dtype)
    return jax.lax.optimization_barrier(y).T.reshape(*tokens, *outputs)


def outputs_first(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as from `decoder.unstack`, matrices transposed: a CPU decodes fastest with them.

    See `project_transposed`. What is not a plain matrix of a dense layer stays as it is.
    """
    inputs = {"q": 1, "k": 1, "v": 1, "o": 2, "gate": 1, "up": 1, "down": 1}
    inputs |= {"qkvz": 1, "ba": 1, "qkv": 1, "z": 1, "b": 1, "a": 1, "out": 2}
    inputs |= {"bcx": 1, "zxbcdt": 1, "output": 1, "projection": 1}
    inputs |= {"decay_down": 1, "decay_up": 1, "z_down": 1, "z_up": 1}

    def turn(part: dict[str, Any], axes: int) -> dict[str, Any]:
        def leaf(name: str, value: Any) -> Any:
            plain = isinstance(value, jax.Array) and name in inputs
            if not plain or value.ndim > axes:
                return value
            order = (*range(inputs[name], value.ndim), *range(inputs[name]))
            return Transposed(jnp.transpose(value, order))

        return {name: leaf(name, value) for name, value in part.items()}

    axes = {"attention": 3, "mixer": 3, "mlp": 2, "input": 2}
    layers = tuple(
        {k: turn(part, axes[k]) if k in axes else part for k, part in layer.items()}
        for layer in params["layers"]
    )
    return {**params, "layers": layers}


def project_by_row(x: jax.Array, weight: AdaptedRows, *, inputs: int = 1) -> jax.Array:
    """What the adapter of each row adds to its projection; zeros where it has none.

    Both products are single plain ones of all rows with all adapters, with zeros between them for
    the adapters that a row does not have. A gather of matrices by row would multiply each row by
    matrices of its own: a batch of products with one row each, which fill no matrix unit, after a
    copy of B adapters through memory. This reads each adapter once. The N-fold arithmetic is on a
    rank: it stays below that of the base while N R is below the sizes of the matrix.

    Args:
      x: [B, ..., *I].
      weight: with rows chosen.
      inputs: number of axes in I.

    Returns:
      [B, ..., *O] in x's dtype.
    """
    assert weight.chosen is not None
    a, b, last = weight.a.astype(x.dtype), weight.b.astype(x.dtype), x.ndim - inputs
    if jax.default_backend() == "cpu":
        low = project_transposed(x, a, inputs=inputs)
    else:
        axes = tuple(range(last, x.ndim)), tuple(range(2, a.ndim))
        low = jnp.tensordot(x, a, axes=axes, precision=precision(x.dtype))
    rows, count = weight.chosen.shape
    chosen = weight.chosen.reshape(rows, *[1] * (last - 1), count, 1)
    # where: an adapter whose products overflow must not reach the rows of others
    return _matmul(2, jnp.where(chosen, low, 0), b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul(inputs: int, x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tensordot(x, w, axes=inputs, precision=precision(x.dtype))


def _matmul_forward(
    inputs: int, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _matmul(inputs, x, w), (x, w)


def _matmul_backward(
    inputs: int, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # The derived rule puts dy first in dw: XLA on CPU then copies dy, mostly the wider of the two,
    # into another order, computes what made it once more for each element, and transposes dw.
    x, w = saved
    rows = tuple(range(x.ndim - inputs))
    outputs = tuple(range(len(rows), dy.ndim)), tuple(range(inputs, w.ndim))
    product = functools.partial(jax.lax.dot_general, precision=precision(x.dtype))
    dx = product(dy, w, (outputs, ((), ())))
    return dx, product(x, dy, ((rows, rows), ((), ())))


_matmul.defvjp(_matmul_forward, _matmul_backward)


def project_ragged(x: jax.Array, weight: Weight, sizes: jax.Array) -> jax.Array:
    """Project runs of rows by one matrix each.

    Args:
      x: [M, I], rows of one expert next to each other.
      weight: [E, I, O]; with an adapter, not one with DoRA.
      sizes: [E] int32 rows of each expert, M in all.

    Returns:
      [M, O] in x's dtype.
    """
    if not isinstance(weight, Adapted):
        return jax.lax.ragged_dot(x, dense(weight, x.dtype), sizes, precision=precision(x.dtype))
    low = project_ragged(_drop(x, weight), weight.a, sizes)
    y = project_ragged(x, weight.base, sizes)
    return y + project_ragged(low, weight.b, sizes) * weight.scale


def _drop(x: jax.Array, weight: Adapted) -> jax.Array:
    if weight.key is None:
        return x
    keep_mask = jax.random.bernoulli(weight.key, 1 - weight.dropout, x.shape)
    return jnp.where(keep_mask, x / (1 - weight.dropout), 0).astype(x.dtype)


def norms(weight: Weight, inputs: int) -> jax.Array:
    """The norm of each output's weights, in fp32."""
    matrix = dense(weight, jnp.float32)
    return jnp.sqrt(jnp.sum(matrix * matrix, axis=tuple(range(inputs))))


def _sum(weight: Adapted) -> jax.Array:
    product = jnp.tensordot(weight.a, weight.b, axes=1, precision=precision(weight.a.dtype))
    change = product * weight.scale
    return dense(weight.base, jnp.float32) + change


def _stretch(weight: Adapted) -> jax.Array:
    # DoRA takes the norm as a constant in the backward pass (its section 4.3)
    return weight.magnitude / jax.lax.stop_gradient(norms(_sum(weight), weight.a.ndim - 1))


def _merged(weight: Adapted) -> jax.Array:
    matrix = _sum(weight)
    if weight.magnitude is None:
        return matrix
    return matrix * _stretch(weight)


def _dequantize(weight: Quantized) -> jax.Array:
    axis = weight.codes.ndim - weight.outputs - 1
    if weight.kind == "int8":
        unit = weight.codes.astype(jnp.float32) / 127
    else:
        pairs = jnp.stack([weight.codes & 15, weight.codes >> 4], axis=axis + 1)
        unit = jnp.asarray(NF4)[pairs]
    before, outputs = weight.codes.shape[:axis], weight.codes.shape[axis + 1 :]
    blocks = unit.reshape(*before, weight.scales.shape[axis], -1, *outputs)
    return (blocks * jnp.expand_dims(weight.scales, axis + 1)).reshape(
        *before, *weight.inputs, *outputs
    )
