"""Tiny random models of every family, made by transformers: the oracle of the parity tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BASE = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_WIDE = dict(BASE, head_dim=12)
HYBRID = dict(
    BASE,
    head_dim=16,
    num_hidden_layers=4,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=8,
    linear_value_head_dim=6,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
GATED_EXPERTS = dict(
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=24,
)
_LINEAR, _FULL, _SLIDING = "linear_attention", "full_attention", "sliding_attention"
GEMMA4 = dict(
    BASE,
    vocab_size_per_layer_input=97,
    head_dim=12,
    global_head_dim=20,
    sliding_window=5,
    final_logit_softcapping=8.0,
)
_GROUPS = dict(
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    first_k_dense_replace=1,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=1.5,
)
_DEEPSEEK = dict(
    BASE,
    **_GROUPS,
    num_hidden_layers=3,
    num_key_value_heads=4,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
)


_INDEXED = dict(_DEEPSEEK, q_lora_rank=12, index_topk=48, index_head_dim=8, index_n_heads=2)

_GRANITE = dict(
    embedding_multiplier=12.0,
    residual_multiplier=0.22,
    attention_multiplier=0.2,
    logits_scaling=3.0,
)

_MAMBA = dict(
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_n_groups=2,
    mamba_d_state=6,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=8,
)
_FALCON = dict(
    attention_in_multiplier=0.7,
    attention_out_multiplier=0.6,
    key_multiplier=0.4,
    ssm_in_multiplier=1.3,
    ssm_out_multiplier=0.5,
    ssm_multipliers=[0.6, 0.8, 1.4, 1.2, 0.7],
    mlp_multipliers=[0.7, 1.6],
    embedding_multiplier=5.0,
    lm_head_multiplier=0.7,
)
_LLAMA4 = dict(
    _WIDE,
    intermediate_size=16,
    intermediate_size_mlp=40,
    num_local_experts=4,
    attention_chunk_size=5,
    floor_scale=4,
    attn_scale=0.5,
)
_HYBRID_TYPES = [*[_LINEAR, _LINEAR, _FULL] * 2, _LINEAR]
"""Two periods, and a part of a third."""


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=1e4, **values))


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _WIDE),
    "llama-linear": ("LlamaConfig", dict(BASE, **_rope("linear", factor=4.0))),
    "llama-llama3": (
        "LlamaConfig",
        dict(
            BASE,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            **_rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        ),
    ),
    "mistral": ("MistralConfig", dict(_WIDE, sliding_window=5)),
    "smollm3": ("SmolLM3Config", dict(BASE, num_hidden_layers=4)),
    "qwen2-yarn": (
        "Qwen2Config",
        dict(
            BASE,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
            **_rope("yarn", factor=2.0, original_max_position_embeddings=32),
        ),
    ),
    "qwen3": ("Qwen3Config", _WIDE),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        dict(
            _WIDE,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            mlp_only_layers=[0],
        ),
    ),
    "gemma2": ("Gemma2Config", dict(_WIDE, sliding_window=5, query_pre_attn_scalar=16)),
    "gemma3": (
        "Gemma3TextConfig",
        dict(_WIDE, num_hidden_layers=6, sliding_window=5, query_pre_attn_scalar=16),
    ),
    "olmo2": ("Olmo2Config", BASE),
    "phi3": ("Phi3Config", dict(BASE, sliding_window=5)),
    "phi4-longrope": (
        "Phi3Config",
        dict(
            BASE,
            original_max_position_embeddings=4,  # shorter than any sequence of the tests
            **_rope(
                "longrope",
                partial_rotary_factor=0.5,
                short_factor=[1.0, 1.5],
                long_factor=[2.0, 4.0],
                original_max_position_embeddings=4,  # shorter than any sequence of the tests
            ),
        ),
    ),
    "deepseek-v2": (
        "DeepseekV2Config",
        dict(_DEEPSEEK, q_lora_rank=None, topk_method="group_limited_greedy"),
    ),
    "deepseek-v3": (
        "DeepseekV3Config",
        dict(
            _DEEPSEEK,
            q_lora_rank=12,
            **_rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=16,
                mscale=1.0,
                mscale_all_dim=0.7,
            ),
        ),
    ),
    "deepseek-v32": (
        "DeepseekV32Config",
        dict(
            _INDEXED,
            **_rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale_all_dim=0.7),
        ),
    ),
    "glm-moe-dsa": (
        "GlmMoeDsaConfig",
        dict(
            _INDEXED,
            mlp_layer_types=["dense", "sparse", "sparse"],
            indexer_types=["full", "shared", "full"],
        ),
    ),
    "mixtral": (
        "MixtralConfig",
        dict(_WIDE, num_local_experts=8, num_experts_per_tok=2, sliding_window=5),
    ),
    "minimax-m2": (
        "MiniMaxM2Config",
        dict(
            _WIDE,
            num_local_experts=8,
            num_experts_per_tok=3,
            **_rope("default", partial_rotary_factor=0.5),
        ),
    ),
    "glm4-moe": (
        "Glm4MoeConfig",
        dict(_WIDE, **_GROUPS, num_hidden_layers=3, use_qk_norm=True, attention_bias=True),
    ),
    "glm4-moe-lite": (
        "Glm4MoeLiteConfig",
        dict(_DEEPSEEK, q_lora_rank=12, mlp_layer_types=["dense", "sparse", "sparse"]),
    ),
    "olmo3": (
        "Olmo3Config",
        dict(
            BASE,
            num_hidden_layers=4,
            sliding_window=5,
            rope_parameters=dict(
                full_attention=dict(
                    rope_type="yarn",
                    rope_theta=1e4,
                    factor=4.0,
                    original_max_position_embeddings=16,
                    attention_factor=1.2,
                ),
                sliding_attention=dict(rope_type="default", rope_theta=2e4),
            ),
        ),
    ),
    "ministral3": (
        "Ministral3Config",
        dict(
            _WIDE,
            **_rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=4,  # so that queries are scaled within the tests
                llama_4_scaling_beta=0.3,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        ),
    ),
    "granite": ("GraniteConfig", dict(_WIDE, **_GRANITE)),
    "granitemoe": (
        "GraniteMoeConfig",
        dict(BASE, **_GRANITE, num_local_experts=8, num_experts_per_tok=3),
    ),
    "gpt-oss": (
        "GptOssConfig",
        dict(
            _WIDE,
            num_hidden_layers=3,
            num_local_experts=8,
            num_experts_per_tok=3,
            sliding_window=5,
            swiglu_limit=0.5,  # so that it is reached within the tests
            **_rope("yarn", factor=4.0, truncate=False, original_max_position_embeddings=16),
        ),
    ),
    "seed-oss": ("SeedOssConfig", dict(_WIDE, attention_out_bias=True)),
    "ernie4-5": ("Ernie4_5Config", dict(_WIDE, use_bias=True)),
    "olmo-hybrid": (
        "OlmoHybridConfig",
        dict(
            HYBRID,
            num_hidden_layers=5,
            layer_types=[_LINEAR, _LINEAR, _FULL, _LINEAR, _FULL],
            rope_parameters=dict(rope_type="default", rope_theta=None),  # none, as released
        ),
    ),
    "olmo-hybrid-rope": (
        "OlmoHybridConfig",
        dict(
            {k: v for k, v in HYBRID.items() if not k.startswith("linear")},
            linear_allow_neg_eigval=False,
            attention_bias=True,
            **_rope("default"),
        ),
    ),
    "qwen3-next": ("Qwen3NextConfig", dict(HYBRID, **GATED_EXPERTS)),
    "qwen3-5": (
        "Qwen3_5TextConfig",
        dict(HYBRID, num_hidden_layers=7, layer_types=_HYBRID_TYPES),
    ),
    "qwen3-5-moe": (
        "Qwen3_5MoeTextConfig",
        dict(
            {k: v for k, v in HYBRID.items() if k != "intermediate_size"},
            **GATED_EXPERTS,
            num_hidden_layers=3,
            layer_types=[_FULL, _LINEAR, _LINEAR],  # no period
        ),
    ),
    "gemma4": (
        "Gemma4TextConfig",
        dict(  # two periods of layers with keys and values, and a part of a third of ones without
            GEMMA4,
            num_hidden_layers=7,
            num_kv_shared_layers=3,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=6,
            layer_types=[*[_SLIDING, _FULL] * 3, _FULL],
        ),
    ),
    "gemma4-moe": (
        "Gemma4TextConfig",
        dict(
            GEMMA4,
            num_hidden_layers=3,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            hidden_size_per_layer_input=0,
            layer_types=[_SLIDING, _SLIDING, _FULL],
            enable_moe_block=True,
            num_experts=8,
            top_k_experts=3,
            moe_intermediate_size=16,
            final_logit_softcapping=None,
        ),
    ),
    "lfm2": (
        "Lfm2Config",
        dict(  # two periods, and a part of a third
            BASE,
            num_hidden_layers=7,
            layer_types=[*["conv", "conv", _FULL] * 2, "conv"],
            block_ffn_dim_multiplier=1.3,
            block_multiple_of=8,
        ),
    ),
    "lfm2-moe": (
        "Lfm2MoeConfig",
        dict(
            BASE,
            num_hidden_layers=4,
            layer_types=["conv", _FULL, "conv", _FULL],
            num_dense_layers=2,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            routed_scaling_factor=1.5,
        ),
    ),
    "granite-hybrid": (
        "GraniteMoeHybridConfig",
        dict(
            BASE,
            **_GRANITE,
            **_MAMBA,
            num_hidden_layers=7,
            layer_types=_HYBRID_TYPES,
            num_local_experts=8,
            num_experts_per_tok=3,
            shared_intermediate_size=24,
        ),
    ),
    "granite-hybrid-dense": (
        "GraniteMoeHybridConfig",
        dict(
            BASE,
            **_GRANITE,
            **_MAMBA,
            num_hidden_layers=3,
            layer_types=[_LINEAR, _FULL, _LINEAR],
            num_local_experts=0,
            shared_intermediate_size=40,
            position_embedding_type="rope",
            attention_bias=True,
        ),
    ),
    "llama4": ("Llama4TextConfig", dict(_LLAMA4, num_hidden_layers=5)),
    "llama4-interleaved": (
        "Llama4TextConfig",
        dict(  # dense layers between ones with experts, as in the larger model
            _LLAMA4,
            num_hidden_layers=4,
            no_rope_layer_interval=2,
            moe_layers=[1, 3],
            num_experts_per_tok=2,
            use_qk_norm=False,
            attn_temperature_tuning=False,
            attention_bias=True,
            tie_word_embeddings=True,
            **_rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        ),
    ),
    "kimi-linear": (
        "KimiLinearConfig",
        dict(
            BASE,
            num_hidden_layers=6,
            num_key_value_heads=4,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=6,
            linear_num_heads=4,
            linear_head_dim=8,
            layer_types=[_LINEAR, _LINEAR, _FULL] * 2,
            n_shared_experts=2,
            num_local_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            n_group=4,
            topk_group=2,
        ),
    ),
    "falcon-h1": ("FalconH1Config", dict(BASE, **_MAMBA, mamba_d_ssm=64, **_FALCON)),
    "falcon-h1-norm": (
        "FalconH1Config",
        dict(
            BASE,
            **dict(_MAMBA, mamba_n_groups=1, mamba_d_head="auto"),
            mamba_d_ssm=None,
            mamba_rms_norm=True,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "nemotron-h": (
        "NemotronHConfig",
        dict(
            {k: v for k, v in BASE.items() if k != "num_hidden_layers"},
            head_dim=12,
            layers_block_type=[*[_LINEAR, "moe", _FULL, "mlp"] * 2, _LINEAR],
            mamba_num_heads=8,
            mamba_head_dim=6,
            n_groups=2,
            ssm_state_size=7,
            chunk_size=8,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.5,
            moe_intermediate_size=16,
            moe_shared_expert_intermediate_size=24,
        ),
    ),
}
"""Name to class and arguments of a transformers config."""


_PERTURBED = (
    "weight", "bias", "_proj", "sinks", "A_log", ".D", "layer_scalar", "router.scale",
    "expert_scale",
)  # fmt: skip
"""How the names end of what is moved away from its special value."""


def make(config_class: str, arguments: dict[str, Any], directory: Path) -> Any:
    """A torch model whose every parameter is away from its special value, saved to `directory`."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    # what a state of few tokens gives is small and then normalised, and scores of Gemma 4 have no
    # scale: with more, torch's own fp32 is 1e-4 from fp64
    gentle = "linear_num_key_heads" in arguments or config_class.startswith("Gemma4")
    noise = 0.1 if gentle else 0.2
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(_PERTURBED):
                value.add_(noise * torch.randn_like(value))
    model.save_pretrained(directory)
    return model.eval()
