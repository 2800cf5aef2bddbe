"""Rotary embeddings in config.json: the old keys and those of transformers 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.models.checkpoints.families import Family, Raw
from jaxrl.models.config import DecoderConfig, RopeScaling

_KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers that may have a RoPE each: those that see everything, and local ones."""

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
    "llama_4_scaling_beta": "query_beta",
}
"""Keys of a RoPE scaling, and the fields of `RopeScaling`."""

_LLAMA3 = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
_YARN = (*_LLAMA3[:2], "beta_fast", "beta_slow", "truncate", "attention_factor")
_SCALING_KEYS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": _LLAMA3,
    "yarn": (*_YARN, "mscale", "mscale_all_dim"),
    "longrope": (*_LLAMA3[:2], "attention_factor", "short_factor", "long_factor"),
    "proportional": ("factor",),
}
"""Which of them each kind has."""

_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "proportional": (),
}
"""Which of them have no default."""


_UNUSED_THETA = 1e4
"""A base of no layer."""


def read(raw: Raw, explicit_values: Raw, family: Family) -> dict[str, Any]:
    """The fields of `DecoderConfig` that say how positions are encoded.

    Args:
      raw: config.json, defaults filled in.
      explicit_values: config.json as it is, without nulls.
      family: of the model.

    Raises:
      ValueError: two descriptions that may differ, or one that the family does not have.
    """
    if explicit_values.get("rope_scaling") and explicit_values.get("rope_parameters"):
        raise ValueError(
            f"config.json has rope_scaling={explicit_values['rope_scaling']} and rope_parameters="
            f"{explicit_values['rope_parameters']}; move what you want into rope_parameters, "
            "rope_theta included, and delete rope_scaling"
        )
    rope = explicit_values.get("rope_scaling") or raw.get("rope_parameters") or {}
    nested = any(kind in rope for kind in _KINDS)
    if nested and not family.rope_by_kind:
        raise ValueError(
            f"rope_parameters={rope}: layers of this family share one RoPE; give its keys without "
            "full_attention and sliding_attention"
        )
    local: dict[str, Any] = {}
    if family.rope_by_kind:
        rope = rope if nested else {"full_attention": rope}
        rope, local = _read_kinds(raw, explicit_values, rope, family)
    theta = rope.get("rope_theta", raw["rope_theta"])
    if theta is None:
        if not family.rope_optional:
            raise ValueError("rope_theta=None: layers of this family know positions; set a number")
        local["rope_layers"] = (False,) * raw["num_hidden_layers"]
        theta = _UNUSED_THETA
    return {
        "rope_theta": float(theta),
        "rope_fraction": _read_fraction(raw, rope, family),
        "rope_scaling": _read_scaling(raw, rope, family),
        **local,
    }


def _read_kinds(
    raw: Raw, explicit_values: Raw, rope: Raw, family: Family
) -> tuple[Raw, dict[str, Any]]:
    """The RoPE of layers that see everything, and the field for that of local ones."""
    flat = {key for key in explicit_values.get("rope_parameters") or {} if key not in _KINDS}
    local = rope.get("sliding_attention") or {}
    kind = local.get("rope_type", local.get("type", "default"))
    if flat or kind != "default":
        raise ValueError(
            f"rope_parameters={explicit_values.get('rope_parameters')}: give full_attention and "
            "sliding_attention apart, the latter with rope_type 'default' and its rope_theta"
        )
    default = family.defaults["rope_local_base_freq"]
    beside = raw.get(family.local_theta_key, default) if family.local_theta_key else default
    theta = local.get("rope_theta", beside)
    return rope.get("full_attention") or {}, {"local_rope_theta": float(theta)}


def _read_fraction(raw: Raw, rope: Raw, family: Family) -> float:
    fraction = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    if fraction != 1 and not family.partial_rope:
        raise ValueError(
            f"partial_rotary_factor={fraction}: this family rotates whole heads; delete the key"
        )
    return fraction


def _read_scaling(raw: Raw, rope: Raw, family: Family) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in family.rope_kinds:
        raise ValueError(f"rope_type={kind!r} is not one of {sorted(family.rope_kinds)}")
    if kind == "default":
        return None
    required = (*_REQUIRED[kind], *family.rope_keys)
    if missing := [key for key in required if rope.get(key) is None]:
        raise ValueError(f"rope_type={kind!r} lacks {missing}; add it beside rope_type")
    values = {
        _SCALING[key]: tuple(value) if isinstance(value, list) else value
        for key in (*_SCALING_KEYS[kind], *family.rope_keys)
        if (value := rope.get(key)) is not None
    }
    if kind not in ("linear", "proportional"):
        outside = None if family.rope_by_kind else raw.get("original_max_position_embeddings")
        if outside is not None:  # wins, as in transformers
            values["original_max_positions"] = outside
        values.setdefault("original_max_positions", raw["max_position_embeddings"])
    if kind == "longrope":
        stretch = raw["max_position_embeddings"] / values["original_max_positions"]
        values.setdefault("factor", stretch)
    return RopeScaling(kind, **values)


def write(config: DecoderConfig, family: Family) -> dict[str, Any]:
    """The keys of config.json that say how positions are encoded, as transformers 4 has them.

    A base of local layers that has no key there is written as transformers 5 has it.
    """
    scaling, local = config.rope_scaling, config.local_rope_theta
    knows_positions = not family.rope_optional or not config.rope_layers
    theta = config.rope_theta if knows_positions else None
    raw: dict[str, Any] = {"rope_theta": theta, "rope_scaling": None}
    if family.partial_rope:
        raw["partial_rotary_factor"] = config.rope_fraction
    if scaling:
        raw["rope_scaling"] = _write_scaling(scaling, family)
        if scaling.kind == "longrope":
            raw["original_max_position_embeddings"] = scaling.original_max_positions
    if family.local_theta_key:
        raw[family.local_theta_key] = local
    elif family.rope_by_kind and (
        family.partial_rope or local != family.defaults["rope_local_base_freq"]
    ):
        global_rope = {"rope_type": "default", **(raw["rope_scaling"] or {})}
        if family.partial_rope:
            global_rope["partial_rotary_factor"] = config.rope_fraction
        both = (
            {**global_rope, "rope_theta": config.rope_theta},
            {"rope_type": "default", "rope_theta": local},
        )
        return {"rope_parameters": dict(zip(_KINDS, both, strict=True))}
    if not scaling and "rope_type" in family.defaults.get("rope_parameters", {}):
        # where a file leaves a scaling out, the family's own is meant
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    return raw


def _write_scaling(scaling: RopeScaling, family: Family) -> dict[str, Any]:
    keys = (*_SCALING_KEYS[scaling.kind], *family.rope_keys)
    values = {key: getattr(scaling, _SCALING[key]) for key in keys}
    return {"rope_type": scaling.kind} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }
