"""Models that read pictures too: the text model inside is read, and all else stays as it is."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxrl.models.checkpoints.families import Raw
from jaxrl.models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """How the text model lies in a model that reads pictures."""

    text_type: str
    """`model_type` of the text model where `text_config` names none."""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of a `model_type` of `text_config`, and the family that it is."""
    defaults: Raw = dataclasses.field(default_factory=dict)
    """What a key that `text_config` leaves out stands for, other than in the family."""
    tied: bool = True
    """Whether the head is the embedding, where `tie_word_embeddings` does not stand beside
    `text_config`, whose own key is not heeded."""
    tied_inside: bool = False
    """A true `tie_word_embeddings` in `text_config` is heeded nevertheless."""
    flat: bool = False
    """The keys of `text_config` may stand beside `vision_config` instead."""
    refused: tuple[str, ...] = ()
    """Keys of `text_config` that transformers heeds where a text model of `text_type` comes alone,
    and not here."""
    prefix: str = "model.language_model."
    """Of the text model's modules in transformers."""


_QWEN_VL: dict[str, Any] = {
    "vocab_size": 152064,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_window_layers": 80,
}
_QWEN3_VL: dict[str, Any] = {
    "vocab_size": 151936,
    "max_position_embeddings": 128000,
    "rope_theta": 5e5,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}


def _qwen2(name: str) -> Wrapper:
    """Around Qwen2, whose config may call itself by the `name` of the whole model."""
    aliases = {f"{name}_text": "qwen2", name: "qwen2"}
    return Wrapper("qwen2", aliases, _QWEN_VL, tied=False, tied_inside=True, flat=True)


_IDEFICS = Wrapper("llama", tied=False, prefix="model.text_model.")

WRAPPERS: Mapping[str, Wrapper] = {
    "gemma3": Wrapper(
        "gemma3_text",
        defaults={
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
        },
        refused=("final_logit_softcapping",),
    ),
    "gemma4": Wrapper("gemma4_text"),
    "llama4": Wrapper("llama4_text", tied=False, prefix="language_model.model."),
    "mistral3": Wrapper("mistral", refused=("layer_types",)),
    "internvl": Wrapper("qwen2"),
    "idefics3": _IDEFICS,
    "smolvlm": _IDEFICS,
    "qwen2_vl": _qwen2("qwen2_vl"),
    "qwen2_5_vl": _qwen2("qwen2_5_vl"),
    "qwen3_vl": Wrapper("qwen3", {"qwen3_vl_text": "qwen3"}, _QWEN3_VL, tied=False),
    "qwen3_5": Wrapper("qwen3_5_text", tied=False),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", tied=False),
}
"""By the `model_type` of config.json."""

_TIE = "tie_word_embeddings"

_MROPE = ("mrope_section", "mrope_interleaved")
"""Keys of a RoPE that say how the axes of a picture share it; in a text all axes are one."""

_CUT_OUT = "model.language_model."
"""Begins names of the tensors of a text model inside another."""

_TEXT = re.compile(
    r"(?:model\.)?(?:(?:language|text)_model\.)?(?:model\.)?"
    r"((?:layers|embed_tokens(?:_per_layer)?|norm|per_layer_\w+)\..*)"
)
_HEAD = re.compile(r"(?:model\.)?(?:language_model\.)?(lm_head\..*)")
_TOWER = re.compile(
    r"(?:model\.)?(?:(?:vision|audio)_tower|embed_(?:vision|audio)|vision_model|visual|"
    r"multi_modal_projector|connector|mtp)\."
)

