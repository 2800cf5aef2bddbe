"""Families whose layers are of two kinds, gated attention and gated delta rule; see `families`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

from jaxrl.models.checkpoints import families
from jaxrl.models.checkpoints.families import Family, Raw, expert_stack
from jaxrl.models.config import DecoderConfig, DeltaRule, Experts

_KINDS = ("full_attention", "linear_attention")

_MIXER = {
    "mixer_norm/weight": "input_layernorm.weight",
    "mixer/conv": "linear_attn.conv1d.weight",
    "mixer/a_log": "linear_attn.A_log",
    "mixer/dt_bias": "linear_attn.dt_bias",
    "mixer/norm/weight": "linear_attn.norm.weight",
    "mixer/out": "linear_attn.out_proj.weight",
}

_FUSED = {
    **_MIXER,
    "mixer/qkvz": "linear_attn.in_proj_qkvz.weight",
    "mixer/ba": "linear_attn.in_proj_ba.weight",
}

_APART = {
    **_MIXER,
    "mixer/qkv": "linear_attn.in_proj_qkv.weight",
    "mixer/z": "linear_attn.in_proj_z.weight",
    "mixer/b": "linear_attn.in_proj_b.weight",
    "mixer/a": "linear_attn.in_proj_a.weight",
}

_OLMO = {
    **families.POST_NORMS,
    "attention_post_norm/weight": "feedforward_layer_norm.weight",
    "mixer_norm/weight": "attention_layer_norm.weight",
    "mlp_norm/weight": "feedforward_layer_norm.weight",
    "mixer/q": "linear_attn.q_proj.weight",
    "mixer/k": "linear_attn.k_proj.weight",
    "mixer/v": "linear_attn.v_proj.weight",
    "mixer/z": "linear_attn.g_proj.weight",
    "mixer/b": "linear_attn.b_proj.weight",
    "mixer/a": "linear_attn.a_proj.weight",
    "mixer/conv": "linear_attn.conv1d.weight",
    "mixer/a_log": "linear_attn.A_log",
    "mixer/dt_bias": "linear_attn.dt_bias",
    "mixer/norm/weight": "linear_attn.o_norm.weight",
    "mixer/out": "linear_attn.o_proj.weight",
}
"""Layers of attention have norms after their parts, the others before."""

_SHARED = {
    "mlp/shared/gate": "mlp.shared_expert.gate_proj.weight",
    "mlp/shared/up": "mlp.shared_expert.up_proj.weight",
    "mlp/shared/down": "mlp.shared_expert.down_proj.weight",
    "mlp/shared_gate": "mlp.shared_expert_gate.weight",
}

_STACKS = (
    expert_stack("mlp.experts.gate_up_proj", ("gate_proj", "up_proj")),
    expert_stack("mlp.experts.down_proj", ("down_proj",)),
)
"""How experts lie in released files; transformers also writes them apart, and both are read."""

_DEFAULTS = {
    "partial_rotary_factor": 0.25,
    "head_dim": 256,
    "attention_bias": False,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}

_EXPERTS = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}

_UNUSED_SIZE = {"intermediate_size": 5632}
"""Of dense layers, which these have none of."""

_PREDICTORS = r"^mtp\."
"""Tensors that predict further tokens for speculation."""


def _read(raw: Raw, projections: Literal["by_head", "joined", "apart"]) -> dict[str, Any]:
    """The fields of the two kinds of layers.

    Raises:
      ValueError: a kind that the family does not have, no layer of one, or an activation that is
        not of the delta rule.
    """
    total, interval = raw["num_hidden_layers"], raw["full_attention_interval"]
    types = raw.get("layer_types") or [_KINDS[(i + 1) % interval > 0] for i in range(total)]
    families.require_kinds(types, total, _KINDS)
    if {*types} != {*_KINDS}:
        raise ValueError(f"layer_types={types}: supported with layers of both kinds alone")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act={raw['hidden_act']!r}: this family is supported with 'silu'")
    return {
        "qkv_bias": raw["attention_bias"],
        "o_bias": raw["attention_bias"],
        "recurrent_layers": tuple(kind == _KINDS[1] for kind in types),
        "delta": DeltaRule(
            key_heads=raw["linear_num_key_heads"],
            value_heads=raw["linear_num_value_heads"],
            key_dim=raw["linear_key_head_dim"],
            value_dim=raw["linear_value_head_dim"],
            taps=raw["linear_conv_kernel_dim"],
            projections=projections,
        ),
    }


def _read_experts(raw: Raw, *, normalize: bool) -> Experts:
    return Experts(
        num_experts=raw["num_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        shared_size=raw["shared_expert_intermediate_size"],
        shared_gate=True,
        normalize=normalize,
    )


def _read_next(raw: Raw) -> dict[str, Any]:
    if raw["decoder_sparse_step"] != 1 or raw.get("mlp_only_layers"):
        raise ValueError(
            f"decoder_sparse_step={raw['decoder_sparse_step']}, mlp_only_layers="
            f"{raw.get('mlp_only_layers')}: this family is supported with experts in all layers"
        )
    experts = _read_experts(raw, normalize=raw["norm_topk_prob"])
    return {**_read(raw, "by_head"), "experts": experts}


def _read_dense(raw: Raw) -> dict[str, Any]:
    return _read(raw, "joined")


def _read_moe(raw: Raw) -> dict[str, Any]:
    return {**_read(raw, "joined"), "experts": _read_experts(raw, normalize=True)}


def _read_olmo(raw: Raw) -> dict[str, Any]:
    """As of OLMo hybrid: sizes that are not named follow from those of attention."""
    heads = raw["num_attention_heads"]
    key_heads = raw.get("linear_num_key_heads") or heads
    key_dim = raw.get("linear_key_head_dim") or int(0.75 * raw["hidden_size"] / key_heads)
    sizes = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": raw.get("linear_num_value_heads") or heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": raw.get("linear_value_head_dim") or 2 * key_dim,
    }
    total = raw["num_hidden_layers"]
    if not raw.get("layer_types") and total < raw["full_attention_interval"]:
        sizes["layer_types"] = [*[_KINDS[1]] * (total - 1), _KINDS[0]]
    fields = _read({**raw, **sizes}, "apart")
    delta = dataclasses.replace(
        fields["delta"],
        stride=2.0 if raw["linear_allow_neg_eigval"] else 1.0,
        norm_eps=1e-5,
    )
    return {**fields, "delta": delta}


def _write_olmo(c: DecoderConfig) -> dict[str, Any]:
    return {**_write(c), "linear_allow_neg_eigval": c.delta.stride == 2}


def _write(c: DecoderConfig) -> dict[str, Any]:
    d = c.delta
    return {
        "attention_bias": c.o_bias,
        "layer_types": [_KINDS[recurrent] for recurrent in c.recurrent_layers],
        "linear_num_key_heads": d.key_heads,
        "linear_num_value_heads": d.value_heads,
        "linear_key_head_dim": d.key_dim,
        "linear_value_head_dim": d.value_dim,
        "linear_conv_kernel_dim": d.taps,
    }


def _write_moe(c: DecoderConfig) -> dict[str, Any]:
    e = c.experts
    return {
        **_write(c),
        "num_experts": e.num_experts,
        "num_experts_per_tok": e.per_token,
        "moe_intermediate_size": e.size,
        "shared_expert_intermediate_size": e.shared_size,
    }


def _write_next(c: DecoderConfig) -> dict[str, Any]:
    raw = {"norm_topk_prob": c.experts.normalize, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return {**_write_moe(c), **raw}


_hybrid = functools.partial(
    Family,
    fixed={"norm_offset": 1.0, "qk_norm": "head", "attention_gate": True},
    refused={"attn_output_gate": True, "output_gate_type": "swish"},
    partial_rope=True,
    window="none",
    ignored=(r"rotary_emb\.inv_freq$", _PREDICTORS),
)
"""A family of this kind, by what is its own."""

HYBRID: Mapping[str, Family] = {
    "qwen3_next": _hybrid(
        "Qwen3NextForCausalLM",
        defaults={
            **_DEFAULTS,
            **_EXPERTS,
            **_UNUSED_SIZE,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
        },
        read=_read_next,
        write=_write_next,
        names=_FUSED,
        routed=_SHARED,
    ),
    "olmo_hybrid": Family(
        "OlmoHybridForCausalLM",
        fixed={"pre_norm": False, "post_norm": True, "qk_norm": "flat"},
        defaults={
            "attention_bias": False,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": True,
            "max_position_embeddings": 65536,
        },
        rope_optional=True,
        window="none",
        read=_read_olmo,
        write=_write_olmo,
        names=_OLMO,
        spellings={
            "input_layernorm.weight": "attention_layer_norm.weight",
            "post_attention_layernorm.weight": "feedforward_layer_norm.weight",
        },
        joined={
            "linear_attn.conv1d.weight": tuple(
                f"linear_attn.{part}_conv1d.weight" for part in "qkv"
            )
        },
    ),
    "qwen3_5_text": _hybrid(
        "Qwen3_5ForCausalLM",
        defaults={**_DEFAULTS, "num_key_value_heads": 4},
        read=_read_dense,
        write=_write,
        names=_APART,
    ),
    "qwen3_5_moe_text": _hybrid(
        "Qwen3_5MoeForCausalLM",
        defaults={
            **_DEFAULTS,
            **_EXPERTS,
            **_UNUSED_SIZE,
            "num_key_value_heads": 2,
            "num_experts": 256,
            "num_experts_per_tok": 8,
        },
        read=_read_moe,
        write=_write_moe,
        names=_APART,
        routed=_SHARED,
        stacks=_STACKS,
    ),
}
"""By the `model_type` of config.json. Both kinds of layers call their first norm alike."""
