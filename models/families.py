"""The families: how each names its fields and tensors in Hugging Face files.

A family is a record beside the one decoder. What it shares with Llama it leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.models.config import DecoderConfig, Experts, Latent

Raw = Mapping[str, Any]
"""The contents of a `config.json`."""


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Family:
    """What sets a family apart from Llama in its files."""

    architecture: str
    """Name of the class in transformers."""
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further keys of config.json, and the fields of `DecoderConfig` that they are."""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `DecoderConfig` that the family decides and config.json does not tell."""
    defaults: Raw = dataclasses.field(default_factory=dict)
    """What a key that config.json leaves out stands for."""
    activation_key: str = "hidden_act"
    local: Callable[[Raw, int], bool] = lambda raw, layer: False
    """Whether a layer has the sliding window, where config.json lists no `layer_types`."""
    read: Callable[[Raw], dict[str, Any]] = _nothing
    """The fields of `DecoderConfig` that take more than renaming."""
    write: Callable[[DecoderConfig], dict[str, Any]] = _nothing
    """The keys of config.json that take more than renaming."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors in a layer that differ from `LAYER`. Parameters that share a tensor lie in
    it one after the other, in the order given here."""
    routed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of tensors in a layer with experts that differ from `ROUTED`."""
    ignored: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)
    """Patterns of tensors that are not weights of the decoder; `{num_layers}` is filled in."""


OUTSIDE = {
    "embed": "model.embed_tokens.weight",
    "norm/weight": "model.norm.weight",
    "head": "lm_head.weight",
    "score": "score.weight",
}
"""Our parameters outside the layers, and their tensors."""

LAYER = {
    "attention_norm/weight": "input_layernorm.weight",
    "attention/q": "self_attn.q_proj.weight",
    "attention/q_bias": "self_attn.q_proj.bias",
    "attention/k": "self_attn.k_proj.weight",
    "attention/k_bias": "self_attn.k_proj.bias",
    "attention/v": "self_attn.v_proj.weight",
    "attention/v_bias": "self_attn.v_proj.bias",
    "attention/o": "self_attn.o_proj.weight",
    "attention/o_bias": "self_attn.o_proj.bias",
    "attention/q_norm/weight": "self_attn.q_norm.weight",
    "attention/k_norm/weight": "self_attn.k_norm.weight",
    "mlp_norm/weight": "post_attention_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/gate_bias": "mlp.gate_proj.bias",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/up_bias": "mlp.up_proj.bias",
    "mlp/down": "mlp.down_proj.weight",
    "mlp/down_bias": "mlp.down_proj.bias",
}
"""Our parameters in a layer, and their tensors under `model.layers.{layer}.`."""

ROUTED = {
    "mlp/router": "mlp.gate.weight",
    "mlp/correction": "mlp.gate.e_score_correction_bias",
    "mlp/gate": "mlp.experts.{expert}.gate_proj.weight",
    "mlp/up": "mlp.experts.{expert}.up_proj.weight",
    "mlp/down": "mlp.experts.{expert}.down_proj.weight",
    "mlp/shared/gate": "mlp.shared_experts.gate_proj.weight",
    "mlp/shared/up": "mlp.shared_experts.up_proj.weight",
    "mlp/shared/down": "mlp.shared_experts.down_proj.weight",
}
"""Those that a layer with experts has or names otherwise."""

_LATENT = {
    "attention/q_down": "self_attn.q_a_proj.weight",
    "attention/q_norm/weight": "self_attn.q_a_layernorm.weight",
    "attention/q_up": "self_attn.q_b_proj.weight",
    "attention/kv_down": "self_attn.kv_a_proj_with_mqa.weight",
    "attention/kv_norm/weight": "self_attn.kv_a_layernorm.weight",
    "attention/kv_up": "self_attn.kv_b_proj.weight",
}

_POST_NORMS = {
    "attention_post_norm/weight": "post_attention_layernorm.weight",
    "mlp_post_norm/weight": "post_feedforward_layernorm.weight",
}

