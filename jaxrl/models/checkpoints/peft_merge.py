"""PEFT's adapters added to the tensors of their base, as these are read from its files."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from jaxrl.models.checkpoints.families import Family
from jaxrl.models.checkpoints.forms.quantized_files import Slice
from jaxrl.models.config import DecoderConfig

MERGE = (
    "merge the adapters with PEFT (merge_and_unload, then save_pretrained) and name the merged "
    "model"
)
"""What to do about an adapter that is not read."""

_MERGED = {
    "peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern",
    "bias", "modules_to_save", "trainable_token_indices", "init_lora_weights",
}  # fmt: skip
"""Fields of adapter_config.json that are followed."""

_OTHER = {
    "task_type", "auto_mapping", "base_model_name_or_path", "revision", "peft_version",
    "inference_mode", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "lora_dropout", "megatron_core", "ensure_weight_tying", "qalora_group_size", "runtime_config",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config",
}  # fmt: skip
"""Fields that the tensors show too, or that matter in training alone."""

_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base as it is."""

_PARTS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_embedding_A": "rows",
    ".lora_embedding_B": "columns",
    ".token_adapter.trainable_tokens_delta": "tokens",
}
"""What a tensor of an adapter is of its module, by the end of its name."""

_MOST_PATTERNS = 1000
"""Patterns of a field of adapter_config.json."""

Parts = dict[str, np.ndarray]


class Adapter(NamedTuple):
    """An adapter's files."""

    directory: Path
    raw: Mapping[str, Any]
    """adapter_config.json."""
    changed: dict[str, Parts]
    """By the name of a tensor of the base: its new values as `whole`, or the parts of a change."""


def read(directory: str | Path) -> Adapter:
    """An adapter of PEFT.

    Raises:
      ValueError: it is of a kind that cannot be merged; the message names the way out.
    """
    directory = Path(directory)
    raw = json.loads((directory / "adapter_config.json").read_text())
    check(directory, raw)
    changed: dict[str, Parts] = {}
    for name, value in safetensors.numpy.load_file(directory / "adapter_model.safetensors").items():
        tensor, part = _place(name.removeprefix("base_model.model."))
        changed.setdefault(tensor, {})[part] = value
    return Adapter(directory, raw, changed)


def check(directory: Path, raw: Mapping[str, Any]) -> None:
    """Refuse an adapter of a kind that is not read.

    Raises:
      ValueError: naming the field of adapter_config.json, and the way out.
    """
    if raw.get("peft_type") != "LORA":
        raise ValueError(_refused(directory, "peft_type", raw.get("peft_type"), "'LORA'"))
    if (start := raw.get("init_lora_weights", True)) not in _STARTS:
        allowed = "a start that leaves the base as it is"
        raise ValueError(_refused(directory, "init_lora_weights", start, allowed))
    for key, value in raw.items():
        if value and key not in _MERGED | _OTHER:
            raise ValueError(_refused(directory, key, value, "an adapter without it"))
    if not _is_finite(alpha := raw.get("lora_alpha")):
        raise ValueError(_refused(directory, "lora_alpha", alpha, "a number"))
    for key in ("alpha_pattern", "rank_pattern"):
        patterns = raw.get(key) or {}
        if not isinstance(patterns, Mapping) or not all(map(_is_finite, patterns.values())):
            raise ValueError(_refused(directory, key, patterns, "a mapping to numbers"))
    for key, patterns in raw.items():
        if key in ("alpha_pattern", "trainable_token_indices") and isinstance(patterns, Mapping):
            _check_patterns(directory, key, patterns)


