"""Where a pass of the decoder keeps its arrays on the mesh in use: in training and in sampling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.mesh.mesh import Rules, axes_of, batch_shards, constrain, param_spec, spec
from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig, Kernel
from jaxrl.models.decoder import Params
from jaxrl.models.mixers import tree as trees
from jaxrl.models.mixers.tree import Tree

_TABLE = ("inputs", "embed")


def layout(model: DecoderConfig) -> decoder.Layout:
    """The layout of a training pass on the current mesh, inside jit.

    Rows stay on the devices that hold them, cut along the sequence by `context`; each layer's
    weights are brought together over the batch's axes while the layer is computed, in the compute
    dtype, and the gradient is scattered again. Without this, the compiler may instead leave the
    weights in place and send every device's activations to all others.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return decoder.Layout(attend=functools.partial(attend, rules=()))
    axes = {path: leaf.axes for path, leaf in decoder.layout(model).items()}
    batch = axes_of("batch", model.rules)

    def weights(params: Params, stack: str) -> Params:
        prefix, stacked = ((stack,), 1) if stack else ((), 0)

        def gather(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
            path = (*prefix, *(getattr(step, "key", "") for step in path))
            if path not in axes:  # codes of quantised weights and adapters keep their sharding
                return x
            where = param_spec(model, path, axes[path][stacked:], x.shape, mesh, unsplit=batch)
            return jax.lax.with_sharding_constraint(x, where)

        together = jax.tree_util.tree_map_with_path(gather, decoder.cast(params, model.dtype))
        if "inputs" in params:  # its table stays where it lies, see `look_up`
            together["inputs"]["embed"] = params["inputs"]["embed"]
        return together

    return decoder.Layout(
        activations=lambda x: constrain(x, "batch", "sequence", None, rules=model.rules),
        weights=weights,
        look_up=functools.partial(look_up, model, ("batch", "sequence")),
        attend=functools.partial(attend, rules=model.rules),
        by_rows=functools.partial(by_rows, rules=model.rules),
        by_heads=functools.partial(by_heads, rules=model.rules),
    )


def sampling_layout(model: DecoderConfig) -> decoder.Layout:
    """Decoding on the mesh in use, inside jit: slots and caches are split over the batch's axes.

    Weights keep their sharding.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return decoder.Layout(attend=functools.partial(attend, rules=()))
    return decoder.Layout(
        activations=lambda x: constrain(x, "batch", None, None, rules=model.rules),
        look_up=functools.partial(look_up, model, ("batch", None)),
        attend=functools.partial(attend, rules=model.rules),
        by_rows=functools.partial(by_rows, rules=model.rules),
        cache=lambda layer: jax.tree.map(
            lambda x, axes: constrain(x, *axes, rules=model.rules),
            layer,
            decoder.cache_axes(layer),
        ),
    )


def look_up(
    model: DecoderConfig,
    names: tuple[str | None, str | None],
    table: jax.Array,
    tokens: jax.Array,
    dtype: jnp.dtype,
) -> jax.Array:
    """Inside jit, the rows of tokens in the table of `kind_block.LayerInputs`, split as it is.

    Every device takes its part of the rows of all tokens that the holders of the table share, and
    sends each of them theirs. The gradient comes back the same way.

    Args:
      model: the decoder's shape.
      names: logical axes of the tokens.
      table: [V, D].
      tokens: [B, T] int32.
      dtype: of the result.

    Returns:
      [B, T, D], split like the activations.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = decoder.layout(model)[_TABLE].axes
    where = param_spec(model, _TABLE, axes, table.shape, mesh)
    holders = [axis for part in where for axis in _names(part)]
    rows = spec(names, tokens.shape, mesh, unsplit=holders, rules=model.rules)
    tokens = jax.lax.with_sharding_constraint(tokens, rows)
    parts = jax.lax.with_sharding_constraint(table[tokens].astype(dtype), P(*rows, where[1]))
    return constrain(parts, *names, None, rules=model.rules)


def by_rows(function: Callable[..., Any], *, rules: Rules = ()) -> Callable[..., Any]:
    """Inside jit, a function of weights and of pytrees of arrays [B, ...], computed by rows.

    Devices share the rows. What it sorts, gathers or scans over stays on the device, and the
    gradient of the weights is summed over devices once and in fp32, where the compiler would sum it
    in every step of a scan. Rows that do not divide are computed by all.

    Args:
      function: of a pytree of weights and of those; gives arrays [B, ...].
      rules: exceptions to `RULES`.
    """

    def run(weights: Any, *rows: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        shards, batch = batch_shards(mesh, rules), axes_of("batch", rules)
        if shards == 1 or jax.tree.leaves(rows)[0].shape[0] % shards:
            return function(weights, *rows)
        split, narrow = P(batch), _narrowed(weights)
        local = jax.shard_map(
            lambda weights, *rows: function(narrow(weights), *rows),
            in_specs=(P(), *[split] * len(rows)),
            out_specs=split,
            axis_names={*batch},
            check_vma=False,
        )
        return local(_widened(weights), *rows)

    return run


def by_heads(
    function: Callable[..., jax.Array],
    heads: int,
    weights: Any,
    tree: Tree,
    *rows: jax.Array,
    rules: Rules,
) -> jax.Array:
    """`tree.along_rows` on the mesh in use, inside jit.

    Where `context` cuts rows, the devices that hold the parts of a row gather it, each computes an
    equal share of the heads along all of it, and they exchange what they read, so that each has
    all heads of its part. Heads that do not divide are all computed by each.
    """
    mesh = jax.sharding.get_abstract_mesh()
    logical, shape = ("batch", "sequence", "heads"), (*rows[0].shape[:2], heads)
    where = spec(logical, shape, mesh, rules=rules)
    batch, cut, split = (_names(part) for part in where)
    if math.prod(mesh.shape[axis] for axis in cut) == 1:
        along = functools.partial(trees.along_rows, function, heads)
        return by_rows(along, rules=rules)(weights, tree, *rows)
    narrow = _narrowed(weights)
    exchanges = heads % math.prod(mesh.shape[axis] for axis in (*split, *cut)) == 0
    shared = (*split, *cut) if exchanges else split

    def take(entries: jax.Array) -> jax.Array:
        count, shards = entries.shape[2], math.prod(mesh.shape[axis] for axis in shared)
        return _part(jnp.repeat(entries, math.lcm(count, shards) // count, axis=2), shared, 2)

    def local(weights: Any, tree: Tree, *parts: jax.Array) -> jax.Array:
        full_rows = [jax.lax.all_gather(part, cut, axis=1, tiled=True) for part in parts]
        y = function(take, narrow(weights), tree, *full_rows)
        if exchanges:
            return jax.lax.all_to_all(y, cut, split_axis=1, concat_axis=2, tiled=True)
        return _part(y, cut, 1)

    run = jax.shard_map(
        local,
        in_specs=(P(), P(batch), *[P(*where[:2])] * len(rows)),
        out_specs=where,
        check_vma=False,
    )
    return run(_widened(weights), tree, *rows)


def _names(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes in an entry of a partition spec."""
    return (part,) if isinstance(part, str) else part or ()


def _part(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    """A device's part of an axis of x, which mesh axes divide, inside `shard_map`."""
    if not axes:
        return x
    size = x.shape[axis] // jax.lax.axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * size, size, axis)


def _widened(weights: Any) -> Any:
    """Weights whose gradients are summed in fp32."""
    return jax.tree.map(lambda x: _as(x, jnp.float32) if x.dtype == jnp.bfloat16 else x, weights)


def _narrowed(weights: Any) -> Callable[[Any], Any]:
    """What turns `_widened` weights back into these dtypes."""
    dtypes = jax.tree.map(lambda x: x.dtype, weights)
    return lambda wide: jax.tree.map(_as, wide, dtypes)


def _as(x: jax.Array, dtype: Any) -> jax.Array:
    return x if x.dtype == dtype else x.astype(dtype)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: attention.Mask,
    *,
    kernel: Kernel,
    rules: Rules,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """`attention.attend` on the mesh in use, inside jit.

    A device computes its rows, its heads and, over `context`, its queries, for which it gathers all
    keys and values of the row. Without `context` the compiler splits XLA's own attention likewise.
    """
    mesh = jax.sharding.get_abstract_mesh()
    platform = mesh.abstract_device.platform if mesh.abstract_device else jax.default_backend()
    if kernel == "auto":
        kernel = attention.choose(platform, q, k, v, softcap) if sinks is None else "xla"

    def local(
        q: jax.Array, k: jax.Array, v: jax.Array, mask: attention.Mask, sinks: jax.Array | None
    ) -> jax.Array:
        settings = {"kernel": kernel, "softcap": softcap, "scale": scale, "platform": platform}
        return attention.attend(q, k, v, mask, sinks=sinks, **settings)

    if mesh.size <= 1:
        return local(q, k, v, mask, sinks)
    rows, queries, heads = spec(("batch", "sequence", "heads"), q.shape[:3], mesh, rules=rules)
    if kernel == "xla" and queries is None:
        return local(q, k, v, mask, sinks)
    shards = q.shape[2] // NamedSharding(mesh, P(heads)).shard_shape(q.shape[2:3])[0]
    copies = math.lcm(k.shape[2], shards) // k.shape[2]  # so that each device has its heads' keys
    k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
    of_queries, of_keys = P(rows, queries), P(rows)
    mask = mask.replace(ordered=mask.ordered and queries is None)
    vectors = mask.replace(
        index=of_queries, until=of_keys, positions=of_queries, key_positions=of_keys, window=P(),
        sink=P(), chunk=P(),
    )  # fmt: skip
    split = jax.shard_map(
        local,
        in_specs=(P(rows, queries, heads), *[P(rows, None, heads)] * 2, vectors, P(heads)),
        out_specs=P(rows, queries, heads),
        check_vma=False,
    )
    return split(q, k, v, mask, sinks)
