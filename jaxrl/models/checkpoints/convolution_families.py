"""Families whose layers are of two kinds, attention and short convolution; see `families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.models.checkpoints import families
from jaxrl.models.checkpoints.families import Family, Raw
from jaxrl.models.config import DecoderConfig, Experts

_KINDS = ("full_attention", "conv")

_NAMES = {
    "attention_norm/weight": "operator_norm.weight",
    "attention/o": "self_attn.out_proj.weight",
    "attention/q_norm/weight": "self_attn.q_layernorm.weight",
    "attention/k_norm/weight": "self_attn.k_layernorm.weight",
    "mixer_norm/weight": "operator_norm.weight",
    "mixer/bcx": "conv.in_proj.weight",
    "mixer/conv": "conv.conv.weight",
    "mixer/output": "conv.out_proj.weight",
    "mlp_norm/weight": "ffn_norm.weight",
    "mlp/gate": "feed_forward.w1.weight",
    "mlp/up": "feed_forward.w3.weight",
    "mlp/down": "feed_forward.w2.weight",
}

_ROUTED = {
    "mlp/router": "feed_forward.gate.weight",
    "mlp/correction": "feed_forward.expert_bias",
    "mlp/gate": "feed_forward.experts.{expert}.w1.weight",
    "mlp/up": "feed_forward.experts.{expert}.w3.weight",
    "mlp/down": "feed_forward.experts.{expert}.w2.weight",
}

_OUTSIDE = {"norm/weight": "model.embedding_norm.weight"}

_REFUSED = {"conv_bias": False, "hidden_act": "silu"}

_TIE = {"tie_embedding": "tie_word_embeddings"}

_DEFAULTS = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
}


def _read(raw: Raw) -> dict[str, Any]:
    """The fields of the two kinds of layers.

    Raises:
      ValueError: a kind that the family does not have.
    """
    total, types = raw["num_hidden_layers"], raw["layer_types"]
    families.require_kinds(types, total, _KINDS)
    convolves = tuple(kind == _KINDS[1] for kind in types)
    return {
        "norm_eps": raw["norm_eps"],
        "recurrent_layers": convolves if any(convolves) else (),
        "convolution": raw["conv_L_cache"],
    }


def _read_dense(raw: Raw) -> dict[str, Any]:
    numbers = range(raw["num_hidden_layers"])
    attention = raw.get("full_attn_idxs", numbers)
    types = [_KINDS[number not in attention] for number in numbers]
    size = {"intermediate_size": _mlp_size(raw)}
    return {**_read({"layer_types": types, **raw}), **size}


def _read_moe(raw: Raw) -> dict[str, Any]:
    experts = Experts(
        num_experts=raw["num_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        dense_layers=raw["num_dense_layers"],
        scoring="sigmoid",
        correction_bias=raw["use_expert_bias"],
        normalize=raw["norm_topk_prob"],
        floor=1e-6,
        scale=raw["routed_scaling_factor"],
    )
    return {**_read(raw), "experts": experts}


def _mlp_size(raw: Raw) -> int:
    """Intermediate size of an MLP, which config.json tells before it is adjusted.

    Raises:
      ValueError: a factor or a multiple that no size comes of.
    """
    size = raw["intermediate_size"]
    if not raw["block_auto_adjust_ff_dim"]:
        return size
    factor, multiple = raw["block_ffn_dim_multiplier"], raw["block_multiple_of"]
    if not 0 < factor < size or not multiple > 0:
        raise ValueError(
            f"block_ffn_dim_multiplier={factor}, block_multiple_of={multiple}: must be above 0, "
            f"and the first below intermediate_size={size}"
        )
    return -(-int(factor * int(2 * size / 3)) // multiple) * multiple


def _write(c: DecoderConfig) -> dict[str, Any]:
    kinds = c.recurrent_layers or (False,) * c.num_layers
    return {
        "norm_eps": c.norm_eps,
        "layer_types": [_KINDS[convolves] for convolves in kinds],
        "conv_L_cache": c.convolution,
        "conv_bias": False,
    }


def _write_dense(c: DecoderConfig) -> dict[str, Any]:
    size = {"block_ff_dim": c.intermediate_size, "block_auto_adjust_ff_dim": False}
    widths = {"block_dim": c.hidden_size, "conv_dim": c.hidden_size}  # which other engines read
    return {**_write(c), **size, **widths}


def _write_moe(c: DecoderConfig) -> dict[str, Any]:
    e = c.experts
    return {
        **_write(c),
        "num_experts": e.num_experts,
        "num_experts_per_tok": e.per_token,
        "moe_intermediate_size": e.size,
        "num_dense_layers": e.dense_layers,
        "use_expert_bias": e.correction_bias,
        "norm_topk_prob": e.normalize,
        "routed_scaling_factor": e.scale,
    }


CONVOLUTION: Mapping[str, Family] = {
    "lfm2": Family(
        "Lfm2ForCausalLM",
        fixed={"qk_norm": "head"},
        defaults={
            **_DEFAULTS,
            "intermediate_size": 12288,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
        },
        refused=_REFUSED,
        window="none",
        read=_read_dense,
        write=_write_dense,
        aliases={"block_ff_dim": "intermediate_size", **_TIE},
        outside=_OUTSIDE,
        names=_NAMES,
    ),
    "lfm2_moe": Family(
        "Lfm2MoeForCausalLM",
        fixed={"qk_norm": "head"},
        defaults={
            **_DEFAULTS,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "num_dense_layers": 2,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
        },
        refused=_REFUSED,
        window="none",
        read=_read_moe,
        write=_write_moe,
        aliases=_TIE,
        outside=_OUTSIDE,
        names=_NAMES,
        routed=_ROUTED,
    ),
}
"""By the `model_type` of config.json. Both kinds of layers call their first norm alike."""