_FUSED = {
    "attention/q": "self_attn.qkv_proj.weight",
    "attention/k": "self_attn.qkv_proj.weight",
    "attention/v": "self_attn.qkv_proj.weight",
    "mlp/gate": "mlp.gate_up_proj.weight",
    "mlp/up": "mlp.gate_up_proj.weight",
}


def _has_window(raw: Raw, layer: int) -> bool:
    return bool(raw.get("sliding_window"))


def _upper_window(raw: Raw, layer: int) -> bool:
    return bool(raw.get("use_sliding_window")) and layer >= raw["max_window_layers"]


def _biases(raw: Raw) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}


def _write_biases(c: DecoderConfig) -> dict[str, Any]:
    return {"attention_bias": c.o_bias, "mlp_bias": c.mlp_bias}


def _smollm3(raw: Raw) -> dict[str, Any]:
    with_rope = raw.get("no_rope_layers")  # which, despite the name, is 1 where there is RoPE
    if with_rope is None:
        interval = raw["no_rope_layer_interval"]
        with_rope = [(i + 1) % interval for i in range(raw["num_hidden_layers"])]
    return {**_biases(raw), "rope_layers": tuple(bool(flag) for flag in with_rope)}


def _write_smollm3(c: DecoderConfig) -> dict[str, Any]:
    flags = c.rope_layers or (True,) * c.num_layers
    return {**_write_biases(c), "no_rope_layers": [int(flag) for flag in flags]}


def _gemma(raw: Raw) -> dict[str, Any]:
    return {
        **_biases(raw),
        "embed_scale": raw["hidden_size"] ** 0.5,
        "attention_scale": raw["query_pre_attn_scalar"] ** -0.5,
    }


def _write_gemma(c: DecoderConfig) -> dict[str, Any]:
    scalar = c.attention_scale**-2
    whole = round(scalar)
    scalar = whole if abs(scalar - whole) < 1e-6 * scalar else scalar
    return {"attention_bias": c.o_bias, "query_pre_attn_scalar": scalar}


