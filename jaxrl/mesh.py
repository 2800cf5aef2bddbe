"""The mesh and the one table that maps logical axes of arrays to it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models import decoder
from models.config import DecoderConfig

AXES = ("data", "fsdp", "tensor", "context", "expert")

RULES: dict[str, str | None] = {
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert": "expert",
    "head_dim": None,
    "latent": None,
    "rank": None,
    "layers": None,
}
"""Logical axis of a parameter to the mesh axis it is split over."""

BATCH = ("data", "fsdp")
"""Mesh axes over which rows and slots are split."""


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


def spec(axes: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh) -> P:
    """Where an array of these logical axes lies; a dimension that does not divide stays whole."""
    used: list[str | None] = []
    for axis, size in zip(axes, shape, strict=True):
        to = RULES[axis]
        fits = to is not None and to not in used and size % mesh.shape[to] == 0
        used.append(to if fits else None)
    return P(*used)


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
    return NamedSharding(mesh, P(None, BATCH))


def batch_shards(mesh: Mesh) -> int:
    """How many ways rows are split."""
    return math.prod(mesh.shape[axis] for axis in BATCH)
