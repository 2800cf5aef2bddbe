"""What the metadata of GGUF files say of each family, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.models import rope
from jaxrl.models.config import ChunkedLayers, DecoderConfig, Experts, Mamba2, RopeScaling

Meta = Mapping[str, Any]
"""Metadata of an architecture, its prefix removed."""

WINDOW = "attention.sliding_window"
"""How many tokens a query of a local layer sees, in the metadata."""

PATTERN = f"{WINDOW}_pattern"
"""Which layers are local: truth values, or the last of how many in a row is not."""

LOCAL_BASE = "rope.freq_base_swa"
"""The base of the rotary frequencies of local layers."""

_SIGMOID = 2
"""How llama.cpp numbers a router of sigmoids."""


def by_layer(value: int | list[int], total: int) -> list[int]:
    """A number of each of so many layers, which files write once where all are equal."""
    return value if isinstance(value, list) else [value] * total


def number(value: float) -> float:
    """The shortest number that is kept as this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _gemma(meta: Meta, *, largest: int) -> dict[str, Any]:
    layers, size, heads = (
        meta[key] for key in ("block_count", "embedding_length", "attention.head_count")
    )
    head = size / heads if layers == largest else meta["attention.key_length"]
    return {
        "norm_offset": 1.0,
        "post_norm": True,
        "activation": "gelu_tanh",
        "embed_scale": size**0.5,
        "attention_scale": head**-0.5,  # the 27B alone scales by its width
    }


def _windows(meta: Meta, every: int) -> dict[str, Any]:
    """Layers with a window: where no pattern says which, all but the last of `every` in a row."""
    total, pattern = meta["block_count"], meta.get(PATTERN, every)
    if not isinstance(pattern, list):
        pattern = [pattern == 0 or i % pattern < pattern - 1 for i in range(total)]
    return {"sliding_window": meta[WINDOW], "local_layers": tuple(map(bool, pattern))}


def _describe_windows(c: DecoderConfig) -> dict[str, Any]:
    return {WINDOW: c.sliding_window} if c.sliding_window and any(c.local_layers) else {}


def _gemma2(meta: Meta) -> dict[str, Any]:
    return {
        **_gemma(meta, largest=46),
        **_windows(meta, 2),
        "attention_softcap": number(meta["attn_logit_softcapping"]),
        "logit_softcap": number(meta["final_logit_softcapping"]),
    }


def _gemma3(meta: Meta) -> dict[str, Any]:
    fields = {**_gemma(meta, largest=62), "qk_norm": "head"}
    if not meta.get(WINDOW):
        return fields
    base = number(meta.get(LOCAL_BASE, 10_000.0))
    return {**fields, **_windows(meta, 6), "local_rope_theta": base}


def _every_fourth_without_positions(meta: Meta) -> tuple[bool, ...]:
    return tuple(bool((i + 1) % 4) for i in range(meta["block_count"]))


def _experts(meta: Meta, **further: Any) -> Experts:
    return Experts(
        num_experts=meta["expert_count"],
        per_token=meta["expert_used_count"],
        size=meta.get("expert_feed_forward_length", meta["feed_forward_length"]),
        **further,
    )


def _mixtral(meta: Meta) -> dict[str, Any]:
    size = meta["feed_forward_length"]
    return {"experts": Experts(meta["expert_count"], meta["expert_used_count"], size)}


def _scale_ministral3(meta: Meta, scaling: RopeScaling) -> RopeScaling:
    if scaling.kind != "yarn":
        return scaling
    share = number(meta.get("rope.scaling.yarn_log_multiplier", 0.0))
    return dataclasses.replace(
        scaling,
        mscale=1.0 if share else 0.0,  # which llama.cpp takes for granted
        mscale_all_dim=share,
        query_beta=number(meta.get("attention.temperature_scale", 0.0)),
    )


