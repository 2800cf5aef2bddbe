"""Adapters in the files of Hugging Face's PEFT."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from jaxrl.models import lora
from jaxrl.models.checkpoints import hf_config, huggingface, peft_merge
from jaxrl.models.checkpoints.families import Family
from jaxrl.models.checkpoints.huggingface import Piece
from jaxrl.models.checkpoints.peft_merge import MERGE
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import Adapters, LoraConfig

PREFIX = "model."
"""Of the modules of a text model."""

_SUFFIX = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}


def _modules(model: DecoderConfig, family: Family | None) -> dict[str, Piece]:
    """Every linear module that PEFT can adapt as we do, by its name."""
    modules: dict[str, list[Piece]] = {}
    family = family or hf_config.find(model.family)
    for piece in huggingface.pieces(model, family):
        if len(piece.at) == 1 and len(piece.shape) == 2:
            if piece.path.endswith(family.unadapted):
                continue
            modules.setdefault(piece.tensor.removesuffix(".weight"), []).append(piece)
    return {name: parts[0] for name, parts in modules.items() if len(parts) == 1}


def save(
    directory: str | Path,
    model: DecoderConfig,
    adapters: Adapters,
    config: LoraConfig,
    *,
    base: str = "",
    prefix: str = PREFIX,
    family: Family | None = None,
) -> None:
    """Write adapter_config.json and adapter_model.safetensors.

    Args:
      directory: made if need be.
      model: the decoder's shape.
      adapters: as from `lora.init`.
      config: the same.
      base: name or path of the base model, for the record.
      prefix: of the text model's modules, in a base that reads pictures too.
      family: a record of your own; None: looked up by `model.family`.

    Raises:
      ValueError: adapters on experts, or on parts of a fused matrix (Phi-3), which PEFT holds
        otherwise.
    """
    modules = {
        prefix + name.removeprefix(PREFIX): piece for name, piece in _modules(model, family).items()
    }
    paths = {"/".join(path) for path in lora.targets(model, config)}
    adapted = {name: piece for name, piece in modules.items() if piece.path in paths}
    if left := paths - {piece.path for piece in adapted.values()}:
        raise ValueError(
            f"PEFT has no module of its own for {sorted(left)}; merge the adapters and save the "
            "whole model"
        )
    flat = nnx.traversals.flatten_mapping(adapters, sep="/")
    tensors = {}
    for name, piece in adapted.items():
        for part, suffix in _SUFFIX.items():
            if f"{piece.path}/{part}" in flat:
                value = np.asarray(flat[f"{piece.path}/{part}"][piece.at], np.float32)
                tensors[f"base_model.model.{name}.{suffix}"] = _to_file(part, value, config.rank)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(
        tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"}
    )
    short = {name.rpartition(".")[2] for name in adapted}
    # a short name would be that of a module outside the text model too
    exact = prefix == PREFIX and all(
        name in adapted for name in modules if name.rpartition(".")[2] in short
    )
    raw = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.rank_stabilized,
        "use_dora": config.dora,
        "bias": "none",
        "target_modules": sorted(short if exact else adapted),
    }
    (directory / "adapter_config.json").write_text(json.dumps(raw, indent=2) + "\n")


def _to_file(part: str, value: np.ndarray, rank: int) -> np.ndarray:
    match part:
        case "a":
            value = value.reshape(-1, rank).T
        case "b":
            value = value.reshape(rank, -1).T
        case _:
            value = value.reshape(-1)
    return np.ascontiguousarray(value)


def load(
    directory: str | Path, model: DecoderConfig, *, family: Family | None = None
) -> tuple[LoraConfig, Adapters]:
    """Adapters that PEFT, or `save`, wrote.

    Raises:
      ValueError: an adapter of another kind, tensors that are missing or unmapped, listed, or of
        another shape than the base's matrices give.
    """
    directory = Path(directory)
    raw = json.loads((directory / "adapter_config.json").read_text())
    peft_merge.check(directory, raw)
    _check_plain(raw)
    tensors = safetensors.numpy.load_file(directory / "adapter_model.safetensors")
    modules = _modules(model, family)
    adapted = {
        piece.path
        for name, piece in modules.items()
        if f"base_model.model.{name}.{_SUFFIX['a']}" in tensors
    }
    config = LoraConfig(
        rank=raw["r"],
        alpha=raw["lora_alpha"],
        dropout=raw.get("lora_dropout", 0.0),
        targets=tuple(sorted(adapted)),
        rank_stabilized=raw.get("use_rslora", False),
        dora=raw.get("use_dora", False),
    )
    shapes = nnx.traversals.flatten_mapping(lora.abstract(model, config)[0], sep="/")
    expected = {
        f"base_model.model.{name}.{_SUFFIX[part]}": (f"{piece.path}/{part}", piece.at)
        for name, piece in modules.items()
        for part in _SUFFIX
        if f"{piece.path}/{part}" in shapes
    }
    missing, unmapped = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or unmapped:
        raise ValueError(
            f"{directory}: missing tensors {sorted(missing)}; unmapped tensors {sorted(unmapped)}; "
            f"{MERGE}"
        )
    flat = {path: np.zeros(shape.shape, np.float32) for path, shape in shapes.items()}
    for name, (path, at) in expected.items():
        value = tensors[name].T if tensors[name].ndim == 2 else tensors[name]
        if value.size != math.prod(flat[path].shape[1:]):
            raise ValueError(
                f"{directory}: {name} has shape {tensors[name].shape}, and r={config.rank} of a "
                f"matrix of this base gives {math.prod(flat[path].shape[1:])} numbers; name the "
                "base that the adapter was trained on"
            )
        flat[path][at] = value.reshape(flat[path].shape[1:])
    arrays = {path: jnp.asarray(value) for path, value in flat.items()}
    return config, nnx.traversals.unflatten_mapping(arrays, sep="/")


def _check_plain(raw: dict[str, Any]) -> None:
    """Refuse what `LoraConfig` cannot describe.

    Raises:
      ValueError: naming the field of adapter_config.json, and the way out.
    """
    rank = raw.get("r")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"adapter_config.json has r={rank!r}; a rank is a whole number from 1")
    for key in ("rank_pattern", "alpha_pattern", "modules_to_save"):
        if raw.get(key):
            raise ValueError(f"adapter_config.json has {key}={raw[key]!r}; {MERGE}")
    if raw.get("bias", "none") != "none":
        raise ValueError(f"adapter_config.json has bias={raw['bias']!r}; {MERGE}")
