"""Parameter counts of published models, from the shapes alone."""

from __future__ import annotations

import math

import jax
import pytest

from jaxrl.models import decoder
from jaxrl.models.checkpoints import hf_config

_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_DEEPSEEK = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 8,
    "topk_group": 4,
}
_QWEN_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_GPT_OSS = {"num_local_experts": 32, "num_experts_per_tok": 4}
_TIED = {"tie_word_embeddings": True}
_LFM2_MOE = {
    "moe_intermediate_size": 1792,
    "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
}
_LFM2 = {"full_attn_idxs": [2, 5, 8, 10, 12, 14]}
_GRANITE_TINY = {
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "shared_intermediate_size": 1024,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
}
_FALCON = {"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128}
_MAVERICK = {"num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False}
_NEMOTRON_NANO = {
    "hybrid_override_pattern": "MEMEM*" + "EMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME",
    "mamba_num_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
}

PUBLISHED = [
    (("llama", 49152, 576, 1536, 30, 9, 3, 64), _TIED, 134_515_008),  # SmolLM2-135M
    (("llama", 128256, 4096, 14336, 32, 32, 8, 128), {}, 8_030_261_248),  # Llama 3.1 8B
    (("qwen3", 151936, 1024, 3072, 28, 16, 8, 128), _TIED, 596_049_920),  # Qwen3-0.6B
    (("gemma3_text", 262144, 640, 2048, 18, 4, 1, 256), {}, 268_098_176),  # Gemma 3 270M
    (("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 128), _QWEN_MOE, 30_532_122_624),  # 30B-A3B
    (("granite", 49155, 4096, 12800, 40, 32, 8, 128), _TIED, 8_170_848_256),  # Granite 3.0 8B
    (("gpt_oss", 201088, 2880, 2880, 24, 64, 8, 64), _GPT_OSS, 20_914_757_184),  # gpt-oss-20b
    (("lfm2", 65536, 2048, 12288, 16, 32, 8, 64), _LFM2, 1_170_340_608),  # LFM2-1.2B
    (("lfm2_moe", 65536, 2048, 7168, 24, 32, 8, 64), _LFM2_MOE, 8_339_930_560),  # LFM2-8B-A1B
    (  # Granite 4.0 H Tiny
        ("granitemoehybrid", 100352, 1536, 512, 40, 12, 4, 128),
        _GRANITE_TINY | _TIED,
        6_939_037_248,
    ),
    (("falcon_h1", 32784, 1024, 2048, 36, 8, 2, 64), _FALCON, 521_411_104),  # Falcon-H1-0.5B
    (("llama4_text", 202048, 5120, 8192, 48, 40, 8, 128), {}, 107_769_861_120),  # Scout
    (("llama4_text", 202048, 5120, 8192, 48, 40, 8, 128), _MAVERICK, 400_711_848_960),
    (("kimi_linear", 163840, 2304, 9216, 27, 32, 32, 72), {}, 49_133_081_120),  # 48B-A3B
    (  # Nemotron 3 Nano 30B-A3B
        ("nemotron_h", 131072, 2688, 1856, 52, 32, 2, 128),
        _NEMOTRON_NANO,
        31_577_940_288,
    ),
    (("deepseek_v3", 129280, 7168, 18432, 61, 128, 128, 128), _DEEPSEEK, 671_026_419_200),
]


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize(("shape", "more", "count"), PUBLISHED, ids=lambda x: str(x)[:24])
def test_parameter_count(shape, more, count):
    config = hf_config.read({**dict(zip(_KEYS, shape, strict=True)), **more})
    leaves = jax.tree.leaves(decoder.abstract(config)[0])
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count
