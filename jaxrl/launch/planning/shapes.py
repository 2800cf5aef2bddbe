"""Published models as their config.json describes them, to plan for without their weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.models import catalog
from jaxrl.models.checkpoints import hf_config
from jaxrl.models.config import DecoderConfig

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json")

_LLAMA = {
    "model_type": "llama",
    "vocab_size": 128256,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
_QWEN = {
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}

_GEMMA4 = {"model_type": "gemma4_text", "vocab_size": 262144, "final_logit_softcapping": 30.0}
_GEMMA4_WIDE = {
    **_GEMMA4,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
}

_QWEN35 = {
    "vocab_size": 248320,
    "head_dim": 256,
    "num_key_value_heads": 2,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
    },
    "linear_num_key_heads": 16,
    "tie_word_embeddings": False,
}
_GPT_OSS = {
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 4,
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3-8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3-405b": {
        **_LLAMA,
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
    },
    "qwen3-0.6b": {
        **_QWEN,
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-1.7b": {
        **_QWEN,
        "model_type": "qwen3",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        **_QWEN,
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        **_QWEN,
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "qwen3-32b": {
        **_QWEN,
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
    "qwen3-235b-a22b": {
        **_QWEN,
        "model_type": "qwen3_moe",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "norm_topk_prob": True,
    },
    "qwen3.5-27b": {
        **_QWEN35,
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 48,
    },
    "qwen3.5-35b-a3b": {
        **_QWEN35,
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "qwen3.5-397b-a17b": {
        **_QWEN35,
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "linear_num_value_heads": 64,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    },
    "gpt-oss-20b": {**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": {**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    "glm-4.5-air": {
        "model_type": "glm4_moe",
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
    },
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h",
        "vocab_size": 131072,
        "hidden_size": 2688,
        "intermediate_size": 1856,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "mamba_num_heads": 64,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "routed_scaling_factor": 2.5,
    },
    "lfm2-1.2b": {
        "model_type": "lfm2",
        "vocab_size": 65536,
        "hidden_size": 2048,
        "block_ff_dim": 12288,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    },
    "falcon-h1-34b": {
        "model_type": "falcon_h1",
        "vocab_size": 261120,
        "hidden_size": 5120,
        "intermediate_size": 21504,
        "num_hidden_layers": 72,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rope_theta": 1e11,
        "mamba_d_ssm": 4096,
        "mamba_n_heads": 32,
        "mamba_d_head": 128,
        "mamba_n_groups": 2,
        "mamba_d_state": 256,
    },
    "llama-4-scout": {
        "model_type": "llama4_text",
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
    },
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear",
        "vocab_size": 163840,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "gemma-4-e2b": {
        **_GEMMA4,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    },
    "gemma-4-e4b": {
        **_GEMMA4,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 42,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
    },
    "gemma-4-31b": {
        **_GEMMA4_WIDE,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
    },
    "gemma-4-26b-a4b": {
        **_GEMMA4_WIDE,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
}
"""By the name that `jaxrl plan --model` takes."""


def read(model: str) -> DecoderConfig | None:
    """The decoder of a published model, or of a directory that holds no more than a config.json.

    None for what `jaxrl.rollout.policy` opens: other directories and files, runs, packaged models,
    Hub ids and `fresh`.

    Raises:
      ValueError: none of these.
    """
    if model in SHAPES:
        return hf_config.read(SHAPES[model])
    if model == "fresh" or model in catalog.PACKAGED or catalog.is_hub(model) or "://" in model:
        return None
    directory = Path(model)
    if not model or not directory.exists():
        raise ValueError(
            f"model={model!r} is no path, and no published model that is known here: "
            f"{', '.join(SHAPES)}; name one, or a directory with its config.json"
        )
    file = directory / "config.json"
    if not file.exists() or any((directory / name).exists() for name in _TOKENIZERS):
        return None
    raw = json.loads(file.read_text())
    return hf_config.read(raw) if "model_type" in raw else None  # that of a run has none
