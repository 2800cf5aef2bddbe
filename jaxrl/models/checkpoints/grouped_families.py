"""Families in the manner of DeepSeek: experts in groups, some with latent attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.models.checkpoints import families
from jaxrl.models.checkpoints.families import NEXT_LAYER, Family, Raw
from jaxrl.models.config import DecoderConfig, DeltaRule, Experts, Latent

_LATENT = {
    "attention/q_down": "self_attn.q_a_proj.weight",
    "attention/q_norm/weight": "self_attn.q_a_layernorm.weight",
    "attention/q_up": "self_attn.q_b_proj.weight",
    "attention/kv_down": "self_attn.kv_a_proj_with_mqa.weight",
    "attention/kv_norm/weight": "self_attn.kv_a_layernorm.weight",
    "attention/kv_up": "self_attn.kv_b_proj.weight",
}

_IGNORED = (r"rotary_emb\.inv_freq$", NEXT_LAYER)


def _read_latent(raw: Raw) -> dict[str, Any]:
    """The fields of latent attention.

    Raises:
      ValueError: biases.
    """
    if raw.get("attention_bias"):
        raise ValueError("attention_bias=True: latent attention is supported without biases")
    latent = Latent(
        kv_rank=raw["kv_lora_rank"],
        q_rank=raw.get("q_lora_rank"),
        nope_dim=raw["qk_nope_head_dim"],
        rope_dim=raw["qk_rope_head_dim"],
        v_dim=raw["v_head_dim"],
    )
    return {
        "latent": latent,
        "head_dim": latent.nope_dim + latent.rope_dim,
        "rope_interleaved": raw.get("rope_interleave", True),
    }


def _write_latent(c: DecoderConfig) -> dict[str, Any]:
    """The keys of latent attention."""
    m = c.latent
    return {
        "kv_lora_rank": m.kv_rank,
        "q_lora_rank": m.q_rank,
        "qk_nope_head_dim": m.nope_dim,
        "qk_rope_head_dim": m.rope_dim,
        "v_head_dim": m.v_dim,
        "head_dim": m.rope_dim,
    }


def _read_grouped_experts(raw: Raw, *, dense_layers: int, grouped: bool = True) -> Experts:
    """Experts in groups, scored by a softmax, with shared ones; as of DeepSeek-V2."""
    return Experts(
        num_experts=raw["n_routed_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        shared_size=raw["moe_intermediate_size"] * raw["n_shared_experts"],
        dense_layers=dense_layers,
        normalize=False,
        scale=raw["routed_scaling_factor"],
        groups=raw["n_group"] if grouped else 1,
        groups_per_token=raw["topk_group"] if grouped else 1,
    )


def _read_corrected_experts(raw: Raw, *, dense_layers: int) -> Experts:
    """The same, scored by a sigmoid, with a correction bias; as of DeepSeek-V3."""
    return dataclasses.replace(
        _read_grouped_experts(raw, dense_layers=dense_layers),
        scoring="sigmoid",
        correction_bias=True,
        normalize=raw["norm_topk_prob"],
        group_top=2,
    )


def _write_grouped_experts(c: DecoderConfig) -> dict[str, Any]:
    """The keys of experts in groups."""
    e = c.experts
    return {
        "n_routed_experts": e.num_experts,
        "num_experts_per_tok": e.per_token,
        "moe_intermediate_size": e.size,
        "n_shared_experts": e.shared_size // e.size,
        "first_k_dense_replace": e.dense_layers,
        "routed_scaling_factor": e.scale,
        "n_group": e.groups,
        "topk_group": e.groups_per_token,
        "scoring_func": e.scoring,
        "norm_topk_prob": e.normalize,
    }


def _deepseek_v2(raw: Raw) -> dict[str, Any]:
    grouped = raw["topk_method"] == "group_limited_greedy"
    dense = raw["first_k_dense_replace"]
    # transformers ignores norm_topk_prob
    experts = _read_grouped_experts(raw, dense_layers=dense, grouped=grouped)
    return {**_read_latent(raw), "experts": experts}


def _deepseek_v3(raw: Raw) -> dict[str, Any]:
    experts = _read_corrected_experts(raw, dense_layers=raw["first_k_dense_replace"])
    return {**_read_latent(raw), "experts": experts}


def _write_deepseek_v2(c: DecoderConfig) -> dict[str, Any]:
    method = "greedy" if c.experts.groups == 1 else "group_limited_greedy"
    return {**_write_latent(c), **_write_grouped_experts(c), "topk_method": method}


def _write_deepseek_v3(c: DecoderConfig) -> dict[str, Any]:
    raw = {"topk_method": "noaux_tc", "rope_interleave": c.rope_interleaved}
    return {**_write_latent(c), **_write_grouped_experts(c), **raw}


def _read_indexed(raw: Raw) -> dict[str, Any]:
    """As of DeepSeek-V3.2: an indexer chooses the `index_topk` keys that a query sees.

    Within so many positions it chooses all of them, and attention is dense. Longer texts are beyond
    `max_positions`, which is refused where they enter.
    """
    dense = raw["first_k_dense_replace"]
    if kinds := raw.get("mlp_layer_types"):
        dense = _dense_at_the_bottom(kinds)
    return {
        **_read_latent({**raw, "rope_interleave": True}),
        "experts": _read_corrected_experts(raw, dense_layers=min(dense, raw["num_hidden_layers"])),
        "max_positions": min(raw["max_position_embeddings"], raw["index_topk"]),
    }


def _dense_at_the_bottom(kinds: Sequence[str]) -> int:
    """How many layers have no experts, by `mlp_layer_types`.

    Raises:
      ValueError: one of them lies above a layer with experts.
    """
    dense = list(kinds).count("dense")
    if "dense" in kinds[dense:]:
        raise ValueError(f"mlp_layer_types={kinds}: dense layers are supported at the bottom only")
    return dense


def _write_indexed(c: DecoderConfig) -> dict[str, Any]:
    dense = c.dense_layers
    return {
        **_write_latent(c),
        **_write_grouped_experts(c),
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (c.num_layers - dense),
        "index_topk": c.max_positions,
    }


def _read_glm4(raw: Raw) -> dict[str, Any]:
    dense = raw["first_k_dense_replace"]
    return {
        "qkv_bias": raw.get("attention_bias", False),
        "qk_norm": "head" if raw["use_qk_norm"] else "none",
        "experts": _read_corrected_experts(raw, dense_layers=dense),
    }


def _write_glm4(c: DecoderConfig) -> dict[str, Any]:
    raw = {"attention_bias": c.qkv_bias, "use_qk_norm": c.qk_norm == "head"}
    return {**_write_grouped_experts(c), **raw}


def _read_glm4_lite(raw: Raw) -> dict[str, Any]:
    dense = _dense_at_the_bottom(raw.get("mlp_layer_types") or ["dense"])
    experts = _read_corrected_experts(raw, dense_layers=dense)
    return {**_read_latent(raw), "experts": experts}


def _write_glm4_lite(c: DecoderConfig) -> dict[str, Any]:
    dense = c.dense_layers
    return {
        **_write_latent(c),
        **_write_grouped_experts(c),
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (c.num_layers - dense),
        "rope_interleave": c.rope_interleaved,
    }


_KINDS = ("full_attention", "linear_attention")

_DELTA = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Keys of Kimi Linear's `linear_attn_config`, and what transformers calls them."""


