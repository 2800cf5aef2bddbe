"""What config.json says of positions, windows, experts and names; see test_config_mutations.py."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, rope
from jaxrl.models.checkpoints import hf_config, huggingface
from jaxrl.models.config import Experts
from tests.models.test_huggingface import RAW

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA2 = {**RAW, "model_type": "gemma2"}
GEMMA3 = {**RAW, "model_type": "gemma3_text", "sliding_window": 4}
PHI3 = {**RAW, "model_type": "phi3", "max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}
MINISTRAL3 = {**RAW, "model_type": "ministral3", "head_dim": 4}

GEMMA4 = {
    **RAW,
    "model_type": "gemma4_text",
    "vocab_size": 97,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "vocab_size_per_layer_input": 97,
}
FULL = ["full_attention"] * 6
EXPERTS4 = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 16,
    "use_double_wide_mlp": True,
}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {**RAW, "rope_parameters": {"rope_theta": 1e6}, "rope_scaling": YARN},
            "move what you want into rope_parameters, rope_theta included",
        ),
        (
            {**GEMMA3, "rope_parameters": {"full_attention": {}}, "rope_scaling": YARN},
            "delete rope_scaling",
        ),
        (
            {**RAW, "rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
            "share one RoPE",
        ),
        ({**GEMMA3, "rope_parameters": {"rope_type": "default"}}, "apart"),
        ({**GEMMA3, "rope_parameters": {"sliding_attention": YARN}}, "apart"),
        *(
            ({**RAW, "rope_scaling": {"rope_type": kind}}, rf"{kind}'? lacks \['factor'")
            for kind in ("linear", "yarn", "llama3")
        ),
        ({**PHI3, "rope_scaling": {"rope_type": "longrope"}}, "lacks .'short_factor'"),
        ({**PHI3, "rope_scaling": YARN}, "rope_type='yarn' is not one of"),
        ({**RAW, "rope_scaling": LONGROPE}, "rope_type='longrope' is not one of"),
        ({**RAW, "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: this family rotates"),
        ({**MINISTRAL3, "rope_parameters": YARN}, "lacks .'llama_4_scaling_beta'"),
        ({**GEMMA2, "use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        *(
            ({**RAW, "model_type": kind, "output_gate_type": "sigmoid"}, "output_gate_type='sigm")
            for kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
        ),
        ({**GEMMA2, "hidden_activation": "relu"}, "hidden_activation='relu'"),
        (
            {"model_type": "llava", "text_config": {"model_type": "mistral"}},
            "its text_config is of 'mistral', one that is read where it comes alone",
        ),
        (
            {"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}},
            "its text_config is of 'gemma3n_text', not read either",
        ),
        ({**GEMMA4, "attention_bias": True}, "attention_bias=True"),
        ({**GEMMA4, "use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        ({**GEMMA4, "rope_scaling": YARN}, "rope_scaling=.*alone"),
        ({**GEMMA4, "rope_parameters": {"full_attention": YARN}}, "is not one of"),
        ({**GEMMA4, "rope_parameters": {}}, "full_attention lacks .'rope_theta', 'rope_type'"),
        ({**GEMMA4, "layer_types": ["full_attention"]}, "give 6 of full_attention and sliding_att"),
        ({**GEMMA4, "num_kv_shared_layers": 6}, "sharing=6: .*need one of their kind below"),
        ({**GEMMA4, "num_kv_shared_layers": 1}, "sharing=1: .*need one of their kind below"),
        ({**GEMMA4, "per_layer_config": {"4": {"head_dim": 8}}}, "per_layer_config=.*in no other"),
        ({**GEMMA4, "per_layer_config": {"05": {"scale": 8}}}, "per_layer_config=.*in no other"),
        (
            {**GEMMA4, "per_layer_config": {"5": {"num_key_value_heads": 1}}},
            "attention_k_eq_v=True alone",
        ),
        ({**GEMMA4, "global_head_dim": 15}, "global_head_dim=15 is odd"),
        ({**GEMMA4, "vocab_size_per_layer_input": 50}, "input_vocab=50 is less than vocab_size=97"),
        (
            {**GEMMA4, **EXPERTS4, "layer_types": FULL, "num_kv_shared_layers": 2},
            "use_double_wide_mlp=True: experts",
        ),
    ],
)
def test_what_is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        hf_config.read(raw)


@pytest.mark.parametrize("model_type", sorted(hf_config.LACKING))
def test_a_family_that_the_decoder_lacks_something_for_is_refused_with_that(model_type):
    assert model_type not in hf_config.FAMILIES
    with pytest.raises(ValueError, match=hf_config.LACKING[model_type]):
        hf_config.read({**RAW, "model_type": model_type})


def test_soft_caps_are_those_of_the_family_unless_they_are_null():
    caps = ("attention_softcap", "logit_softcap")
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    absent = hf_config.read(GEMMA2)
    null = hf_config.read(GEMMA2 | dict.fromkeys(keys))
    assert [getattr(absent, cap) for cap in caps] == [50.0, 30.0]
    assert [getattr(null, cap) for cap in caps] == [None, None]
    assert hf_config.read(hf_config.write(null, "float32")) == null


@pytest.mark.parametrize(("model_type", "eps"), [("olmo2", 1e-5), ("phi3", 1e-5), ("llama", 1e-6)])
def test_the_eps_of_norms_is_that_of_the_family(model_type, eps):
    assert hf_config.read({**RAW, "model_type": model_type}).norm_eps == eps


def test_a_factor_of_longrope_outlives_an_edited_context():
    """So that short factors can be chosen by the context, and the temperature stays."""
    scaling = {**LONGROPE, "factor": 32.0}
    short = {**PHI3, "rope_scaling": scaling, "original_max_position_embeddings": 64}
    assert hf_config.read(short).rope_scaling.factor == 32
    again = hf_config.read(hf_config.write(hf_config.read(short), "float32"))
    assert again == hf_config.read(short)
    without = hf_config.read({**short, "rope_scaling": LONGROPE})
    assert without.rope_scaling.factor == 1


def test_a_window_is_where_the_family_has_one():
    typed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    windows = {
        "llama": (),
        "mistral": (True, False),
        "phi3": (True, True),
        "gemma2": (True, False),
        "qwen2": (),  # whose windows are off unless `use_sliding_window` says otherwise
    }
    for model_type, local in windows.items():
        raw = {**RAW, "model_type": model_type, "max_position_embeddings": 64, **typed}
        assert hf_config.read(raw).local_layers == local, model_type
        switched = hf_config.read({**raw, "use_sliding_window": True}).local_layers
        assert switched == ((True, False) if model_type == "qwen2" else local), model_type


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"per_token": 3, "groups": 4, "groups_per_token": 1}, "per_token=3: a token may use 2"),
        ({"per_token": 9}, "per_token=9: a token may use 8"),
        ({"per_token": 0}, "per_token=0"),
        ({"groups": 3}, "not a multiple of groups=3"),
        ({"groups": 8, "groups_per_token": 8, "group_top": 2}, "group_top=2 exceeds the 1"),
    ],
)
def test_experts_that_cannot_be_chosen(fields, message):
    with pytest.raises(ValueError, match=message):
        Experts(**{"num_experts": 8, "per_token": 2, "size": 4, **fields})


def test_a_base_of_gpt_oss_is_heeded_beside_its_own_yarn():
    raw = {**RAW, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}
    bare, based = hf_config.read(raw), hf_config.read({**raw, "rope_theta": 5e5})
    assert (bare.rope_theta, based.rope_theta) == (1.5e5, 5e5)
    assert bare.rope_scaling == based.rope_scaling != None  # noqa: E711


@pytest.mark.broad
def test_kimi_k2_is_deepseek_v3_by_another_name(tmp_path):
    raw = {
        **RAW,
        "model_type": "deepseek_v3",
        "kv_lora_rank": 4,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    }
    config = hf_config.read(raw)
    params = decoder.init(config, jax.random.key(0))
    huggingface.save(tmp_path, config, params)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, "model_type": "kimi_k2"}))
    again, loaded = huggingface.load(tmp_path)
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_queries_of_ministral3_are_scaled_by_their_position():
    rope_parameters = {**YARN, "llama_4_scaling_beta": 0.5}
    config = hf_config.read({**MINISTRAL3, "rope_parameters": rope_parameters})
    factor = rope.query_scale(config, jnp.array([[0, 15, 16, 47, 48]]))
    expected = 1 + 0.5 * np.log([[1, 1, 2, 3, 4]])
    np.testing.assert_allclose(factor[..., 0, 0], expected, rtol=1e-6)
    assert rope.query_scale(hf_config.read(RAW), jnp.zeros((1, 1), int)) is None