def _qwen3_moe(raw: Raw) -> dict[str, Any]:
    dense = sorted(raw.get("mlp_only_layers") or ())
    if raw.get("decoder_sparse_step", 1) != 1 or dense != list(range(len(dense))):
        raise ValueError(
            f"decoder_sparse_step={raw.get('decoder_sparse_step')}, mlp_only_layers={dense}: "
            "dense layers are supported at the bottom only"
        )
    experts = Experts(
        num_experts=raw.get("num_local_experts") or raw["num_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        dense_layers=len(dense),
        normalize=raw["norm_topk_prob"],
    )
    return {**_biases(raw), "experts": experts}


def _write_qwen3_moe(c: DecoderConfig) -> dict[str, Any]:
    e = c.experts
    return {
        **_write_biases(c),
        "num_experts": e.num_experts,
        "num_experts_per_tok": e.per_token,
        "moe_intermediate_size": e.size,
        "norm_topk_prob": e.normalize,
        "mlp_only_layers": list(range(e.dense_layers)),
        "decoder_sparse_step": 1,
    }


def _deepseek(raw: Raw) -> dict[str, Any]:
    if raw.get("attention_bias") or raw.get("moe_layer_freq", 1) != 1:
        raise ValueError(
            f"attention_bias={raw.get('attention_bias')}, moe_layer_freq="
            f"{raw.get('moe_layer_freq')}: DeepSeek is supported without biases and with experts "
            "in every upper layer"
        )
    latent = Latent(
        kv_rank=raw["kv_lora_rank"],
        q_rank=raw.get("q_lora_rank"),
        nope_dim=raw["qk_nope_head_dim"],
        rope_dim=raw["qk_rope_head_dim"],
        v_dim=raw["v_head_dim"],
    )
    third = raw["model_type"] == "deepseek_v3"
    grouped = third or raw["topk_method"] == "group_limited_greedy"
    experts = Experts(
        num_experts=raw["n_routed_experts"],
        per_token=raw["num_experts_per_tok"],
        size=raw["moe_intermediate_size"],
        shared_size=raw["moe_intermediate_size"] * raw["n_shared_experts"],
        dense_layers=raw["first_k_dense_replace"],
        scoring="sigmoid" if third else "softmax",
        correction_bias=third,
        normalize=third and raw["norm_topk_prob"],  # which transformers ignores in V2
        scale=raw["routed_scaling_factor"],
        groups=raw["n_group"] if grouped else 1,
        groups_per_token=raw["topk_group"] if grouped else 1,
        group_top=2 if third else 1,
    )
    return {
        "latent": latent,
        "experts": experts,
        "head_dim": latent.nope_dim + latent.rope_dim,
        "rope_interleaved": raw.get("rope_interleave", True),
    }


def _write_deepseek(c: DecoderConfig) -> dict[str, Any]:
    e, m = c.experts, c.latent
    raw = {
        "kv_lora_rank": m.kv_rank,
        "q_lora_rank": m.q_rank,
        "qk_nope_head_dim": m.nope_dim,
        "qk_rope_head_dim": m.rope_dim,
        "v_head_dim": m.v_dim,
        "head_dim": m.rope_dim,
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
    if c.family == "deepseek_v2":
        return {**raw, "topk_method": "greedy" if e.groups == 1 else "group_limited_greedy"}
    return {**raw, "topk_method": "noaux_tc", "rope_interleave": c.rope_interleaved}


_GEMMA = {
    "norm_offset": 1.0,
    "post_norm": True,
    "activation": "gelu_tanh",
}
_GEMMA_NAMES = {**_POST_NORMS, "mlp_norm/weight": "pre_feedforward_layernorm.weight"}
_GEMMA_FIELDS = {
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "logit_softcap",
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", read=_biases, write=_write_biases),
    "mistral": Family("MistralForCausalLM", local=_has_window),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        defaults={"tie_word_embeddings": True, "rope_theta": 2e6, "no_rope_layer_interval": 4},
        read=_smollm3,
        write=_write_smollm3,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        fixed={"qkv_bias": True},
        defaults={"max_window_layers": 28},
        local=_upper_window,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        fixed={"qk_norm": "head"},
        defaults={"max_window_layers": 28, "head_dim": 128},
        local=_upper_window,
        read=_biases,
        write=_write_biases,
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        fixed={"qk_norm": "head"},
        defaults={"norm_topk_prob": False},
        read=_qwen3_moe,
        write=_write_qwen3_moe,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        fields=_GEMMA_FIELDS,
        fixed=_GEMMA,
        defaults={"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256},
        activation_key="hidden_activation",
        local=lambda raw, layer: layer % 2 == 0,
        read=_gemma,
        write=_write_gemma,
        names=_GEMMA_NAMES,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        fields=_GEMMA_FIELDS,
        fixed={**_GEMMA, "qk_norm": "head"},
        defaults={
            "tie_word_embeddings": True,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
            "sliding_window": 4096,
        },
        activation_key="hidden_activation",
        local=lambda raw, layer: bool((layer + 1) % raw["sliding_window_pattern"]),
        read=_gemma,
        write=_write_gemma,
        names=_GEMMA_NAMES,
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        fixed={"pre_norm": False, "post_norm": True, "qk_norm": "flat"},
        read=_biases,
        write=_write_biases,
        names=_POST_NORMS,
    ),
    "phi3": Family("Phi3ForCausalLM", local=_has_window, names=_FUSED),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        fixed={"rope_interleaved": True},
        defaults={"topk_method": "greedy", "n_group": 1, "topk_group": 1},
        read=_deepseek,
        write=_write_deepseek,
        names=_LATENT,
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        read=_deepseek,
        write=_write_deepseek,
        names=_LATENT,
        # layers past the last predict further tokens for speculation
        ignored=(r"rotary_emb\.inv_freq$", r"^model\.layers\.{num_layers}\."),
    ),
}
"""By the `model_type` of config.json. SmolLM2, Qwen2.5 and Phi-4 call themselves llama, qwen2 and
phi3."""