def _kimi_types(raw: Raw, numbers: Raw) -> list[str]:
    """The kind of each layer, as config.json lists them in one of two ways, or by default."""
    total = raw["num_hidden_layers"]
    if types := raw.get("layer_types"):
        return list(types)
    if not {"full_attn_layers", "kda_layers"} <= numbers.keys():
        return [_KINDS[i == 0 or i % 4 > 0] for i in range(total)]
    full, linear = ({*numbers[key]} for key in ("full_attn_layers", "kda_layers"))
    if full | linear != {*range(1, total + 1)} or full & linear:
        raise ValueError(
            f"linear_attn_config={dict(numbers)!r:.200}: full_attn_layers and kda_layers must name "
            f"each layer from 1 to {total} once"
        )
    return [_KINDS[i + 1 in linear] for i in range(total)]


def _read_kimi(raw: Raw) -> dict[str, Any]:
    """The fields of Kimi Linear: latent attention without positions among delta rules.

    Raises:
      ValueError: layers of another kind, biases, or fewer heads of keys.
    """
    numbers, total = raw.get("linear_attn_config") or {}, raw["num_hidden_layers"]
    if raw["num_key_value_heads"] != raw["num_attention_heads"]:
        raise ValueError(
            f"num_key_value_heads={raw['num_key_value_heads']}: heads of latent attention share "
            f"keys; set it to num_attention_heads={raw['num_attention_heads']}"
        )
    types = _kimi_types(raw, numbers)
    families.require_kinds(types, total, _KINDS)
    recurrent = tuple(kind == _KINDS[1] for kind in types)
    size, heads, taps = (numbers.get(short, raw[key]) for short, key in _DELTA.items())
    dense = raw["first_k_dense_replace"]
    if kinds := raw.get("mlp_layer_types"):
        dense = _dense_at_the_bottom(kinds)
    return {
        **_read_latent(raw),
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_layers": (False,) * total,
        "recurrent_layers": recurrent if any(recurrent) else (),
        "delta": DeltaRule(heads, heads, size, size, taps, "apart", by_channel=True),
        "experts": _read_corrected_experts(raw, dense_layers=min(dense, total)),
    }


