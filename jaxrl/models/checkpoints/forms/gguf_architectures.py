"""Architectures of llama.cpp: the metadata and the names of tensors of each in GGUF files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl.models.config import ChunkedLayers, DecoderConfig, Experts, Mamba2, RopeScaling

Meta = Mapping[str, Any]
"""Metadata of an architecture, its prefix removed."""

OUTSIDE = {
    "embed": "token_embd.weight",
    "norm/weight": "output_norm.weight",
    "head": "output.weight",
}
"""Our parameters outside the layers, and their tensors."""

LAYER = {
    "attention_norm/weight": "attn_norm.weight",
    "attention/q": "attn_q.weight",
    "attention/q_bias": "attn_q.bias",
    "attention/k": "attn_k.weight",
    "attention/k_bias": "attn_k.bias",
    "attention/v": "attn_v.weight",
    "attention/v_bias": "attn_v.bias",
    "attention/o": "attn_output.weight",
    "attention/o_bias": "attn_output.bias",
    "attention/sinks": "attn_sinks.weight",
    "attention/q_norm/weight": "attn_q_norm.weight",
    "attention/k_norm/weight": "attn_k_norm.weight",
    "attention_post_norm/weight": "post_attention_norm.weight",
    "mixer_norm/weight": "attn_norm.weight",
    "mlp_norm/weight": "ffn_norm.weight",
    "mlp/gate": "ffn_gate.weight",
    "mlp/gate_bias": "ffn_gate.bias",
    "mlp/up": "ffn_up.weight",
    "mlp/up_bias": "ffn_up.bias",
    "mlp/down": "ffn_down.weight",
    "mlp/down_bias": "ffn_down.bias",
    "mlp_post_norm/weight": "post_ffw_norm.weight",
}
"""Our parameters in a layer, and their tensors under `blk.{layer}.`."""

ROUTED = {
    "mlp/router": "ffn_gate_inp.weight",
    "mlp/router_bias": "ffn_gate_inp.bias",
    "mlp/correction": "exp_probs_b.bias",
    **{f"mlp/{part}": f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")},
    **{f"mlp/{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")},
    **{f"mlp/shared/{part}": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
}
"""Those that a layer with experts has or names otherwise."""

CONVOLUTION = {
    "mixer/bcx": "shortconv.in_proj.weight",
    "mixer/conv": "shortconv.conv.weight",
    "mixer/output": "shortconv.out_proj.weight",
}
MAMBA = {
    "mixer/zxbcdt": "ssm_in.weight",
    "mixer/conv": "ssm_conv1d.weight",
    "mixer/conv_bias": "ssm_conv1d.bias",
    "mixer/a_log": "ssm_a",
    "mixer/dt_bias": "ssm_dt.bias",
    "mixer/skip": "ssm_d",
    "mixer/norm/weight": "ssm_norm.weight",
    "mixer/output": "ssm_out.weight",
}
"""Those of a mixer."""

_PARTS = {**MAMBA, "mlp_norm/weight": "attn_norm.weight"}
_SECOND_NORM = {"mlp_norm/weight": "post_attention_norm.weight"}

BIASES = {
    "qkv_bias": "blk.0.attn_q.bias",
    "o_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_gate.bias",
}
"""Fields of `DecoderConfig`, and a tensor that is there where they are set."""

_SIGMOID = 2
"""How llama.cpp numbers a router of sigmoids."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What llama.cpp knows by an architecture's name."""

    family: str
    """Of `families.FAMILIES`."""
    fields: Callable[[Meta], dict[str, Any]] = lambda meta: {}
    """The fields of `DecoderConfig` that the name decides, some by way of the metadata."""
    describe: Callable[[DecoderConfig], dict[str, Any]] = lambda config: {}
    """The metadata beside what all architectures have."""
    biases: tuple[str, ...] = ()
    """Which of the fields `qkv_bias`, `o_bias` and `mlp_bias` a file may have the tensors of."""
    permuted: bool = False
    """Rows of queries and keys lie so that neighbouring features are rotated together."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors in a layer that differ from `LAYER`."""
    outside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors outside the layers that differ from `OUTSIDE`."""
    routed: bool | None = None
    """Whether its decoders have experts, where its family has two architectures; None: one."""


def by_layer(value: int | list[int], total: int) -> list[int]:
    """A number of each of so many layers, which files write once where all are equal."""
    return value if isinstance(value, list) else [value] * total


def number(value: float) -> float:
    """The shortest number that is kept as this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def scaling(meta: Meta, factors: np.ndarray | None) -> RopeScaling | None:
    """How the metadata scale RoPE.

    Args:
      meta: of the architecture.
      factors: float32 [rope_dim / 2], divisors of the frequencies; None: there are none.

    Raises:
      ValueError: a scaling that we do not read.
    """
    kind, factor = meta.get("rope.scaling.type", "none"), meta.get("rope.scaling.factor")
    if factors is not None and kind == "none" and factor is None:
        divisors = tuple(float(f) for f in factors)
        return RopeScaling(
            "longrope", 1.0, meta["context_length"], attention_factor=1.0,
            short_factors=divisors, long_factors=divisors,
        )  # fmt: skip
    prefix, flag = "rope.scaling.", "rope.scaling.finetuned"
    scaled = [key for key in meta if key.startswith(prefix) and key != flag]
    if not scaled or scaled == ["rope.scaling.type"]:
        return None
    if kind == "linear" and factors is None:
        return RopeScaling("linear", number(factor))
    if kind == "yarn" and factors is None:
        return RopeScaling("yarn", number(factor), meta["rope.scaling.original_context_length"])
    raise ValueError(f"{scaled} describe a scaled RoPE of type {kind!r}; linear and yarn are read")


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
        "sliding_window": meta["attention.sliding_window"],
    }


