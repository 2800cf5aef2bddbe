"""The device mesh, and the one table that maps logical array axes to mesh axes."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig, Kernel
from jaxrl.models.decoder import Params

AXES = ("data", "fsdp", "tensor", "context", "expert")

RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "sequence": ("context",),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "expert": ("expert",),
    "head_dim": (),
    "latent": (),
    "rank": (),
    "layers": (),
    "labels": (),
}
"""Logical axis of an array to the mesh axes it is split over. Rows and slots are the batch."""

Rules = Sequence[tuple[str, str]]
"""Exceptions to them, as `MeshConfig.rules`."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; their product must be the number of devices."""

    data: int = 0
    """Data-parallel replicas; 0 uses the devices that the other axes leave."""
    fsdp: int = 1
    """Shards of the parameters and optimizer state (FSDP); also splits the batch."""
    tensor: int = 1
    """Shards of attention heads, MLP width and vocabulary (tensor parallelism)."""
    context: int = 1
    """Shards of the sequence axis (context parallelism)."""
    expert: int = 1
    """Shards of the experts of mixture-of-experts layers (expert parallelism)."""
    rules: dict[str, str] = dataclasses.field(default_factory=dict)
    """Overrides of the sharding table `RULES`: a logical axis to mesh axes, as `fsdp+tensor` for
    `vocab`, or a pattern of parameter paths to one entry per dimension, as `-,tensor,fsdp` for
    `layers/mlp/down`; `-` does not split. The first matching pattern applies."""


