"""The mesh and the one table that maps logical axes of arrays to it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models import decoder
from models.config import DecoderConfig
from models.decoder import Params

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
}
"""Logical axis of an array to the mesh axes it is split over. Rows and slots are the batch."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis. The product is the number of devices."""

    data: int = 0
    """Replicas of the model; 0 takes the devices the other axes leave."""
    fsdp: int = 1
    """Shards of parameters and optimizer state, which also split the batch."""
    tensor: int = 1
    """Shards of heads, MLP width and vocabulary."""
    context: int = 1
    """Shards of the sequence."""
    expert: int = 1
    """Shards of the experts."""


def make(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh over all devices.

    Raises:
      ValueError: the axes do not multiply to the number of devices.
    """
    devices = devices or jax.devices()
    sizes = dataclasses.asdict(config)
    others = math.prod(n for axis, n in sizes.items() if axis != "data")
    sizes["data"] = sizes["data"] or max(1, len(devices) // others)
    if math.prod(sizes.values()) != len(devices):
        shape = ", ".join(f"{axis}={n}" for axis, n in sizes.items() if n > 1) or "data=1"
        raise ValueError(
            f"mesh {shape} needs {math.prod(sizes.values())} devices, {len(devices)} are there; "
            "choose axes whose product is the number of devices"
        )
    return jax.make_mesh(
        tuple(sizes[a] for a in AXES),
        AXES,
        axis_types=(jax.sharding.AxisType.Auto,) * len(AXES),
        devices=devices,
    )


def spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh, *, whole: str = ""
) -> P:
    """Where an array of these logical axes lies; a dimension that does not divide stays whole.

    Args:
      axes: a logical axis for each dimension; None for one that is never split.
      shape: of the array.
      mesh: the mesh.
      whole: a mesh axis over which nothing is split.
    """
    used: set[str] = {whole}
    split: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        to = RULES[axis] if axis else ()
        fits = to and not used & {*to} and size % math.prod(mesh.shape[a] for a in to) == 0
        split.append(to if fits else None)
        used |= {*to} if fits else set()
    return P(*split)


def param_shardings(config: DecoderConfig, mesh: Mesh) -> Any:
    """A sharding for each parameter of the decoder."""
    shapes, axes = decoder.abstract(config)
    return jax.tree.map(
        lambda shape, names: NamedSharding(mesh, spec(names, shape.shape, mesh)), shapes, axes
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """On every device."""
    return NamedSharding(mesh, P())


def rows(mesh: Mesh) -> NamedSharding:
    """Packed micro-batches [K, R, ...], split over the batch axes on R."""
    return NamedSharding(mesh, P(None, RULES["batch"]))


def put(tree: Any, where: Any) -> Any:
    """Host arrays onto the mesh: each process copies what its own devices hold.

    Args:
      tree: of host arrays, the same in every process.
      where: a sharding for each.
    """

    def place(x: Any, sharding: NamedSharding) -> jax.Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(place, tree, where)


def fetch(tree: Any) -> Any:
    """Arrays as host arrays, whole in every process; all processes must call."""

    def whole(x: Any) -> Any:
        here = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return x if here else _replicate(x, replicated(x.sharding.mesh))

    return jax.device_get(jax.tree.map(whole, tree))


@functools.partial(jax.jit, static_argnums=1)
def _replicate(x: jax.Array, where: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, where)


def batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """How many ways rows are split."""
    return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in RULES["batch"])


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Inside jit, fix where an array of these logical axes lies on the mesh in use, if any."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes, x.shape, mesh))


def layout(model: DecoderConfig) -> decoder.Layout:
    """The training pass on the mesh in use, inside jit.

    Rows stay on the devices that hold them, cut along the sequence by `context`; each layer's
    weights are brought together over `fsdp` while the layer is computed, in the compute dtype, and
    the gradient is scattered again. Without this, the compiler may instead leave the weights in
    place and send every device's activations to all others.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return decoder.Layout()
    axes = {path: leaf.axes for path, leaf in decoder.layout(model).items()}

    def weights(params: Params, stack: str) -> Params:
        prefix, stacked = ((stack,), 1) if stack else ((), 0)

        def gather(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
            names = axes.get((*prefix, *(getattr(step, "key", "") for step in path)))
            if names is None:  # codes of quantised weights and adapters lie as they lie
                return x
            where = spec(names[stacked:], x.shape, mesh, whole="fsdp")
            return jax.lax.with_sharding_constraint(x, where)

        return jax.tree_util.tree_map_with_path(gather, decoder.cast(params, model.dtype))

    return decoder.Layout(lambda x: constrain(x, "batch", "sequence", None), weights)
