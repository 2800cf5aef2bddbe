"""Slices and clusters by name, and devices of theirs to compile for; none need be here."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from jaxrl.launch.planning.chips import CHIPS

_HOSTS = {"v4": (2, 2, 1), "v5e": (2, 2), "v5p": (2, 2, 1), "v6e": (2, 2)}
"""TPUs, and the shape of the least slice: that of one host."""
_CORES = {"v4": 2, "v5p": 2}
"""TensorCores that make one device, where names of slices count them."""


class Topology(NamedTuple):
    """Devices of one kind."""

    chip: str
    """A key of `chips.CHIPS`."""
    devices: int
    """0 stands for as many as the mesh names."""
    shape: str
    """Of a TPU slice, such as 4x8x8; empty where the name has none."""


def read(name: str) -> Topology:
    """What a name says: `v5p`, `v5p-512`, `v5p:4x8x8`, `h100-64`.

    The number after a dash is that of Google's names of slices, which count TensorCores of v4 and
    v5p, two a device, and devices of the rest: `v5p-512` is 256 devices. Of GPUs it is how many.

    Raises:
      ValueError: an unknown name, with what can be said.
    """
    match = re.fullmatch(r"(\w+)(?:-([1-9]\d*)|:([1-9]\d*(?:x[1-9]\d*)*))?", name)
    chip, count, shape = match.groups() if match else ("", None, None)
    odd = count and int(count) % _CORES.get(chip, 1)
    flat = shape and shape.count("x") + 1 != len(_HOSTS.get(chip, ()))
    if chip not in CHIPS or odd or flat:
        raise ValueError(
            f"topology={name!r} is unknown; give a chip ({', '.join(CHIPS)}), with how many as in "
            "v5p-512, v5e-16 or h100-64, or for TPUs the shape of the slice, as in v5p:4x8x8"
        )
    if shape:
        return Topology(chip, math.prod(map(int, shape.split("x"))), shape)
    return Topology(chip, int(count or 0) // _CORES.get(chip, 1), "")


def is_tpu(chip: str) -> bool:
    """Whether a key of `chips.CHIPS` names a TPU."""
    return chip in _HOSTS


def compiles_for(chip: str) -> bool:
    """Whether XLA can compile here for the chip itself: for TPUs, with libtpu (extra `tpu`)."""
    return is_tpu(chip) and importlib.util.find_spec("libtpu") is not None


def devices(topology: Topology, count: int) -> list[jax.Device]:
    """So many devices to compile for; call before JAX has made its own.

    They are those of a TPU slice, which need not be here, if `compiles_for`; else virtual ones on
    CPU.

    Raises:
      ValueError: there is no such slice.
    """
    jax.config.update("jax_platforms", "cpu")
    if compiles_for(topology.chip):
        return _tpus(topology.chip, topology.shape or slice_of(topology.chip, count))[:count]
    xla_flags = os.environ.get("XLA_FLAGS", "")
    # optimising code that never runs would take hours
    os.environ["XLA_FLAGS"] = (
        f"{xla_flags} --xla_force_host_platform_device_count={count} "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    return jax.devices()[:count]


def slice_of(chip: str, count: int) -> str:
    """Shape of the smallest slice with `count` TPUs: hosts doubled along the shortest axis."""
    sizes = list(_HOSTS[chip])
    while math.prod(sizes) < count:
        sizes[max(range(len(sizes)), key=lambda i: (-sizes[i], i))] *= 2
    return "x".join(map(str, sizes))


def _tpus(chip: str, shape: str) -> list[jax.Device]:
    # libtpu would ask the cloud where it is, and lock devices of which it needs none
    about = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5p-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    for name, value in about.items():
        os.environ.setdefault(name, value)
    cores = {"chip_config_name": "megacore"} if chip == "v4" else {}
    try:
        return topologies.get_topology_desc(f"{chip}:{shape}", "tpu", **cores).devices
    except Exception as error:
        raise ValueError(f"libtpu has no slice {chip}:{shape} ({error})") from error
