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
from jaxrl.models.checkpoints.forms.gguf_architectures import (
    FREQUENCIES,
    LONG,
    SHORT,
    find_written,
)
from jaxrl.models.checkpoints.forms.gguf_families import DESCRIBE
from jaxrl.models.checkpoints.gguf import describe, file_shape, tensors, to_file
from jaxrl.models.config import DecoderConfig, RopeScaling
from jaxrl.models.decoder import Params, layout

_KINDS = {
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "float16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}

_NOT_OURS: Mapping[str, Any] = {"family": "", "dtype": "", "attention": "auto", "rules": ()}
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
    record = find_written(config)
    arch, config = record.name, dataclasses.replace(config, family=record.family)
    meta, tables = metadata(config), _tables(config)
    _check(arch, config, meta, tables)
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
    for name, table in tables.items():
        writer.add_tensor_info(
            name, table.shape, table.dtype, table.nbytes, gguf.GGMLQuantizationType.F32
        )
    for entry in plan:
        outputs, *inputs = zip(
            *(file_shape(config, ours, leaves[ours]) for ours in entry.parts), strict=True
        )
        shape = (sum(outputs), *(axis[0] for axis in inputs))
        size = int(np.prod(gguf.quant_shape_to_byte_shape(shape, entry.kind)))
        writer.add_tensor_info(entry.tensor, shape, np.dtype(np.float32), size, entry.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for table in tables.values():
        writer.write_tensor_data(table)
    arrays = nnx.traversals.flatten_mapping(params, sep="/")
    for entry in plan:
        values = [
            to_file(config, ours, leaves[ours], arrays[ours][... if row is None else row])
            for ours, row in entry.parts.items()
        ]
        writer.write_tensor_data(gguf.quants.quantize(np.concatenate(values), entry.kind))
    writer.close()


class _Entry(NamedTuple):
    tensor: str
    parts: dict[str, int | None]
    """Our parameters that lie in it one after the other, and the layer of each; None for what is
    not stacked."""
    kind: gguf.GGMLQuantizationType


def _plan(config: DecoderConfig, kind: gguf.GGMLQuantizationType) -> list[_Entry]:
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    plan = dict[str, _Entry]()
    for ours, names in tensors(config).items():
        leaf = leaves[ours]
        matrix = bool(leaf.inputs or "vocab" in leaf.axes) and not ours.endswith("router")
        tensor_kind = kind if matrix else gguf.GGMLQuantizationType.F32
        for row, tensor in enumerate(names):
            entry = plan.setdefault(tensor, _Entry(tensor, {}, tensor_kind))
            entry.parts[ours] = row if leaf.batch else None
    return [*plan.values()]


def architecture(config: DecoderConfig) -> str:
    """The architecture that llama.cpp reads such a decoder as.

    Raises:
      ValueError: there is none, or none that is written here.
    """
    return find_written(config).name


def metadata(config: DecoderConfig) -> dict[str, Any]:
    """What describes a decoder of a family of `ARCHITECTURES`, the prefix left out."""
    scaling, experts = config.rope_scaling, config.experts
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
    return meta | (DESCRIBE[config.family](config) if config.family in DESCRIBE else {})


def _tables(config: DecoderConfig) -> dict[str, np.ndarray]:
    """Divisors of the rotary frequencies, float32 [rope_dim / 2] each, by their tensors."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind not in ("llama3", "longrope"):
        return {}
    names = find_written(config).tables
    if scaling.kind == "longrope" and LONG in names:
        factors = {LONG: scaling.long_factors, SHORT: scaling.short_factors}
        return {name: np.asarray(values, np.float32) for name, values in factors.items()}
    scaled, factor = rope.frequencies(config)
    if factor != 1 or FREQUENCIES not in names:
        return {}
    plain, _ = rope.frequencies(dataclasses.replace(config, rope_scaling=None))
    return {FREQUENCIES: (plain / scaled).astype(np.float32)}


def _check(
    arch: str, config: DecoderConfig, meta: Mapping[str, Any], tables: Mapping[str, np.ndarray]
) -> None:
    """Refuse a decoder that would be read back as another."""
    names = {name for group in tensors(config).values() for name in group}
    read = describe(arch, meta, config.vocab_size, names, tables)
    ours, theirs = _comparable(config), _comparable(read)
    if FREQUENCIES in tables:
        ours = dataclasses.replace(ours, rope_scaling=theirs.rope_scaling)
    differing = [
        f"{field.name}={getattr(config, field.name)!r} (would be {getattr(read, field.name)!r})"
        for field in dataclasses.fields(ours)
        if not _equal(getattr(ours, field.name), getattr(theirs, field.name))
    ]
    if differing:
        raise ValueError(
            f"llama.cpp's architecture {arch!r} cannot express {'; '.join(differing)}; export the "
            "model with --to hf"
        )


def _comparable(config: DecoderConfig) -> DecoderConfig:
    """The decoder with one spelling of what it computes."""
    config = dataclasses.replace(config, **_NOT_OURS)
    if not any(config.local_layers):
        config = dataclasses.replace(
            config, local_layers=(), sliding_window=None, local_rope_theta=None
        )
    scaling = config.rope_scaling
    if scaling and scaling.kind in ("yarn", "longrope"):
        scaling = dataclasses.replace(
            scaling, attention_factor=rope.frequencies(config)[1], mscale=0.0, mscale_all_dim=0.0
        )
        if scaling.kind == "longrope":  # whose factor has no other use
            scaling = dataclasses.replace(scaling, factor=1.0)
    return dataclasses.replace(config, rope_scaling=scaling)


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two fields are alike, numbers to the precision of files."""
    match ours, theirs:
        case float(), float():
            return bool(np.isclose(ours, theirs, rtol=1e-6, atol=0))
        case tuple(), tuple():
            return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
        case RopeScaling(), RopeScaling():
            return _equal(dataclasses.astuple(ours), dataclasses.astuple(theirs))
    return bool(ours == theirs)


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