def _gemma2(meta: Meta) -> dict[str, Any]:
    return _gemma(meta, largest=46) | {
        "local_layers": tuple(i % 2 == 0 for i in range(meta["block_count"])),
        "attention_softcap": number(meta["attn_logit_softcapping"]),
        "logit_softcap": number(meta["final_logit_softcapping"]),
    }


def _gemma3(meta: Meta) -> dict[str, Any]:
    return _gemma(meta, largest=62) | {
        "qk_norm": "head",
        "local_layers": tuple(bool((i + 1) % 6) for i in range(meta["block_count"])),
        "local_rope_theta": 10_000.0,
    }


def _every_fourth_without_positions(meta: Meta) -> tuple[bool, ...]:
    return tuple(bool((i + 1) % 4) for i in range(meta["block_count"]))


def _experts(meta: Meta, **further: Any) -> Experts:
    return Experts(
        num_experts=meta["expert_count"],
        per_token=meta["expert_used_count"],
        size=meta.get("expert_feed_forward_length", meta["feed_forward_length"]),
        **further,
    )


def _qwen3_moe(meta: Meta) -> dict[str, Any]:
    return {"qk_norm": "head", "experts": _experts(meta)}


def _minimax(meta: Meta) -> dict[str, Any]:
    experts = _experts(meta, scoring="sigmoid", correction_bias=True)
    return {"qk_norm": "flat", "experts": experts, "tie_embeddings": False}


def _gpt_oss(meta: Meta) -> dict[str, Any]:
    rope = scaling(meta, None)
    return {
        "experts": _experts(meta, biases=True, clamp=7.0),
        "sinks": True,
        "qkv_bias": True,
        "o_bias": True,
        "tie_embeddings": False,
        "sliding_window": meta["attention.sliding_window"],
        "local_layers": tuple(i % 2 == 0 for i in range(meta["block_count"])),
        # files do not say that the bounds of its ramp are not rounded
        "rope_scaling": rope and dataclasses.replace(rope, truncate=False),
    }


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


def _nemotron(meta: Meta) -> dict[str, Any]:
    """Layers without keys and without an MLP are mixers."""
    if (groups := meta.get("expert_group_count", 1)) > 1:
        raise ValueError(f"expert_group_count={groups}: experts in groups are not read; at most 1")
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


def _llama4(meta: Meta) -> dict[str, Any]:
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


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", biases=tuple(BIASES), permuted=True),
    "smollm3": Architecture(
        "smollm3",
        lambda meta: {"rope_layers": _every_fourth_without_positions(meta)},
        permuted=True,
    ),
    "qwen2": Architecture("qwen2", biases=("qkv_bias",)),
    "qwen3": Architecture("qwen3", lambda meta: {"qk_norm": "head"}),
    "qwen3moe": Architecture("qwen3_moe", _qwen3_moe),
    "gemma2": Architecture("gemma2", _gemma2),
    "gemma3": Architecture("gemma3_text", _gemma3),
    "olmo2": Architecture(
        "olmo2", lambda meta: {"pre_norm": False, "post_norm": True, "qk_norm": "flat"}
    ),
    "gpt-oss": Architecture("gpt_oss", _gpt_oss, names=_SECOND_NORM),
    "seed_oss": Architecture("seed_oss", biases=("qkv_bias",), names=_SECOND_NORM),
    "ernie4_5": Architecture("ernie4_5", lambda meta: {"rope_interleaved": True}),
    "minimax-m2": Architecture(
        "minimax_m2", _minimax, lambda config: {"expert_gating_func": _SIGMOID}
    ),
    "granite": Architecture(
        "granite", _granite, _describe_granite, biases=tuple(BIASES), permuted=True
    ),
    "granitemoe": Architecture(
        "granitemoe",
        lambda meta: {**_granite(meta), "experts": _experts(meta)},
        _describe_granite,
        permuted=True,
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid", _granite_hybrid, _describe_granite_hybrid, permuted=True, names=MAMBA
    ),
    **{
        name: Architecture("nemotron_h", _nemotron, _describe_nemotron, names=_PARTS, routed=routed)
        for name, routed in (("nemotron_h", False), ("nemotron_h_moe", True))
    },
    "lfm2": Architecture(
        "lfm2",
        _lfm2,
        _describe_lfm2,
        names=CONVOLUTION,
        outside={"norm/weight": "token_embd_norm.weight"},
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        _lfm2_moe,
        lambda config: {
            **_describe_lfm2(config),
            "leading_dense_block_count": config.dense_layers,
            "expert_gating_func": _SIGMOID,
        },
        names=CONVOLUTION,
        outside={"norm/weight": "token_embd_norm.weight"},
    ),
    "llama4": Architecture("llama4_text", _llama4, _describe_llama4),
}
"""By `general.architecture`."""
