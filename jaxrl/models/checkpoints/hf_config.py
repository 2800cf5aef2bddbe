"""`config.json` of Hugging Face directories, to `DecoderConfig` and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.models.checkpoints import hf_rope
from jaxrl.models.checkpoints.convolution_families import CONVOLUTION
from jaxrl.models.checkpoints.families import FAMILIES as FIRST
from jaxrl.models.checkpoints.families import Family, Raw
from jaxrl.models.checkpoints.forms import wrapped
from jaxrl.models.checkpoints.grouped_families import GROUPED
from jaxrl.models.checkpoints.hybrid_families import HYBRID
from jaxrl.models.checkpoints.kind_families import KINDS
from jaxrl.models.checkpoints.mamba_families import MAMBA
from jaxrl.models.checkpoints.recent_families import RECENT
from jaxrl.models.config import DecoderConfig

FAMILIES: Mapping[str, Family] = {
    **FIRST, **GROUPED, **RECENT, **HYBRID, **CONVOLUTION, **KINDS, **MAMBA
}  # fmt: skip
"""By the `model_type` of config.json."""

ALIASES: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}
"""Names of a `model_type` that are another's architecture, and that other."""

LACKING: Mapping[str, str] = {
    "gemma3n_text": "it has several residual streams and sparse activations",
}
"""What models have that the decoder has not, by their `model_type`."""

COMMON = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "max_positions",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
"""Keys of every family's config.json, and our fields."""

_LARGEST = {"num_hidden_layers": 1 << 12, "max_position_embeddings": 1 << 40}
"""Larger numbers are of no model, and would be counted to for hours."""

_CLASSIFIER = "ForSequenceClassification"
"""How the architecture of a reward model ends."""

_DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 1e4,
}

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_SELF_GATED = {"relu2": "relu"}
"""Of MLPs without a gate."""


def find(model_type: str, inner: Raw | None = None) -> Family:
    """The family of that `model_type`.

    Args:
      model_type: of config.json.
      inner: its `text_config`, of a model that also reads pictures or sound.

    Raises:
      ValueError: there is none.
    """
    model_type = ALIASES.get(model_type, model_type)
    if model_type not in FAMILIES:
        text = (inner or {}).get("model_type")
        if why := LACKING.get(model_type):
            raise ValueError(
                f"model_type={model_type!r} is not supported: {why}; name another model"
            )
        status = "one that is read where it comes alone" if text in FAMILIES else "not read either"
        hint = f" (its text_config is of {text!r}, {status})" if text else ""
        raise ValueError(
            f"model_type={model_type!r} is not one of "
            f"{sorted({*FAMILIES, *ALIASES, *wrapped.WRAPPERS})}{hint}; add a "
            "record to jaxrl/models/checkpoints/families.py"
        )
    return FAMILIES[model_type]