def _is_finite(value: Any) -> bool:
    """Whether a value of JSON is a number that 32 bits hold, in which changes are computed."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= float(np.finfo(np.float32).max)


def _check_patterns(directory: Path, key: str, patterns: Mapping[str, Any]) -> None:
    """Refuse patterns that could take a lifetime to match a name, or that are many.

    Raises:
      ValueError: a repeated group, more than two repetitions, or a reference to a group.
    """
    if len(patterns) > _MOST_PATTERNS:
        raise ValueError(_refused(directory, key, patterns, f"{_MOST_PATTERNS} patterns"))
    for pattern in patterns:
        plain = re.sub(r"\\[^0-9]|\[[^\]]*\]", "x", pattern)
        if re.search(r"\)[*+?{]|\(\?|\\", plain) or len(re.findall(r"[*+{]", plain)) > 2:
            allowed = "a pattern of at most two repetitions, of no groups,"
            raise ValueError(_refused(directory, key, pattern, allowed))


def _refused(directory: Path, key: str, value: Any, allowed: str) -> str:
    return (
        f"{directory / 'adapter_config.json'} has {key}={value!r:.80}; only {allowed} is read; "
        f"{MERGE}"
    )


def _place(name: str) -> tuple[str, str]:
    """The tensor of the base that a tensor of an adapter belongs to, and what it is of it."""
    for end, part in _PARTS.items():
        if name.endswith(end):
            return f"{name.removesuffix(end)}.weight", part
    return name.replace(".base_layer.", "."), "whole"


def config(adapter: Adapter, base: DecoderConfig, family: Family) -> DecoderConfig:
    """The decoder with the adapter: its head is apart where it no longer equals the embedding."""
    names = family.tensors_outside
    embed, head = (adapter.changed.get(names[path], {}) for path in ("embed", "head"))
    if not base.tie_embeddings or embed.keys() | head.keys() <= {"tokens"}:
        return base
    if embed.keys() == head.keys() == {"whole"} and np.array_equal(embed["whole"], head["whole"]):
        return base
    return dataclasses.replace(base, tie_embeddings=False)


def merge(
    adapter: Adapter, base: DecoderConfig, tensors: Mapping[str, Any], family: Family
) -> dict[str, Any]:
    """The tensors of the base with the adapter, computed in float32 as each is read.

    Args:
      adapter: from `read`.
      base: the decoder without the adapter.
      tensors: of the base, by name. A head that repeats a tied embedding is not among them.
      family: of the base, which names the embedding and the head.

    Raises:
      ValueError: tensors of the adapter that belong to none of the base, or do not fit.
    """
    embed, head = (family.tensors_outside[path] for path in ("embed", "head"))
    changed, plain = dict(adapter.changed), dict(tensors)
    if base.tie_embeddings:
        if config(adapter, base, family).tie_embeddings:
            changed.pop(head, None)
        else:
            plain[head] = plain[embed]
    if unmapped := changed.keys() - plain.keys():
        raise ValueError(
            f"{adapter.directory}: the base has no tensors {sorted(unmapped)}, which the adapter "
            f"changes; {MERGE}"
        )
    return plain | {
        name: _changed(adapter, name, parts, plain[name]) for name, parts in changed.items()
    }


def _changed(adapter: Adapter, name: str, parts: Parts, base: Any) -> Slice:
    """A tensor of the base with its change."""
    module = name.removesuffix(".weight")
    shape = tuple(base.get_shape())
    kinds = parts.keys() - {"whole"}  # the base's values, which PEFT repeats beside a change
    full_tensor = parts.get("whole")

    def rows_of_base(rows: slice) -> np.ndarray:
        return np.asarray((base if full_tensor is None else full_tensor)[rows]).astype(np.float32)

    if not kinds:
        adapter_shape, read = parts["whole"].shape, rows_of_base
    elif kinds == {"tokens"}:
        adapter_shape, read = _with_tokens(adapter, module, parts["tokens"], shape, rows_of_base)
    elif kinds == {"rows", "columns"}:
        a, b = (parts[part].astype(np.float32) for part in ("rows", "columns"))
        scale = _scale(adapter.raw, module, len(a))
        adapter_shape = (a.shape[1], len(b))

        def read(rows: slice) -> np.ndarray:
            return rows_of_base(rows) + scale * (a.T[rows] @ b.T)

    elif kinds == {"a", "b"} | ({"magnitude"} if adapter.raw.get("use_dora") else set()):
        adapter_shape, read = _with_matrices(parts, _scale(adapter.raw, module, len(parts["a"])))
        read = _after(rows_of_base, read)
    else:
        raise ValueError(
            f"{adapter.directory}: the module {module} has the parts {sorted(parts)}; {MERGE}"
        )
    if adapter_shape != shape or (full_tensor is not None and full_tensor.shape != shape):
        raise ValueError(
            f"{adapter.directory}: the change of {name} is of the shape {adapter_shape}, and the "
            f"base has {shape}; name the base that the adapter was trained on, or {MERGE}"
        )
    return Slice(shape, "F32", read)


Rows = Callable[[slice], np.ndarray]


def _after(first: Rows, then: Callable[[slice, np.ndarray], np.ndarray]) -> Rows:
    return lambda rows: then(rows, first(rows))


def _with_matrices(
    parts: Parts, scale: float
) -> tuple[tuple[int, ...], Callable[[slice, np.ndarray], np.ndarray]]:
    """The shape that a LoRA or DoRA adapter is of, and its change of rows."""
    a, b = (parts[part].astype(np.float32) for part in ("a", "b"))
    magnitude = parts.get("magnitude")

    def change(rows: slice, base: np.ndarray) -> np.ndarray:
        value = base + scale * (b[rows] @ a)
        if magnitude is None:
            return value
        norm = np.linalg.norm(value, axis=1, keepdims=True)
        return magnitude.astype(np.float32).reshape(-1, 1)[rows] / norm * value

    return (len(b), a.shape[1]), change


def _with_tokens(
    adapter: Adapter, module: str, values: np.ndarray, shape: tuple[int, ...], base: Rows
) -> tuple[tuple[int, ...], Rows]:
    """The shape that new rows of tokens are of, and the rows with them."""
    places = adapter.raw.get("trainable_token_indices")
    if isinstance(places, Mapping):
        places = places.get(_matching(places, module))
    if not isinstance(places, list) or len(places) != len(values):
        raise ValueError(
            f"{adapter.directory}: trainable_token_indices={places!r:.60} does not name the "
            f"{len(values)} tokens of {module}; {MERGE}"
        )

    def read(rows: slice) -> np.ndarray:
        numbers, out = range(shape[0])[rows], base(rows)
        for place, value in zip(places, values, strict=True):
            if place in numbers:
                out[numbers.index(place)] = value
        return out

    return (shape[0], values.shape[1]), read


def _scale(raw: Mapping[str, Any], module: str, rank: int) -> float:
    """Factor on the change of a module."""
    patterns = raw.get("alpha_pattern") or {}
    alpha = patterns.get(_matching(patterns, module), raw["lora_alpha"])
    return alpha / (math.sqrt(rank) if raw.get("use_rslora") else rank)


def _matching(patterns: Mapping[str, Any], module: str) -> str:
    """The first pattern that the end of a module's name matches, as PEFT has it."""
    try:
        return next((p for p in patterns if re.match(rf"(.*\.)?({p})$", module)), module)
    except (re.error, OverflowError) as error:
        raise ValueError(f"adapter_config.json has a pattern that is none: {error}") from error
