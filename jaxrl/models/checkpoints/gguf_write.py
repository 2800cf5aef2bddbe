"""Weights to GGUF files, as llama.cpp reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from flax import nnx

from jaxrl.gguf_file import Field
from jaxrl.models import rope
from jaxrl.models.checkpoints.forms.gguf_architectures import ARCHITECTURES
from jaxrl.models.checkpoints.gguf import FREQUENCIES, describe, file_shape, tensors, to_file
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Params, layout

_KINDS = {
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "float16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}

_NOT_OURS = {"family": "", "dtype": "", "attention": "auto", "rules": ()}
"""Fields of a config that a file does not hold, or that `family` decides."""


def save(
    path: str | Path,
    config: DecoderConfig,
    params: Params,
    *,
    fields: list[Field],
    dtype: str = "float32",
    name: str = "",
) -> None:
    """Write a GGUF file; the host holds one tensor at a time.

    Args:
      path: of the file.
      config: the decoder.
      params: as from `decoder.init`.
      fields: of the tokenizer, `config.vocab_size` tokens among them.
      dtype: of the matrices: float32, float16 or bfloat16; vectors and routers are float32.
      name: of the model.

    Raises:
      ValueError: llama.cpp has no architecture for the decoder, or cannot express one of its
        fields; the message lists them.
    """
    arch = architecture(config)
    config = dataclasses.replace(config, family=ARCHITECTURES[arch].family)
    meta, factors = metadata(config), _factors(config)
    _check(arch, config, meta, factors)
    kind, file_type = _KINDS[dtype]
    writer = gguf.GGUFWriter(path, arch)
    if name:
        writer.add_name(name)
    writer.add_file_type(file_type)
    for key, value in meta.items():
        _add(writer, f"{arch}.{key}", value)
    for field in fields:
        writer.add_key_value(field.key, field.value, field.kind, field.inner)
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    plan = _plan(config, kind)
    if factors is not None:
        writer.add_tensor_info(
            FREQUENCIES, factors.shape, factors.dtype, factors.nbytes, gguf.GGMLQuantizationType.F32
        )
    for entry in plan:
        shape = file_shape(config, entry.ours, leaves[entry.ours])
        size = int(np.prod(gguf.quant_shape_to_byte_shape(shape, entry.kind)))
        writer.add_tensor_info(entry.tensor, shape, np.dtype(np.float32), size, entry.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    arrays = nnx.traversals.flatten_mapping(params, sep="/")
    for entry in plan:
        value = arrays[entry.ours] if entry.row is None else arrays[entry.ours][entry.row]
        value = to_file(config, entry.ours, leaves[entry.ours], np.asarray(value, np.float32))
        writer.write_tensor_data(gguf.quants.quantize(value, entry.kind))
    writer.close()


class _Entry(NamedTuple):
    ours: str
    row: int | None
    """Layer; None for what is not stacked."""
    tensor: str
    kind: gguf.GGMLQuantizationType


def _plan(config: DecoderConfig, kind: gguf.GGMLQuantizationType) -> list[_Entry]:
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    plan = []
    for ours, names in tensors(config).items():
        leaf = leaves[ours]
        matrix = bool(leaf.inputs or "vocab" in leaf.axes) and not ours.endswith("router")
        for row, tensor in enumerate(names):
            place = row if leaf.batch else None
            tensor_kind = kind if matrix else gguf.GGMLQuantizationType.F32
            plan.append(_Entry(ours, place, tensor, tensor_kind))
    return plan


def architecture(config: DecoderConfig) -> str:
    """The architecture that llama.cpp reads such a decoder as.

    Raises:
      ValueError: there is none, or none that is written here.
    """
    family = "llama" if config.family == "mistral" else config.family
    for arch, record in ARCHITECTURES.items():
        if record.family == family and record.routed in (None, bool(config.experts)):
            return arch
    names = ", ".join(dict.fromkeys(record.family for record in ARCHITECTURES.values()))
    raise ValueError(
        f"family {config.family!r} is not written as GGUF (mistral, {names} are); export it with "
        "--to hf and convert that with llama.cpp's convert_hf_to_gguf.py"
    )


def metadata(config: DecoderConfig) -> dict[str, Any]:
    """What describes a decoder of a family of `ARCHITECTURES`, the prefix left out."""
    scaling, experts = config.rope_scaling, config.experts
    record = next(r for r in ARCHITECTURES.values() if r.family == config.family)
    kv_heads: int | list[int] = config.num_kv_heads
    if config.recurrent:
        kv_heads = [0 if mixes else config.num_kv_heads for mixes in config.recurrent_layers]
    meta: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_positions,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": config.rope_dim,
    }
    if config.sliding_window:
        meta["attention.sliding_window"] = config.sliding_window
    if config.attention_softcap:
        meta["attn_logit_softcapping"] = float(config.attention_softcap)
    if config.logit_softcap:
        meta["final_logit_softcapping"] = float(config.logit_softcap)
    if experts:
        meta["expert_count"] = experts.num_experts
        meta["expert_used_count"] = experts.per_token
        meta["expert_feed_forward_length"] = experts.size
        if experts.shared_size:
            meta["expert_shared_feed_forward_length"] = experts.shared_size
    if scaling and scaling.kind in ("linear", "yarn"):
        meta["rope.scaling.type"] = scaling.kind
        meta["rope.scaling.factor"] = float(scaling.factor)
        if scaling.kind == "yarn":
            meta["rope.scaling.original_context_length"] = scaling.original_max_positions
    return meta | record.describe(config)


def _factors(config: DecoderConfig) -> np.ndarray | None:
    """Divisors of the rotary frequencies, where they alone are the scaling."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind not in ("llama3", "longrope"):
        return None
    scaled, factor = rope.frequencies(config)
    if factor != 1:
        return None
    plain, _ = rope.frequencies(dataclasses.replace(config, rope_scaling=None))
    return (plain / scaled).astype(np.float32)


def _check(
    arch: str, config: DecoderConfig, meta: Mapping[str, Any], factors: np.ndarray | None
) -> None:
    """Refuse a decoder that would be read back as another."""
    names = {name for group in tensors(config).values() for name in group}
    read = describe(arch, meta, config.vocab_size, names, factors)
    ours = dataclasses.replace(config, **_NOT_OURS)
    ours = dataclasses.replace(
        ours,
        local_layers=config.local_layers if any(config.local_layers) else (),
        sliding_window=config.sliding_window if any(config.local_layers) else None,
        rope_scaling=read.rope_scaling if factors is not None else config.rope_scaling,
    )
    theirs = dataclasses.replace(read, **_NOT_OURS)
    differing = [
        f"{field.name}={getattr(ours, field.name)!r} (would be {getattr(theirs, field.name)!r})"
        for field in dataclasses.fields(ours)
        if not _equal(getattr(ours, field.name), getattr(theirs, field.name))
    ]
    if differing:
        raise ValueError(
            f"llama.cpp's architecture {arch!r} cannot express {'; '.join(differing)}; export the "
            "model with --to hf"
        )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-6, atol=0))
    return one == other


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case list():
            writer.add_array(key, value)
        case float():
            writer.add_float32(key, value)
        case int():
            writer.add_uint32(key, value)
