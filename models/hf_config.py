"""`config.json` of Hugging Face directories, to `DecoderConfig` and back."""

from __future__ import annotations

from typing import Any

from jaxrl.models.config import DecoderConfig, RopeScaling
from jaxrl.models.families import FAMILIES, Family, Raw

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

_SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_positions",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "short_factor": "short_factors",
    "long_factor": "long_factors",
}
"""Keys of a RoPE scaling, and the fields of `RopeScaling`."""

_LLAMA3 = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
_YARN = (*_LLAMA3[:2], "beta_fast", "beta_slow", "truncate", "attention_factor")
_SCALING_KEYS = {
    "linear": ("factor",),
    "llama3": _LLAMA3,
    "yarn": (*_YARN, "mscale", "mscale_all_dim"),
    "longrope": (*_LLAMA3[:2], "attention_factor", "short_factor", "long_factor"),
}
"""Which of them each kind has."""


def find(model_type: str) -> Family:
    """The family of that `model_type`.

    Raises:
      ValueError: there is none.
    """
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type={model_type!r} is not one of {sorted(FAMILIES)}; add a record to "
            "models/families.py"
        )
    return FAMILIES[model_type]


def read(raw: Raw, family: Family | None = None) -> DecoderConfig:
    """The decoder that a config.json describes.

    Args:
      raw: its contents, as transformers 4 or 5 writes them.
      family: a record of your own; None: looked up by `model_type`.

    Raises:
      ValueError: an unknown model type, a missing key, or a value that is not supported.
    """
    model_type = raw.get("model_type", "")
    family = family or find(model_type)
    given = {key: value for key, value in raw.items() if value is not None}
    raw = {**_DEFAULTS, **family.defaults, **given}
    _check_sizes(raw)
    try:
        heads = raw["num_attention_heads"]
        raw = {"num_key_value_heads": heads, "head_dim": raw["hidden_size"] // heads, **raw}
        fields = {ours: raw[theirs] for theirs, ours in COMMON.items()}
        fields |= {ours: raw.get(theirs) for theirs, ours in family.fields.items()}
        fields |= _read_rope(raw) | _read_window(raw, family)
        fields |= family.read(raw)
    except KeyError as error:
        raise ValueError(f"config.json of {model_type!r} lacks {error}; add it") from error
    activation = raw.get(family.activation_key, "silu")
    if "activation" not in family.fixed and activation not in _ACTIVATIONS:
        raise ValueError(
            f"{family.activation_key}={activation!r} is not one of {sorted(_ACTIVATIONS)}"
        )
    fields["activation"] = _ACTIVATIONS.get(activation)
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


def _read_rope(raw: Raw) -> dict[str, Any]:
    old_style = {**(raw.get("rope_scaling") or {}), "rope_theta": raw["rope_theta"]}
    rope = raw.get("rope_parameters") or old_style
    local_theta = raw.get("rope_local_base_freq")
    if "full_attention" in rope:
        local_theta = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    fraction = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    return {
        "rope_theta": float(rope.get("rope_theta", raw["rope_theta"])),
        "local_rope_theta": local_theta,
        "rope_fraction": fraction,
        "rope_scaling": _read_scaling(raw, rope),
    }


def _read_scaling(raw: Raw, rope: Raw) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _SCALING_KEYS:
        raise ValueError(f"rope_type={kind!r} is not one of {sorted(_SCALING_KEYS)}")
    values = {
        _SCALING[key]: tuple(value) if isinstance(value, list) else value
        for key in _SCALING_KEYS[kind]
        if (value := rope.get(key)) is not None
    }
    if kind != "linear":
        trained = raw.get("original_max_position_embeddings", raw["max_position_embeddings"])
        values.setdefault("original_max_positions", trained)
    if kind == "longrope":
        values["factor"] = raw["max_position_embeddings"] / values["original_max_positions"]
    return RopeScaling(kind, **values)


def _read_window(raw: Raw, family: Family) -> dict[str, Any]:
    window, layers = raw.get("sliding_window"), raw["num_hidden_layers"]
    if not window or raw.get("use_sliding_window") is False:
        return {}
    if "layer_types" in raw:
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
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    raw[family.activation_key] = names[config.activation]
    if config.labels:
        raw["architectures"] = [family.architecture.replace("ForCausalLM", _CLASSIFIER)]
        raw["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.labels)}
        raw["label2id"] = {f"LABEL_{i}": i for i in range(config.labels)}
    return raw | _write_rope(config) | _write_window(config) | family.write(config)


def _write_rope(config: DecoderConfig) -> dict[str, Any]:
    raw: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_scaling": None}
    if config.rope_fraction != 1:
        raw["partial_rotary_factor"] = config.rope_fraction
    if config.local_rope_theta is not None:
        raw["rope_local_base_freq"] = config.local_rope_theta
    if scaling := config.rope_scaling:
        values = {key: getattr(scaling, _SCALING[key]) for key in _SCALING_KEYS[scaling.kind]}
        raw["rope_scaling"] = {"rope_type": scaling.kind} | {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value is not None
        }
        if scaling.kind == "longrope":
            raw["original_max_position_embeddings"] = scaling.original_max_positions
    return raw


def _write_window(config: DecoderConfig) -> dict[str, Any]:
    if not any(config.local_layers):
        return {"sliding_window": None, "use_sliding_window": False}
    kinds = ("full_attention", "sliding_attention")
    return {
        "sliding_window": config.sliding_window,
        "use_sliding_window": True,
        "layer_types": [kinds[local] for local in config.local_layers],
    }
