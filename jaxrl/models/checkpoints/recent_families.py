"""Families of 2024 to 2026 whose mechanisms the decoder has; see `families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.models.checkpoints import families
from jaxrl.models.checkpoints.families import EXPERT, Family, Raw, expert_stack
from jaxrl.models.config import DecoderConfig, Experts

_BLOCK = "block_sparse_moe"

_MIXTRAL = {
    "mlp/router": f"{_BLOCK}.gate.weight",
    "mlp/correction": f"{_BLOCK}.e_score_correction_bias",
    "mlp/gate": f"{_BLOCK}.experts.{{expert}}.w1.weight",
    "mlp/up": f"{_BLOCK}.experts.{{expert}}.w3.weight",
    "mlp/down": f"{_BLOCK}.experts.{{expert}}.w2.weight",
}


def _read_mixtral(raw: Raw) -> dict[str, Any]:
    size = raw["intermediate_size"]
    return {"experts": Experts(raw["num_local_experts"], raw["num_experts_per_tok"], size)}


def _read_minimax(raw: Raw) -> dict[str, Any]:
    experts = Experts(
        raw["num_local_experts"],
        raw["num_experts_per_tok"],
        raw["intermediate_size"],
        scoring="sigmoid",
        correction_bias=True,
    )
    if (rotated := raw.get("rotary_dim")) is None:
        return {"experts": experts}
    fraction = (raw.get("rope_parameters") or {}).get("partial_rotary_factor")
    if fraction is None:
        fraction = raw.get("partial_rotary_factor", rotated / raw["head_dim"])
    return {"experts": experts, "rope_fraction": fraction}


def _write_local_experts(c: DecoderConfig) -> dict[str, Any]:
    return {"num_local_experts": c.experts.num_experts, "num_experts_per_tok": c.experts.per_token}


def _write_minimax(c: DecoderConfig) -> dict[str, Any]:
    raw = {"rotary_dim": c.rope_dim, "use_qk_norm": True, "qk_norm_type": "per_layer"}
    return {**_write_local_experts(c), **raw, "scoring_func": "sigmoid", "use_routing_bias": True}


_MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""What transformers takes where config.json says nothing."""


def _read_seed(raw: Raw) -> dict[str, Any]:
    return {
        "qkv_bias": raw["attention_bias"],
        "o_bias": raw["attention_out_bias"],
        "mlp_bias": raw["mlp_bias"],
    }


def _write_seed(c: DecoderConfig) -> dict[str, Any]:
    return {
        "attention_bias": c.qkv_bias,
        "attention_out_bias": c.o_bias,
        "mlp_bias": c.mlp_bias,
    }


def _read_ernie(raw: Raw) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), raw["use_bias"])


def _write_ernie(c: DecoderConfig) -> dict[str, Any]:
    return {"use_bias": c.o_bias}


_GRANITE = {
    "embedding_multiplier": "embed_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention_scale",
    "logits_scaling": "logit_divisor",
}
"""Factors of Granite, and the fields of `DecoderConfig` that they are; each is 1 by default."""