def _write_kimi(c: DecoderConfig) -> dict[str, Any]:
    d, e, dense = c.delta, c.experts, c.dense_layers
    kinds = c.recurrent_layers or (False,) * c.num_layers
    return {
        **_write_latent(c),
        "model_max_length": c.max_positions,
        "layer_types": [_KINDS[recurrent] for recurrent in kinds],
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (c.num_layers - dense),
        "linear_attn_config": {
            "head_dim": d.value_dim,
            "num_heads": d.value_heads,
            "short_conv_kernel_size": d.taps,
            "full_attn_layers": [i + 1 for i, recurrent in enumerate(kinds) if not recurrent],
            "kda_layers": [i + 1 for i, recurrent in enumerate(kinds) if recurrent],
        },
        "first_k_dense_replace": dense,
        "num_experts": e.num_experts,
        "num_experts_per_token": e.per_token,
        "num_shared_experts": e.shared_size // e.size,
        "moe_intermediate_size": e.size,
        "moe_renormalize": e.normalize,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": e.scale,
        "num_expert_group": e.groups,
        "topk_group": e.groups_per_token,
        "mla_use_nope": True,
    }


_MOE, _MLP = "block_sparse_moe", ("gate", "up", "down")

_KIMI = {
    **_LATENT,
    "mixer_norm/weight": "input_layernorm.weight",
    **{f"mixer/{name}": f"self_attn.{name}_proj.weight" for name in "qkvb"},
    **{f"mixer/{name}_conv": f"self_attn.{name}_conv1d.weight" for name in "qkv"},
    "mixer/decay_down": "self_attn.f_a_proj.weight",
    "mixer/decay_up": "self_attn.f_b_proj.weight",
    "mixer/z_down": "self_attn.g_a_proj.weight",
    "mixer/z_up": "self_attn.g_b_proj.weight",
    "mixer/a_log": "self_attn.A_log",
    "mixer/dt_bias": "self_attn.dt_bias",
    "mixer/norm/weight": "self_attn.o_norm.weight",
    "mixer/out": "self_attn.o_proj.weight",
}