def _describe_ministral3(c: DecoderConfig) -> dict[str, Any]:
    s = c.rope_scaling
    if s is None or s.kind != "yarn":
        return {}
    return {
        "rope.scaling.yarn_beta_fast": float(s.beta_fast),
        "rope.scaling.yarn_beta_slow": float(s.beta_slow),
        "rope.scaling.yarn_log_multiplier": float(s.mscale_all_dim),
        "attention.temperature_scale": float(s.query_beta),
    }


def _phi3(meta: Meta) -> dict[str, Any]:
    """A window of the whole context or more is none."""
    window = meta.get(WINDOW, 0)
    fields = {"head_dim": meta["embedding_length"] // meta["attention.head_count"]}
    if not 0 < window < meta["context_length"]:
        return fields
    return {**fields, "sliding_window": window, "local_layers": (True,) * meta["block_count"]}


def _describe_phi3(c: DecoderConfig) -> dict[str, Any]:
    s = c.rope_scaling
    meta: dict[str, Any] = {
        WINDOW: c.sliding_window if any(c.local_layers) else 0,
        "rope.scaling.original_context_length": s.original_max_positions if s else c.max_positions,
    }
    if s and s.kind == "longrope":
        meta["rope.scaling.attn_factor"] = float(rope.frequencies(c)[1])
    return meta


def _olmo2(meta: Meta) -> dict[str, Any]:
    return {
        "head_dim": meta["embedding_length"] // meta["attention.head_count"],
        "pre_norm": False,
        "post_norm": True,
        "qk_norm": "flat",
        "tie_embeddings": False,
    }


def _olmo3(meta: Meta) -> dict[str, Any]:
    base = number(meta.get(LOCAL_BASE, meta.get("rope.freq_base", 10_000.0)))
    return {**_olmo2(meta), **_windows(meta, 4), "local_rope_theta": base}


def _describe_olmo3(c: DecoderConfig) -> dict[str, Any]:
    windows = _describe_windows(c)
    return {**windows, PATTERN: list(c.local_layers)} if windows else {}


def _glm4_moe(meta: Meta) -> dict[str, Any]:
    """Layers past the last, which predict further tokens, are left out."""
    _refuse_groups(meta)
    experts = _experts(
        meta,
        shared_size=meta["expert_shared_count"] * meta["expert_feed_forward_length"],
        dense_layers=meta.get("leading_dense_block_count", 0),
        scoring="sigmoid",
        correction_bias=True,
        normalize=meta.get("expert_weights_norm", False),
        scale=number(meta.get("expert_weights_scale", 0.0)) or 1.0,
        group_top=2,
    )
    layers = meta["block_count"] - meta.get("nextn_predict_layers", 0)
    return {"num_layers": layers, "experts": experts}


def _describe_glm4_moe(c: DecoderConfig) -> dict[str, Any]:
    e = c.experts
    return {
        "expert_shared_count": e.shared_size // e.size,
        "leading_dense_block_count": e.dense_layers,
        "expert_gating_func": _SIGMOID,
        "expert_weights_scale": float(e.scale),
        "expert_weights_norm": e.normalize,
    }


def _minimax(meta: Meta) -> dict[str, Any]:
    experts = _experts(meta, scoring="sigmoid", correction_bias=True)
    return {"qk_norm": "flat", "experts": experts, "tie_embeddings": False}


def _gpt_oss(meta: Meta) -> dict[str, Any]:
    return {
        "experts": _experts(meta, biases=True, clamp=7.0),
        "sinks": True,
        "qkv_bias": True,
        "o_bias": True,
        "tie_embeddings": False,
        **_windows(meta, 2),
    }


def _scale_gpt_oss(meta: Meta, scaling: RopeScaling) -> RopeScaling:
    """Files do not say that the bounds of its ramp are not rounded."""
    return dataclasses.replace(scaling, truncate=False)


_FACTORS = {
    "embed_scale": "embedding_scale",
    "residual_scale": "residual_scale",
    "attention_scale": "attention.scale",
    "logit_divisor": "logit_scale",
}
"""Factors of Granite, fields of `DecoderConfig`, and their metadata."""


def _granite(meta: Meta) -> dict[str, Any]:
    return {ours: number(meta[theirs]) for ours, theirs in _FACTORS.items() if theirs in meta}


def _describe_granite(c: DecoderConfig) -> dict[str, Any]:
    values = {theirs: getattr(c, ours) for ours, theirs in _FACTORS.items()}
    return {key: float(value) for key, value in values.items() if value is not None}


def _recurrent(meta: Meta) -> tuple[bool, ...]:
    """Which layers have a mixer: those without heads of keys."""
    heads = meta["attention.head_count_kv"]
    return tuple(count == 0 for count in heads) if isinstance(heads, list) else ()


def _mamba(meta: Meta) -> Mamba2:
    heads, size = meta["ssm.time_step_rank"], meta["ssm.inner_size"]
    return Mamba2(
        heads, size // heads, meta["ssm.group_count"], meta["ssm.state_size"],
        meta["ssm.conv_kernel"],
    )  # fmt: skip


def _describe_mamba(m: Mamba2) -> dict[str, Any]:
    values = {
        "conv_kernel": m.taps, "inner_size": m.size, "state_size": m.state,
        "time_step_rank": m.heads, "group_count": m.groups,
    }  # fmt: skip
    return {f"ssm.{key}": value for key, value in values.items()}


def _granite_hybrid(meta: Meta) -> dict[str, Any]:
    positions = meta.get("rope.scaling.finetuned", True)
    shared = meta.get("expert_shared_feed_forward_length", 0)
    return {
        **_granite(meta),
        "rope_layers": () if positions else (False,) * meta["block_count"],
        "recurrent_layers": _recurrent(meta),
        "mamba": _mamba(meta),
        "experts": _experts(meta, shared_size=shared) if meta.get("expert_count") else None,
    }


def _describe_granite_hybrid(c: DecoderConfig) -> dict[str, Any]:
    return {
        **_describe_granite(c),
        **_describe_mamba(c.mamba),
        "rope.scaling.finetuned": not c.rope_layers,
    }


def _refuse_groups(meta: Meta) -> None:
    if (groups := meta.get("expert_group_count", 1)) > 1:
        raise ValueError(f"expert_group_count={groups}: experts in groups are not read; at most 1")


def _nemotron(meta: Meta) -> dict[str, Any]:
    """Layers without keys and without an MLP are mixers."""
    _refuse_groups(meta)
    total, routed = meta["block_count"], bool(meta.get("expert_count"))
    parts = tuple(
        ("experts" if routed else "mlp") if width else "attention" if heads else "mixer"
        for width, heads in zip(
            by_layer(meta["feed_forward_length"], total),
            by_layer(meta["attention.head_count_kv"], total),
            strict=True,
        )
    )
    experts = _experts(
        meta,
        shared_size=meta.get("expert_shared_feed_forward_length", 0),
        scoring="sigmoid",
        correction_bias=True,
        normalize=meta.get("expert_weights_norm", False),
        scale=number(meta.get("expert_weights_scale", 1.0)),
        group_top=2,
    ) if routed else None  # fmt: skip
    return {
        "activation": "relu",
        "self_gated": True,
        "rope_layers": (False,) * total,
        "recurrent_layers": tuple(part == "mixer" for part in parts),
        "parts": parts,
        "mamba": _mamba(meta),
        "experts": experts,
    }


def _describe_nemotron(c: DecoderConfig) -> dict[str, Any]:
    if least := c.mamba.strides[0]:
        raise ValueError(
            f"time_step_min={least}: llama.cpp does not bound strides, as transformers does; set "
            "it to 0 in the model's config.json, which changes the model a little, or export it "
            "with --to hf"
        )
    e = c.experts
    width = c.intermediate_size if e is None else e.size
    meta = {
        **_describe_mamba(c.mamba),
        "attention.layer_norm_epsilon": float(c.norm_eps),  # asked for beside that of RMS norms
        "feed_forward_length": [width if part in ("mlp", "experts") else 0 for part in c.parts],
        "attention.head_count_kv": [
            c.num_kv_heads if part == "attention" else 0 for part in c.parts
        ],
    }
    if e is None:
        return meta
    return {
        **meta,
        "expert_gating_func": _SIGMOID,
        "expert_shared_count": 1,
        "expert_weights_norm": e.normalize,
        "expert_weights_scale": float(e.scale),
    }


def _lfm2(meta: Meta) -> dict[str, Any]:
    return {
        "qk_norm": "head",
        "recurrent_layers": _recurrent(meta),
        "convolution": meta["shortconv.l_cache"],
    }


def _lfm2_moe(meta: Meta) -> dict[str, Any]:
    experts = _experts(
        meta,
        dense_layers=meta["leading_dense_block_count"],
        scoring="sigmoid",
        correction_bias=True,
        floor=1e-6,
    )
    return {**_lfm2(meta), "experts": experts}


def _describe_lfm2(c: DecoderConfig) -> dict[str, Any]:
    return {"shortconv.l_cache": c.convolution}


def _describe_lfm2_moe(c: DecoderConfig) -> dict[str, Any]:
    return {
        **_describe_lfm2(c),
        "leading_dense_block_count": c.dense_layers,
        "expert_gating_func": _SIGMOID,
    }


def _llama4(meta: Meta) -> dict[str, Any]:
    if (window := meta.get(WINDOW, 8192)) != 8192:
        raise ValueError(f"{WINDOW}={window}: chunks of 8192 tokens are read")
    step, total = meta["interleave_moe_layer_step"], meta["block_count"]
    experts = _experts(meta, scoring="sigmoid", normalize=False)
    return {
        "rope_interleaved": True,
        "rope_layers": _every_fourth_without_positions(meta),
        "experts": dataclasses.replace(experts, shared_size=experts.size),
        "chunks": ChunkedLayers(
            8192,
            routed=tuple(step > 0 and (i + 1) % step == 0 for i in range(total)),
            normalize=experts.num_experts != 128,
            temperature=0.1,
        ),
    }


def _describe_llama4(c: DecoderConfig) -> dict[str, Any]:
    routed = c.chunks.routed
    return {"interleave_moe_layer_step": routed.index(True) + 1 if any(routed) else 0}


READ: Mapping[str, Callable[[Meta], dict[str, Any]]] = {
    "mixtral": _mixtral,
    "smollm3": lambda meta: {"rope_layers": _every_fourth_without_positions(meta)},
    "qwen3": lambda meta: {"qk_norm": "head"},
    "qwen3_moe": lambda meta: {"qk_norm": "head", "experts": _experts(meta)},
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "gpt_oss": _gpt_oss,
    "ernie4_5": lambda meta: {"rope_interleaved": True},
    "minimax_m2": _minimax,
    "glm4_moe": _glm4_moe,
    "granite": _granite,
    "granitemoe": lambda meta: {**_granite(meta), "experts": _experts(meta)},
    "granitemoehybrid": _granite_hybrid,
    "nemotron_h": _nemotron,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "llama4_text": _llama4,
}
"""The fields of `DecoderConfig` that a family decides, some by way of the metadata."""

SCALE: Mapping[str, Callable[[Meta, RopeScaling], RopeScaling]] = {
    "ministral3": _scale_ministral3,
    "gpt_oss": _scale_gpt_oss,
}
"""What a family makes of a scaling of RoPE."""

DESCRIBE: Mapping[str, Callable[[DecoderConfig], dict[str, Any]]] = {
    "ministral3": _describe_ministral3,
    "gemma2": _describe_windows,
    "gemma3_text": _describe_windows,
    "gpt_oss": _describe_windows,
    "phi3": _describe_phi3,
    "olmo3": _describe_olmo3,
    "minimax_m2": lambda config: {"expert_gating_func": _SIGMOID},
    "glm4_moe": _describe_glm4_moe,
    "granite": _describe_granite,
    "granitemoe": _describe_granite,
    "granitemoehybrid": _describe_granite_hybrid,
    "nemotron_h": _describe_nemotron,
    "lfm2": _describe_lfm2,
    "lfm2_moe": _describe_lfm2_moe,
    "llama4_text": _describe_llama4,
}
"""The metadata of a family beside what all have."""