def read(raw: Raw, family: Family | None = None) -> DecoderConfig:
    """The decoder that a config.json describes: of a model that reads pictures, the text model.

    Args:
      raw: its contents, as transformers 4 or 5 writes them.
      family: a record of your own; None: looked up by `model_type`.

    Raises:
      ValueError: an unknown model type, a missing key, or a value that is not supported.
    """
    raw = raw if family else wrapped.text(raw)
    model_type = raw.get("model_type", "")
    family = family or find(model_type, raw.get("text_config"))
    model_type = ALIASES.get(model_type, model_type)
    explicit_values = {key: value for key, value in raw.items() if value is not None}
    aliases = family.aliases.items()
    explicit_values |= {k: explicit_values[a] for a, k in aliases if a in explicit_values}
    for key, allowed in family.refused.items():
        if explicit_values.get(key, allowed) != allowed:
            raise ValueError(
                f"{key}={explicit_values[key]!r}: this family is supported with {allowed!r} alone"
            )
    optional = (*family.fields, *family.nullable, *(["rope_theta"] if family.rope_optional else []))
    null = {key: None for key in optional if key in raw}  # which means: without
    raw = {**_DEFAULTS, **family.defaults, **null, **explicit_values}
    _check_sizes(raw)
    try:
        heads = raw["num_attention_heads"]
        raw = {"num_key_value_heads": heads, "head_dim": raw["hidden_size"] // heads, **raw}
        fields = {ours: raw[theirs] for theirs, ours in COMMON.items()}
        fields |= {ours: raw.get(theirs) for theirs, ours in family.fields.items()}
        fields |= hf_rope.read(raw, explicit_values, family) | _read_window(raw, family)
        fields |= family.read(raw)
    except KeyError as error:
        raise ValueError(f"config.json of {model_type!r} lacks {error}; add it") from error
    activation = raw.get(family.activation_key, "silu")
    supported = _SELF_GATED if family.fixed.get("self_gated") else _ACTIVATIONS
    if activation not in supported:
        raise ValueError(
            f"{family.activation_key}={activation!r} is not one of {sorted(supported)}"
        )
    fields["activation"] = supported[activation]
    if any(name.endswith(_CLASSIFIER) for name in raw.get("architectures") or ()):
        fields["labels"] = int(raw.get("num_labels") or len(raw.get("id2label") or (0, 1)))
    return DecoderConfig(family=model_type, **(fields | family.fixed))


def _check_sizes(raw: Raw) -> None:
    """Refuse sizes that no model has.

    Raises:
      ValueError: one is no whole number above 0, or too large.
    """
    for key in COMMON:
        value, most = raw.get(key), _LARGEST.get(key, 1 << 24)
        if key == "rms_norm_eps" or value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int) or not 0 < value <= most:
            raise ValueError(f"config.json: {key}={value!r:.50} must be from 1 to {most}")


def _read_window(raw: Raw, family: Family) -> dict[str, Any]:
    window, layers = raw.get("sliding_window"), raw["num_hidden_layers"]
    off = "use_sliding_window" in family.defaults and not raw["use_sliding_window"]
    if family.window == "none" or not window or off:
        return {}
    if family.window == "all":
        local = (True,) * layers
    elif "layer_types" in raw:
        local = tuple(kind == "sliding_attention" for kind in raw["layer_types"])
    else:
        local = tuple(family.local(raw, layer) for layer in range(layers))
    reaches_all = all(local) and window >= raw["max_position_embeddings"]
    return (
        {} if reaches_all or not any(local) else {"sliding_window": window, "local_layers": local}
    )


def write(config: DecoderConfig, dtype: str, family: Family | None = None) -> dict[str, Any]:
    """The config.json that describes a decoder, for transformers 4 and 5.

    Args:
      config: the decoder.
      dtype: of the tensors beside it.
      family: a record of your own; None: looked up by `config.family`.
    """
    family = family or find(config.family)
    raw = {"model_type": config.family, "architectures": [family.architecture]}
    raw |= {"torch_dtype": dtype}
    raw |= {theirs: getattr(config, ours) for theirs, ours in (COMMON | family.fields).items()}
    names = {ours: theirs for theirs, ours in (_ACTIVATIONS | _SELF_GATED).items()}
    raw[family.activation_key] = names[config.activation]
    if config.labels:
        raw["architectures"] = [family.architecture.replace("ForCausalLM", _CLASSIFIER)]
        raw["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.labels)}
        raw["label2id"] = {f"LABEL_{i}": i for i in range(config.labels)}
    return raw | hf_rope.write(config, family) | _write_window(config) | family.write(config)


def _write_window(config: DecoderConfig) -> dict[str, Any]:
    if not any(config.local_layers):
        return {"sliding_window": None, "use_sliding_window": False}
    kinds = ("full_attention", "sliding_attention")
    return {
        "sliding_window": config.sliding_window,
        "use_sliding_window": True,
        "layer_types": [kinds[local] for local in config.local_layers],
    }