_DEFAULTS = {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "rms_norm_eps": 1e-5}

_INDEXED = {
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "first_k_dense_replace": 3,
    "index_topk": 2048,
}

_indexed = functools.partial(
    Family,
    refused={"moe_layer_freq": 1},
    window="none",
    read=_read_indexed,
    write=_write_indexed,
    names=_LATENT,
    ignored=_IGNORED,
    carried=r"\.self_attn\.indexer\.",
    carried_keys=(
        "index_topk",
        "index_head_dim",
        "index_n_heads",
        "index_topk_freq",
        "index_topk_pattern",
        "index_skip_topk_offset",
        "indexer_types",
        "max_position_embeddings",
    ),
)
"""A family whose indexer chooses keys, by what is its own."""

GROUPED: Mapping[str, Family] = {
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        fixed={"rope_interleaved": True},
        defaults={"topk_method": "greedy", "n_group": 1, "topk_group": 1},
        refused={"moe_layer_freq": 1},
        window="none",
        read=_deepseek_v2,
        write=_write_deepseek_v2,
        names=_LATENT,
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        refused={"moe_layer_freq": 1},
        window="none",
        read=_deepseek_v3,
        write=_write_deepseek_v3,
        names=_LATENT,
        ignored=_IGNORED,
    ),
    "deepseek_v32": _indexed("DeepseekV32ForCausalLM", defaults=_INDEXED),
    "glm_moe_dsa": _indexed("GlmMoeDsaForCausalLM", defaults={**_INDEXED, "rms_norm_eps": 1e-5}),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        defaults={
            **_DEFAULTS,
            "partial_rotary_factor": 0.5,
            "use_qk_norm": False,
            "first_k_dense_replace": 1,
        },
        partial_rope=True,
        window="none",
        read=_read_glm4,
        write=_write_glm4,
        ignored=_IGNORED,
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        defaults={
            **_DEFAULTS,
            "intermediate_size": 9216,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 1048576,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "linear_head_dim": 128,
            "linear_num_heads": 32,
            "linear_conv_kernel_dim": 4,
            "first_k_dense_replace": 1,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024,
            "routed_scaling_factor": 2.446,
        },
        refused={
            "hidden_act": "silu",
            "mla_use_nope": True,
            "moe_layer_freq": 1,
            "moe_router_activation_func": "sigmoid",
        },
        window="none",
        read=_read_kimi,
        write=_write_kimi,
        aliases={
            "model_max_length": "max_position_embeddings",
            "num_experts": "n_routed_experts",
            "num_local_experts": "n_routed_experts",
            "num_shared_experts": "n_shared_experts",
            "num_experts_per_token": "num_experts_per_tok",
            "moe_renormalize": "norm_topk_prob",
            "num_expert_group": "n_group",
        },
        names=_KIMI,
        unadapted=("/mixer/decay_down", "/mixer/decay_up"),  # modules of transformers' own names
        spellings={  # as transformers writes dense layers
            f"{_MOE}.{name}_proj.weight": f"mlp.{name}_proj.weight" for name in _MLP
        },
        routed={
            "mlp/router": f"{_MOE}.gate.weight",
            "mlp/correction": f"{_MOE}.gate.e_score_correction_bias",
            "mlp/gate": f"{_MOE}.experts.{{expert}}.w1.weight",
            "mlp/up": f"{_MOE}.experts.{{expert}}.w3.weight",
            "mlp/down": f"{_MOE}.experts.{{expert}}.w2.weight",
            **{f"mlp/shared/{name}": f"{_MOE}.shared_experts.{name}_proj.weight" for name in _MLP},
        },
        ignored=_IGNORED,
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteForCausalLM",
        defaults=_DEFAULTS,
        window="none",
        read=_read_glm4_lite,
        write=_write_glm4_lite,
        names=_LATENT,
        ignored=_IGNORED,
    ),
}
"""By the `model_type` of config.json."""