_GPT_OSS_STACKS = (
    expert_stack(
        "mlp.experts.gate_up_proj",
        ("gate_proj", "up_proj"),
        inputs_first=True,
        interleaved=True,
    ),
    expert_stack(
        "mlp.experts.gate_up_proj_bias", ("gate_proj", "up_proj"), suffix="bias", interleaved=True
    ),
    expert_stack("mlp.experts.down_proj", ("down_proj",), inputs_first=True),
    expert_stack("mlp.experts.down_proj_bias", ("down_proj",), suffix="bias"),
)
_GPT_OSS = {
    "mlp/router": "mlp.router.weight",
    "mlp/router_bias": "mlp.router.bias",
    "mlp/gate_bias": f"{EXPERT}.gate_proj.bias",
    "mlp/up_bias": f"{EXPERT}.up_proj.bias",
    "mlp/down_bias": f"{EXPERT}.down_proj.bias",
}
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""What transformers takes where config.json says nothing."""


def _read_gpt_oss(raw: Raw) -> dict[str, Any]:
    experts = Experts(
        raw["num_local_experts"],
        raw["num_experts_per_tok"],
        raw["intermediate_size"],
        biases=True,
        clamp=float(raw["swiglu_limit"]),
        sharpness=float(raw["swiglu_alpha"]),
    )
    bias = raw["attention_bias"]
    return {"experts": experts, "qkv_bias": bias, "o_bias": bias}


def _write_gpt_oss(c: DecoderConfig) -> dict[str, Any]:
    clamp = {"swiglu_limit": c.experts.clamp, "swiglu_alpha": c.experts.sharpness}
    return {**_write_local_experts(c), **clamp, "attention_bias": c.o_bias}


def read_granite(raw: Raw) -> dict[str, Any]:
    """The fields of factors and biases of Granite."""
    factors = {ours: float(raw.get(theirs, 1.0)) for theirs, ours in _GRANITE.items()}
    return {**families.read_biases(raw), **factors}


def write_granite(c: DecoderConfig) -> dict[str, Any]:
    """The keys of factors and biases of Granite."""
    factors = {theirs: getattr(c, ours) for theirs, ours in _GRANITE.items()}
    return {**families.write_biases(c), **factors}


def _read_granitemoe(raw: Raw) -> dict[str, Any]:
    return {**read_granite(raw), **_read_mixtral(raw)}


def _write_granitemoe(c: DecoderConfig) -> dict[str, Any]:
    return {**write_granite(c), **_write_local_experts(c)}


RECENT: Mapping[str, Family] = {
    "gpt_oss": Family(
        "GptOssForCausalLM",
        fixed={"sinks": True},
        defaults={
            "rms_norm_eps": 1e-5,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_theta": 1.5e5,
            "rope_parameters": _GPT_OSS_ROPE,
            "sliding_window": 128,
            "attention_bias": True,
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.702,
        },
        local=lambda raw, layer: layer % 2 == 0,
        read=_read_gpt_oss,
        write=_write_gpt_oss,
        names={"attention/sinks": "self_attn.sinks"},
        routed=_GPT_OSS,
        stacks=_GPT_OSS_STACKS,
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        window="none",
        read=_read_granitemoe,
        write=_write_granitemoe,
        routed={"mlp/router": f"{_BLOCK}.router.layer.weight"},
        stacks=(
            expert_stack(f"{_BLOCK}.input_linear.weight", ("gate_proj", "up_proj")),
            expert_stack(f"{_BLOCK}.output_linear.weight", ("down_proj",)),
        ),
    ),
    "granite": Family("GraniteForCausalLM", window="none", read=read_granite, write=write_granite),
    "mixtral": Family(
        "MixtralForCausalLM",
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6},
        window="all",
        read=_read_mixtral,
        write=_write_local_experts,
        routed=_MIXTRAL,
    ),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        fixed={"qk_norm": "flat"},
        defaults={"rope_theta": 5e6, "head_dim": 128},
        partial_rope=True,
        window="none",
        read=_read_minimax,
        write=_write_minimax,
        routed=_MIXTRAL,
        ignored=(r"rotary_emb\.inv_freq$", families.NEXT_LAYER),
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        fixed={"pre_norm": False, "post_norm": True, "qk_norm": "flat"},
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "rope_local_base_freq": 5e5,
            "sliding_window": 4096,
        },
        rope_by_kind=True,
        local=lambda raw, layer: bool((layer + 1) % 4),
        read=families.read_biases,
        write=families.write_biases,
        names=families.POST_NORMS,
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "rope_parameters": _MINISTRAL3_ROPE},
        rope_kinds=("yarn",),
        rope_keys=("llama_4_scaling_beta",),
        window="all",
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        defaults={
            "head_dim": 128,
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
        },
        window="none",
        read=_read_seed,
        write=_write_seed,
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        fixed={"rope_interleaved": True},
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "head_dim": 128,
            "tie_word_embeddings": True,
            "use_bias": False,
        },
        window="none",
        read=_read_ernie,
        write=_write_ernie,
    ),
}
"""By the `model_type` of config.json."""
