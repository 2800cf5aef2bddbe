"""Weights and snapshots of models in the run directory: one file each, written whole or not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
from safetensors import numpy as safe

from jaxrl.launch.server.tinker import bodies, learner
from jaxrl.launch.server.tinker.learner import Learner, Shape
from jaxrl.models.config import DecoderConfig
from jaxrl.record import storage
from jaxrl.types import Params


class Snapshot(NamedTuple):
    """A model as it was after an operation."""

    state: Learner
    seq: int
    """Of the operation."""


def write(path: Path, state: Learner, seq: int, config: bodies.Lora, *, moments: bool) -> None:
    """Write adapters and gradient, and with `moments` the optimizer's; returns once it is on disk.

    Equal states give equal bytes.
    """
    parts = {"adapters": state.adapters, "gradient": state.gradient}
    if moments:
        parts["moments"] = state.moments
    arrays = {
        f"{name}{path_in}": np.asarray(array, order="C")
        for name, part in parts.items()
        if part is not None
        for path_in, array in learner.to_arrays(part).items()
    }
    described = json.dumps({"seq": seq, "lora": config.model_dump()}, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(safe.save(arrays, metadata={"jaxrl": described}))
    storage.sync(fresh)
    os.replace(fresh, path)
    storage.sync(path.parent)


def _read(path: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Arrays by the part of the state and by path, and what is said of them."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    with safetensors.safe_open(path, "np") as file:
        described = json.loads(file.metadata()["jaxrl"])
        for key in file.keys():  # noqa: SIM118  it is no dict
            name = next(n for n in ("adapters", "gradient", "moments") if key.startswith(n))
            parts.setdefault(name, {})[key.removeprefix(name)] = file.get_tensor(key)
    return parts, described


def _like(model: DecoderConfig, base: Params, shape: Shape) -> Learner:
    return jax.eval_shape(lambda base: learner.create(model, base, shape, 0), base)


def read_snapshot(path: Path, model: DecoderConfig, base: Params, shape: Shape) -> Snapshot | None:
    """The snapshot in a file; None where there is none that can be read."""
    if not path.exists():
        return None
    like = _like(model, base, shape)
    try:
        parts, described = _read(path)
        state = Learner(
            learner.from_arrays(like.adapters, parts["adapters"]),
            learner.from_arrays(like.moments, parts["moments"]),
            learner.from_arrays(like.adapters, parts["gradient"]) if "gradient" in parts else None,
        )
        return Snapshot(state, described["seq"])
    except (ValueError, KeyError, StopIteration, safetensors.SafetensorError):
        return None  # what it held is computed anew from the journal


def read_weights(
    path: Path, model: DecoderConfig, base: Params, shape: Shape, *, moments: bool
) -> Learner:
    """A model of the weights in a file, with its moments or fresh ones."""
    like, parts = _like(model, base, shape), _read(path)[0]
    adapters = learner.from_arrays(like.adapters, parts["adapters"])
    if moments:
        return Learner(adapters, learner.from_arrays(like.moments, parts["moments"]))
    return Learner(adapters, learner.fresh_moments(model, adapters))
