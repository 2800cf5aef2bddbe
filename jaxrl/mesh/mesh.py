"""The device mesh, and the one table that maps logical array axes to mesh axes."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig

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
    "channels": (),
    "taps": (),
    "single": (),
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
    other_product = math.prod(n for axis, n in sizes.items() if axis != "data")
    sizes["data"] = sizes["data"] or max(1, len(devices) // other_product)
    if math.prod(sizes.values()) != len(devices):
        shape = ", ".join(f"{axis}={n}" for axis, n in sizes.items() if n > 1) or "data=1"
        raise ValueError(
            f"mesh {shape} needs {math.prod(sizes.values())} devices, {len(devices)} are there; "
            "choose axes whose product is the number of devices"
        )
    return Mesh(
        _array_of(sizes, devices), AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES)
    )


def _array_of(sizes: Mapping[str, int], devices: list[jax.Device]) -> np.ndarray:
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
            rank, what = 1, "a logical axis"
        else:
            matches = fnmatch.filter(parameters, name)
            if not matches:
                raise ValueError(
                    f"{rule} names neither a logical axis ({', '.join(RULES)}) nor a parameter "
                    f"({', '.join(parameters)})"
                )
            odd = next((n for n in matches if len(parameters[n]) != len(entries)), matches[0])
            rank, what = len(parameters[odd]), f"{odd} of shape {parameters[odd]}"
        if len(entries) != rank:
            raise ValueError(
                f"{rule} has {len(entries)} entries for {what}; give {rank}, separated by commas"
            )


def _entries(value: str) -> list[tuple[str, ...]]:
    return [() if entry == "-" else tuple(entry.split("+")) for entry in value.split(",")]


def spec(
    axes: Sequence[str | None],
    shape: Sequence[int],
    mesh: Mesh | AbstractMesh,
    *,
    unsplit: Sequence[str] = (),
    rules: Rules = (),
) -> P:
    """The partition spec of an array with these logical axes; indivisible dimensions stay whole.

    Args:
      axes: a logical axis for each dimension; None for one that is never split.
      shape: of the array.
      mesh: the mesh.
      unsplit: mesh axes over which nothing is split.
      rules: exceptions to `RULES`.
    """
    return _fit([axes_of(axis, rules) if axis else () for axis in axes], shape, mesh, unsplit)


def axes_of(axis: str, rules: Rules) -> tuple[str, ...]:
    """The mesh axes that a logical axis is split over."""
    return next((_entries(value)[0] for name, value in rules if name == axis), RULES[axis])


def _fit(
    dimension_axes: Sequence[tuple[str, ...]],
    shape: Sequence[int],
    mesh: Mesh | AbstractMesh,
    excluded_axes: Sequence[str],
) -> P:
    used: set[str] = {*excluded_axes}
    split: list[tuple[str, ...] | None] = []
    for axes, size in zip(dimension_axes, shape, strict=True):
        to = tuple(axis for axis in axes if axis not in excluded_axes)
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
    unsplit: Sequence[str] = (),
) -> P:
    """The partition spec of a parameter, or one layer of it, by its path or its logical axes.

    Args:
      model: the decoder's shape, with its rules.
      path: of the parameter; of what is none, such as an adapter, ().
      axes: a logical axis for each dimension.
      shape: of the parameter, or of one layer of it.
      mesh: the mesh.
      unsplit: mesh axes over which nothing is split.
    """
    for pattern, value in model.rules:
        if pattern not in RULES and fnmatch.fnmatchcase("/".join(path), pattern):
            return _fit(_entries(value)[-len(shape) :], shape, mesh, unsplit)
    return spec(axes, shape, mesh, unsplit=unsplit, rules=model.rules)


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

    def gather(x: Any) -> Any:
        is_local = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return x if is_local else _replicate(x, replicated(x.sharding.mesh))

    return jax.device_get(jax.tree.map(gather, tree))


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