def make(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh over all devices.

    Raises:
      ValueError: the axes do not multiply to the number of devices, or `data` not over slices.
    """
    devices = devices or jax.devices()
    sizes = {axis: getattr(config, axis) for axis in AXES}
    others = math.prod(n for axis, n in sizes.items() if axis != "data")
    sizes["data"] = sizes["data"] or max(1, len(devices) // others)
    if math.prod(sizes.values()) != len(devices):
        shape = ", ".join(f"{axis}={n}" for axis, n in sizes.items() if n > 1) or "data=1"
        raise ValueError(
            f"mesh {shape} needs {math.prod(sizes.values())} devices, {len(devices)} are there; "
            "choose axes whose product is the number of devices"
        )
    return Mesh(_laid(sizes, devices), AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


def _laid(sizes: Mapping[str, int], devices: list[jax.Device]) -> np.ndarray:
    """The devices in mesh shape, with neighbours on an axis close to each other where possible."""
    shape = [sizes[axis] for axis in AXES]
    tpus = devices[0].platform == "tpu"
    slices = len({getattr(d, "slice_index", 0) for d in devices}) if tpus else 1
    if slices == 1:
        # An axis of the hardware may be shared out between two of ours: 4x4x4 as 32 x 2.
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    if sizes["data"] % slices:
        raise ValueError(
            f"mesh.data={sizes['data']} over {slices} TPU slices: only `data` goes over the network"
            f" between them; make it a multiple of {slices}"
        )
    return mesh_utils.create_hybrid_device_mesh(
        [shape[0] // slices, *shape[1:]],
        [slices, *[1] * (len(shape) - 1)],
        devices,
        allow_split_physical_axes=True,
    )


def check(rules: Mapping[str, str], model: DecoderConfig) -> None:
    """Refuse sharding rules that are invalid or without effect.

    Raises:
      ValueError: an unknown logical or mesh axis, a pattern that matches no parameter, or another
        number of entries than the parameter has dimensions.
    """
    parameters = {"/".join(path): leaf.shape for path, leaf in decoder.layout(model).items()}
    for name, value in rules.items():
        rule, entries = f"mesh.rules.{name}={value!r}", _entries(value)
        axes = [axis for entry in entries for axis in entry]
        if unknown := [axis for axis in axes if axis not in AXES]:
            raise ValueError(
                f"{rule}: {unknown[0]!r} is not a mesh axis; choose of {', '.join(AXES)}, several "
                "joined by +, or - for none"
            )
        if len({*axes}) < len(axes):
            raise ValueError(f"{rule} splits over one mesh axis twice; name each once")
        if name in RULES:
            wanted, what = 1, "a logical axis"
        else:
            found = fnmatch.filter(parameters, name)
            if not found:
                raise ValueError(
                    f"{rule} names neither a logical axis ({', '.join(RULES)}) nor a parameter "
                    f"({', '.join(parameters)})"
                )
            odd = next((n for n in found if len(parameters[n]) != len(entries)), found[0])
            wanted, what = len(parameters[odd]), f"{odd} of shape {parameters[odd]}"
        if len(entries) != wanted:
            raise ValueError(
                f"{rule} has {len(entries)} entries for {what}; give {wanted}, separated by commas"
            )


def _entries(value: str) -> list[tuple[str, ...]]:
    return [() if entry == "-" else tuple(entry.split("+")) for entry in value.split(",")]


def spec(
    axes: Sequence[str | None],
    shape: Sequence[int],
    mesh: Mesh | AbstractMesh,
    *,
    whole: Sequence[str] = (),
    rules: Rules = (),
) -> P:
    """The partition spec of an array with these logical axes; indivisible dimensions stay whole.

    Args:
      axes: a logical axis for each dimension; None for one that is never split.
      shape: of the array.
      mesh: the mesh.
      whole: mesh axes over which nothing is split.
      rules: exceptions to `RULES`.
    """
    return _fit([axes_of(axis, rules) if axis else () for axis in axes], shape, mesh, whole)


def axes_of(axis: str, rules: Rules) -> tuple[str, ...]:
    """The mesh axes that a logical axis is split over."""
    return next((_entries(value)[0] for name, value in rules if name == axis), RULES[axis])


def _fit(
    wanted: Sequence[tuple[str, ...]],
    shape: Sequence[int],
    mesh: Mesh | AbstractMesh,
    whole: Sequence[str],
) -> P:
    used: set[str] = {*whole}
    split: list[tuple[str, ...] | None] = []
    for axes, size in zip(wanted, shape, strict=True):
        to = tuple(axis for axis in axes if axis not in whole)
        fits = to and not used & {*to} and size % math.prod(mesh.shape[a] for a in to) == 0
        split.append(to if fits else None)
        used |= {*to} if fits else set()
    return P(*split)


def param_spec(
    model: DecoderConfig,
    path: Sequence[str],
    axes: Sequence[str],
    shape: Sequence[int],
    mesh: Mesh | AbstractMesh,
    *,
    whole: Sequence[str] = (),
) -> P:
    """The partition spec of a parameter, or one layer of it, by its path or its logical axes.

    Args:
      model: the decoder's shape, with its rules.
      path: of the parameter; of what is none, such as an adapter, ().
      axes: a logical axis for each dimension.
      shape: of the parameter, or of one layer of it.
      mesh: the mesh.
      whole: mesh axes over which nothing is split.
    """
    for pattern, value in model.rules:
        if pattern not in RULES and fnmatch.fnmatchcase("/".join(path), pattern):
            return _fit(_entries(value)[-len(shape) :], shape, mesh, whole)
    return spec(axes, shape, mesh, whole=whole, rules=model.rules)


def param_shardings(config: DecoderConfig, mesh: Mesh) -> Any:
    """A sharding for each parameter of the decoder."""
    where = {
        path: NamedSharding(mesh, param_spec(config, path, leaf.axes, leaf.shape, mesh))
        for path, leaf in decoder.layout(config).items()
    }
    return nnx.traversals.unflatten_mapping(where)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that every device holds whole."""
    return NamedSharding(mesh, P())


def rows(mesh: Mesh, rules: Rules = ()) -> NamedSharding:
    """Packed micro-batches [K, R, ...], split over the batch axes on R."""
    return NamedSharding(mesh, P(None, axes_of("batch", rules)))


def put(tree: Any, where: Any) -> Any:
    """Put host arrays on the mesh: each process copies what its own devices hold.

    Args:
      tree: of host arrays, the same in every process.
      where: a sharding for each.
    """

    def place(x: Any, sharding: NamedSharding) -> jax.Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    with jax.transfer_guard_host_to_device("allow"):  # the callback's copies count as implicit
        return jax.tree.map(place, tree, where)


def fetch(tree: Any) -> Any:
    """Whole host copies of arrays, in every process; all processes must call."""

    def whole(x: Any) -> Any:
        here = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return x if here else _replicate(x, replicated(x.sharding.mesh))

    return jax.device_get(jax.tree.map(whole, tree))


@functools.partial(jax.jit, static_argnums=1)
def _replicate(x: jax.Array, where: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, where)


def batch_shards(mesh: Mesh | AbstractMesh, rules: Rules = ()) -> int:
    """The number of shards of the batch axis."""
    return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in axes_of("batch", rules))