_BESIDE = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Files that say how pictures become numbers."""


def find(raw: Raw) -> Wrapper | None:
    """How the text model lies in the model of a config.json; None: it is a text model."""
    return WRAPPERS.get(raw.get("model_type", ""))


def text(raw: Raw) -> dict[str, Any]:
    """The config.json of the text model inside; of a text model, itself.

    Args:
      raw: contents of a config.json.

    Raises:
      ValueError: there is no `text_config`, or it has a key that means nothing there.
    """
    wrapper = find(raw)
    if wrapper is None:
        return dict(raw)
    inner = raw.get("text_config")
    if inner is None and wrapper.flat:
        inner = {key: value for key, value in raw.items() if key != "vision_config"}
    if not isinstance(inner, Mapping):
        raise ValueError(f"config.json of {raw['model_type']!r} lacks 'text_config'; add it")
    model_type = inner.get("model_type", wrapper.text_type)
    for key in wrapper.refused:
        if model_type == wrapper.text_type and inner.get(key) is not None:
            raise ValueError(
                f"text_config.{key}={inner[key]!r}: a model that reads pictures is supported "
                "without it; delete the key, or name the text model alone"
            )
    tied = raw.get(_TIE)
    tied = wrapper.tied if tied is None else tied
    text_raw = {
        **wrapper.defaults,
        **inner,
        "model_type": wrapper.aliases.get(model_type, model_type),
        _TIE: tied or (wrapper.tied_inside and bool(inner.get(_TIE))),
    }
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := text_raw.get(key), Mapping) and any(k in rope for k in _MROPE):
            text_raw[key] = _without_axes(rope)
    text_raw.pop("architectures", None)
    return text_raw


def _without_axes(rope: Raw) -> dict[str, Any] | None:
    plain = {key: value for key, value in rope.items() if key not in _MROPE}
    for key in ("rope_type", "type"):
        if plain.get(key) in ("mrope", "default"):
            del plain[key]
    return plain or None


def leaves_tying_open(raw: Raw) -> bool:
    """Whether the config.json of a model that reads pictures leaves open if its head is tied."""
    return find(raw) is not None and raw.get(_TIE) is None


def has_head(names: Iterable[str]) -> bool:
    """Whether there is an output head among the tensors of these names."""
    return any(text_name(name) == "lm_head.weight" for name in names)


def outside(names: Iterable[str]) -> list[str]:
    """The names of the tensors that belong to no text model."""
    return [name for name in names if text_name(name) is None]


def adapter_names(changed: Mapping[str, Any]) -> dict[str, Any]:
    """What an adapter changes, by the names of the text model; the names of all else stay."""
    return {text_name(name) or name: parts for name, parts in changed.items()}


def text_name(name: str) -> str | None:
    """The name in a text model of a tensor, or None of one that belongs to no text model."""
    if _TOWER.match(name):
        return None
    if match := _TEXT.fullmatch(name):
        return f"model.{match[1]}"
    match = _HEAD.fullmatch(name)
    return match[1] if match else name


def text_tensors(raw: Raw, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of the text model, by the names that they have where it comes alone.

    Args:
      raw: contents of config.json; of a text model, the tensors stay as they are, unless they
        have names of one that reads pictures, as transformers saves a text model cut out of it.
      tensors: of the files, by name.

    Raises:
      ValueError: two tensors are the same part of the text model.
    """
    if find(raw) is None and not any(name.startswith(_CUT_OUT) for name in tensors):
        return dict(tensors)
    renamed: dict[str, Any] = {}
    for name, tensor in tensors.items():
        short = text_name(name)
        if short in renamed:
            raise ValueError(f"two tensors are {short} of the text model; keep one of them")
        if short is not None:
            renamed[short] = tensor
    return renamed


def file_names(names: Iterable[str], text_names: Iterable[str]) -> dict[str, str]:
    """The names in a model that reads pictures of tensors of its text model.

    Args:
      names: of all tensors in its files.
      text_names: names of a text model's tensors.
    """
    norm = next(name for name in names if text_name(name) == "model.norm.weight")
    inside = norm.removesuffix("norm.weight")
    outside = "language_model." if inside == "language_model.model." else ""
    return {
        name: inside + name.removeprefix("model.") if name.startswith("model.") else outside + name
        for name in text_names
    }


def describe(raw: Raw, config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The config.json of a model that reads pictures after its text model was trained.

    Args:
      raw: what it was.
      config: the text model.
      dtype: of the text model's tensors.
    """
    plain = {k: v for k, v in raw.items() if k not in ("quantization_config", "dtype")}
    plain["torch_dtype"] = dtype
    if config.tie_embeddings != text(raw)[_TIE]:
        plain[_TIE] = config.tie_embeddings
    plain.setdefault(_TIE, config.tie_embeddings)
    if isinstance(inner := raw.get("text_config"), Mapping):
        inner = {k: v for k, v in inner.items() if k not in ("dtype", "torch_dtype")}
        plain["text_config"] = {**inner, _TIE: config.tie_embeddings}
    return plain


def read_raw(directory: Path) -> dict[str, Any]:
    """The contents of a directory's config.json, empty if it has none."""
    path = directory / "config.json"
    return json.loads(path.read_text()) if path.exists() else {}


def copy_processor(source: Path, directory: Path) -> None:
    """Copy the files that say how pictures become numbers."""
    for name in _BESIDE:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)