def constrain(x: jax.Array, *axes: str | None, rules: Rules = ()) -> jax.Array:
    """Inside jit, constrain the sharding of an array by logical axes on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes, x.shape, mesh, rules=rules))


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
            if path not in axes:  # codes of quantised weights and adapters lie as they lie
                return x
            where = param_spec(model, path, axes[path][stacked:], x.shape, mesh, whole=batch)
            return jax.lax.with_sharding_constraint(x, where)

        return jax.tree_util.tree_map_with_path(gather, decoder.cast(params, model.dtype))

    return decoder.Layout(
        activations=lambda x: constrain(x, "batch", "sequence", None, rules=model.rules),
        weights=weights,
        attend=functools.partial(attend, rules=model.rules),
        by_rows=functools.partial(by_rows, rules=model.rules),
    )


def sampling_layout(model: DecoderConfig) -> decoder.Layout:
    """Decoding on the mesh in use, inside jit: slots lie over the batch's axes, with their caches.

    Weights are read where they lie.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return decoder.Layout(attend=functools.partial(attend, rules=()))
    return decoder.Layout(
        activations=lambda x: constrain(x, "batch", None, None, rules=model.rules),
        attend=functools.partial(attend, rules=model.rules),
        by_rows=functools.partial(by_rows, rules=model.rules),
        cache=lambda layer: jax.tree.map(
            lambda x, axes: constrain(x, *axes, rules=model.rules),
            layer,
            decoder.cache_axes(model),
        ),
    )


def by_rows(function: Callable[..., Any], *, rules: Rules = ()) -> Callable[..., Any]:
    """Inside jit, a function of weights and of arrays [B, ...], such that devices share the rows.

    What it sorts, gathers or scans over stays on the device, and the gradient of the weights is
    summed over devices once and in fp32, where the compiler would sum it in every step of a scan.
    Rows that do not divide are computed by all.

    Args:
      function: of a pytree of weights and of arrays; gives arrays [B, ...].
      rules: exceptions to `RULES`.
    """

    def run(weights: Any, *rows: jax.Array) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        shards, batch = batch_shards(mesh, rules), axes_of("batch", rules)
        if shards == 1 or rows[0].shape[0] % shards:
            return function(weights, *rows)
        split, dtypes = P(batch), jax.tree.map(lambda x: x.dtype, weights)

        def narrow(weights: Any, *rows: jax.Array) -> Any:
            return function(jax.tree.map(_as, weights, dtypes), *rows)

        local = jax.shard_map(
            narrow,
            in_specs=(P(), *[split] * len(rows)),
            out_specs=split,
            axis_names={*batch},
            check_vma=False,
        )
        wide = [
            jnp.float32 if dtype == jnp.bfloat16 else dtype for dtype in jax.tree.leaves(dtypes)
        ]
        wide = jax.tree.unflatten(jax.tree.structure(weights), wide)
        return local(jax.tree.map(_as, weights, wide), *rows)

    return run


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
) -> jax.Array:
    """`attention.attend` on the mesh in use, inside jit.

    A device computes its rows, its heads and, over `context`, its queries, for which it gathers all
    keys and values of the row. Without `context` the compiler splits XLA's own attention likewise.
    """
    mesh = jax.sharding.get_abstract_mesh()
    platform = mesh.abstract_device.platform if mesh.abstract_device else jax.default_backend()
    if kernel == "auto":
        kernel = attention.choose(platform, q, k, v, softcap)
    local = functools.partial(
        attention.attend, kernel=kernel, softcap=softcap, scale=scale, platform=platform
    )
    if mesh.size <= 1:
        return local(q, k, v, mask)
    rows, queries, heads = spec(("batch", "sequence", "heads"), q.shape[:3], mesh, rules=rules)
    if kernel == "xla" and queries is None:
        return local(q, k, v, mask)
    shards = q.shape[2] // NamedSharding(mesh, P(heads)).shard_shape(q.shape[2:3])[0]
    copies = math.lcm(k.shape[2], shards) // k.shape[2]  # so that each device has its heads' keys
    k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
    of_queries, of_keys = P(rows, queries), P(rows)
    mask = mask.replace(ordered=mask.ordered and queries is None)
    vectors = mask.replace(
        index=of_queries, until=of_keys, positions=of_queries, key_positions=of_keys, window=P()
    )
    split = jax.shard_map(
        local,
        in_specs=(P(rows, queries, heads), *[P(rows, None, heads)] * 2, vectors),
        out_specs=P(rows, queries, heads),
        check_vma=False,
    )
    return split(q, k, v, mask)
