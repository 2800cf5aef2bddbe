"""GGUF files that we write: read back as they were, and by llama.cpp with the same logits."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import gguf as library
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.data.gguf import gguf_fields
from jaxrl.models import decoder, head, load, rope
from jaxrl.models.checkpoints import gguf, gguf_write, hf_config
from jaxrl.models.checkpoints.forms.gguf_architectures import ARCHITECTURES
from jaxrl.models.config import (
    ChunkedLayers,
    DecoderConfig,
    Experts,
    Latent,
    Mamba2,
    RopeScaling,
)
from tests.models import byte_tokenizer, tiny

LLAMA = DecoderConfig(
    vocab_size=byte_tokenizer.SIZE,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=64,
    tie_embeddings=False,
)


def _with(**changes) -> DecoderConfig:
    return dataclasses.replace(LLAMA, **changes)


GEMMA = {
    "tie_embeddings": True,
    "norm_offset": 1.0,
    "post_norm": True,
    "activation": "gelu_tanh",
    "embed_scale": 32**0.5,
    "attention_scale": 8**-0.5,
    "sliding_window": 5,
}
GRANITE = {
    "embed_scale": 3.0,
    "residual_scale": 0.22,
    "attention_scale": 0.2,
    "logit_divisor": 1.5,
}
SIGMOID = {"scoring": "sigmoid", "correction_bias": True, "group_top": 2}
MAMBA = Mamba2(8, 8, groups=2, state=8, taps=4)
NEMOTRON = {
    "num_layers": 5,
    "activation": "relu",
    "self_gated": True,
    "rope_layers": (False,) * 5,
    "mamba": MAMBA,
    "norm_eps": 1e-2,
}
OLMO3 = {
    "family": "olmo3",
    "num_layers": 5,
    "pre_norm": False,
    "post_norm": True,
    "qk_norm": "flat",
    "sliding_window": 5,
    "local_layers": (True, False, True, True, False),
    "local_rope_theta": 10_000.0,
}
LFM2 = {
    "num_layers": 5,
    "qk_norm": "head",
    "convolution": 3,
    "recurrent_layers": (True, False, True, False, True),
}
CASES = {
    "llama": LLAMA,
    "llama3": _with(
        tie_embeddings=True,
        qkv_bias=True,
        o_bias=True,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling("llama3", 8.0, 16),
    ),
    "mistral": _with(family="mistral", rope_scaling=RopeScaling("linear", 4.0)),
    "smollm3": _with(family="smollm3", num_layers=4, rope_layers=(True, True, True, False)),
    "qwen2": _with(family="qwen2", qkv_bias=True, rope_scaling=RopeScaling("yarn", 2.0, 32)),
    "qwen3": _with(family="qwen3", qk_norm="head", head_dim=12),
    "qwen3_moe": _with(family="qwen3_moe", qk_norm="head", experts=Experts(8, 3, 24)),
    "gemma2": _with(
        family="gemma2",
        attention_softcap=50.0,
        logit_softcap=30.0,
        local_layers=(True, False),
        **GEMMA,
    ),
    "gemma3": _with(
        family="gemma3_text",
        num_layers=6,
        qk_norm="head",
        rope_theta=1e6,
        local_rope_theta=1e4,
        local_layers=(True,) * 5 + (False,),
        **GEMMA,
    ),
    "mixtral": _with(
        family="mixtral", rope_theta=1e6, intermediate_size=24, experts=Experts(8, 3, 24)
    ),
    "ministral3": _with(
        family="ministral3",
        head_dim=12,
        rope_scaling=RopeScaling(
            *("yarn", 4.0, 16), mscale=1.0, mscale_all_dim=1.0, beta_fast=8.0, query_beta=0.3
        ),
    ),
    "phi3": _with(family="phi3", sliding_window=40, local_layers=(True, True)),
    "phi3-long": _with(
        family="phi3",
        tie_embeddings=True,
        rope_fraction=0.5,
        rope_scaling=RopeScaling(
            *("longrope", 4.0, 16),
            attention_factor=1.25,
            short_factors=(1.0, 1.5),
            long_factors=(2.0, 4.5),
        ),
    ),
    "phi3-short": _with(
        family="phi3",
        rope_scaling=RopeScaling(
            *("longrope", 0.25, 256),
            attention_factor=1.0,
            short_factors=(1.0, 1.25, 1.5, 3.5),
            long_factors=(2.0, 4.0, 6.0, 8.0),
        ),
    ),
    "olmo2": _with(family="olmo2", pre_norm=False, post_norm=True, qk_norm="flat"),
    "olmo3": _with(rope_scaling=RopeScaling("yarn", 4.0, 16), **OLMO3),
    "glm4_moe": _with(
        family="glm4_moe",
        num_layers=3,
        head_dim=12,
        rope_fraction=0.5,
        qk_norm="head",
        qkv_bias=True,
        experts=Experts(8, 3, 24, shared_size=48, dense_layers=1, scale=1.5, **SIGMOID),
    ),
    "glm4_moe-plain": _with(
        family="glm4_moe",
        rope_fraction=0.5,
        experts=Experts(8, 3, 24, shared_size=24, normalize=False, **SIGMOID),
    ),
    "gpt_oss": _with(
        family="gpt_oss",
        intermediate_size=24,
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        sliding_window=5,
        local_layers=(True, False),
        experts=Experts(8, 3, 24, biases=True, clamp=7.0),
    ),
    "seed_oss": _with(family="seed_oss", qkv_bias=True),
    "ernie4_5": _with(family="ernie4_5", rope_interleaved=True),
    "minimax_m2": _with(
        family="minimax_m2",
        intermediate_size=24,
        qk_norm="flat",
        rope_fraction=0.5,
        experts=Experts(8, 3, 24, scoring="sigmoid", correction_bias=True),
    ),
    "granite": _with(family="granite", qkv_bias=True, o_bias=True, **GRANITE),
    "granitemoe": _with(
        family="granitemoe", intermediate_size=24, experts=Experts(8, 3, 24), **GRANITE
    ),
    "granitehybrid": _with(
        family="granitemoehybrid",
        intermediate_size=24,
        num_layers=3,
        mamba=MAMBA,
        recurrent_layers=(True, False, True),
        experts=Experts(8, 3, 24, shared_size=40),
        **GRANITE,
    ),
    "granitehybrid-dense": _with(
        family="granitemoehybrid",
        num_layers=3,
        tie_embeddings=True,
        mamba=MAMBA,
        recurrent_layers=(True, True, False),
        rope_layers=(False,) * 3,
        **GRANITE,
    ),
    "nemotron_h": _with(
        family="nemotron_h",
        recurrent_layers=(False, True, False, False, True),
        parts=("mlp", "mixer", "attention", "mlp", "mixer"),
        **NEMOTRON,
    ),
    "nemotron_h_moe": _with(
        family="nemotron_h",
        intermediate_size=24,
        recurrent_layers=(True, False, False, True, False),
        parts=("mixer", "experts", "attention", "mixer", "experts"),
        experts=Experts(
            *(8, 3, 24),
            shared_size=40,
            scoring="sigmoid",
            correction_bias=True,
            scale=1.5,
            group_top=2,
        ),
        **NEMOTRON,
    ),
    "lfm2": _with(tie_embeddings=True, family="lfm2", **LFM2),
    "lfm2_moe": _with(
        family="lfm2_moe",
        tie_embeddings=True,
        experts=Experts(
            8, 3, 24, dense_layers=1, scoring="sigmoid", correction_bias=True, floor=1e-6
        ),
        **LFM2,
    ),
    "llama4": _with(
        family="llama4_text",
        num_layers=5,
        rope_interleaved=True,
        rope_layers=(True, True, True, False, True),
        experts=Experts(4, 2, 24, shared_size=24, scoring="sigmoid", normalize=False),
        chunks=ChunkedLayers(8192, (False, True, False, True, False), temperature=0.1),
    ),
}


def _random(config):
    """As the initial parameters are shaped, and away from their special values."""
    rng = np.random.default_rng(0)

    def draw(leaf):
        return jnp.asarray(0.3 * rng.standard_normal(leaf.shape), jnp.float32)

    return jax.tree.map(draw, decoder.abstract(config)[0])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gguf")
    byte_tokenizer.write(directory)
    fields = gguf_fields.read(directory, byte_tokenizer.SIZE)
    made = {}

    def get(case):
        if case not in made:
            params, path = _random(CASES[case]), directory / f"{case}.gguf"
            # llama.cpp looks for tokens of its own in a vocabulary of the name phi3
            gguf_write.save(path, CASES[case], params, fields=fields, name="tiny")
            made[case] = (path, params)
        return made[case]

    return get


def _logits(config, params, tokens):
    row = jnp.asarray(tokens)[None]
    seen = jnp.full(row.shape, len(tokens))
    hidden = decoder.hidden(config, params, row, jnp.arange(len(tokens))[None], seen)
    return head.logits(hidden[0], decoder.unembedding(params), softcap=config.logit_softcap)


@pytest.mark.sample(3, broad=5)
@pytest.mark.exact("a model written as GGUF is read back with equal weights, to 2e-7")
@pytest.mark.parametrize("case", CASES)
def test_read_back(written, case):
    path, params = written(case)
    config, got = load.load(str(path))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-7), got, params)
    family = "llama" if case == "mistral" else CASES[case].family
    scaling = config.rope_scaling if case == "llama3" else CASES[case].rope_scaling
    assert config == dataclasses.replace(CASES[case], family=family, rope_scaling=scaling)


_SIZES = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "rope.freq_base": 10000.0,
}
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
_TWELVE = {"attention.key_length": 12, "attention.value_length": 12}
_HF_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
            "original_max_position_embeddings": 16}  # fmt: skip
CONVERTED = {
    "mixtral": (
        "llama",
        {**_SIZES, **_TWELVE, "expert_count": 8, "expert_used_count": 2, "vocab_size": 97,
         "rope.dimension_count": 12, "rope.freq_base": 1000000.0},
        "MixtralConfig",
        {"head_dim": 12, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "ministral3": (
        "mistral3",
        {**_SIZES, **_TWELVE, **_YARN, "rope.dimension_count": 12, "vocab_size": 97,
         "rope.scaling.yarn_log_multiplier": 1.0,
         "attention.temperature_scale": 0.30000001192092896},
        "Ministral3Config",
        {"head_dim": 12, "rope_parameters": {**_HF_YARN, "mscale": 1.0, "mscale_all_dim": 1.0,
                                             "llama_4_scaling_beta": 0.3}},
    ),
    "phi3": (
        "phi3",
        {**_SIZES, "rope.scaling.original_context_length": 64, "rope.dimension_count": 8,
         "attention.sliding_window": 40},
        "Phi3Config",
        {"sliding_window": 40, "original_max_position_embeddings": 64},
    ),
    "phi3-long": (
        "phi3",
        {**_SIZES, "rope.scaling.attn_factor": 1.2247449159622192, "rope.dimension_count": 4,
         "rope.scaling.original_context_length": 16, "attention.sliding_window": 0},
        "Phi3Config",
        {"original_max_position_embeddings": 16, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}},
    ),
    "olmo3": (
        "olmo2",
        {**_SIZES, **_YARN, "block_count": 4, "rope.scaling.yarn_attn_factor": 1.13862943649292,
         "rope.freq_base_swa": 20000.0, "attention.sliding_window": 5,
         "attention.sliding_window_pattern": [True, True, True, False]},
        "Olmo3Config",
        {"num_hidden_layers": 4, "sliding_window": 5, "rope_parameters": {
            "full_attention": _HF_YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}},
    ),
    "glm4_moe": (
        "glm4moe",
        {**_SIZES, **_TWELVE, "block_count": 4, "rope.dimension_count": 6, "expert_count": 8,
         "expert_used_count": 3, "expert_group_count": 1, "expert_group_used_count": 1,
         "expert_feed_forward_length": 24, "expert_shared_count": 2,
         "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_scale": 1.5,
         "expert_weights_norm": True, "nextn_predict_layers": 1},
        "Glm4MoeConfig",
        {"num_hidden_layers": 3, "head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2,
         "num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.5,
         "use_qk_norm": True, "attention_bias": True},
    ),
}  # fmt: skip
"""Architecture and metadata as llama.cpp's convert_hf_to_gguf.py wrote them of tiny models (the
version in llama-cpp-python 0.3.36; 97 tokens in place of 320), and the class in transformers and
settings of those beside `tiny.BASE`."""


@pytest.mark.parity
@pytest.mark.exact("what llama.cpp's converter writes is read as the model that it was written of")
@pytest.mark.parametrize("case", CONVERTED)
def test_metadata_of_the_converter(case):
    transformers = pytest.importorskip("transformers")
    arch, meta, name, arguments = CONVERTED[case]
    want = hf_config.read(getattr(transformers, name)(**{**tiny.BASE, **arguments}).to_dict())
    names = {name for group in gguf.tensors(want).values() for name in group}
    factors = {"short": [1.0, 1.5], "long": [2.0, 4.0]} if case == "phi3-long" else {}
    tables = {f"rope_factors_{k}.weight": np.array(v, np.float32) for k, v in factors.items()}
    config = gguf.describe(arch, meta, 97, names, tables)
    for read, wanted in zip(rope.frequencies(config), rope.frequencies(want), strict=True):
        np.testing.assert_allclose(read, wanted, rtol=1e-6)
    beta = want.rope_scaling.query_beta if want.rope_scaling else 0.0
    assert (config.rope_scaling.query_beta if config.rope_scaling else 0.0) == beta
    assert config == dataclasses.replace(want, rope_scaling=config.rope_scaling)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("mixtral", {"attention.clamp_kqv": 8.0}, "attention.clamp_kqv=8.0 is not read"),
        ("mixtral", {"expert_weights_scale": 2.5}, "expert_weights_scale=2.5 is not read"),
        ("mixtral", {"rope.scale_linear": 4.0}, "rope.scale_linear=4.0 is not read"),
        ("mixtral", {"attention.value_length": 8}, "attention.value_length=8: values are read"),
        ("ministral3", {"rope.scaling.type": "linear"}, "temperature_scale=.* is not read"),
        ("ministral3", {"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor=0.5 is not read"),
        (
            "phi3",
            {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
            "original_context_length', .*type 'none'",
        ),
        ("phi3", {"rope.scaling.attn_factor": 1.2}, "attn_factor=1.2 is not read"),
        ("phi3-long", {"rope.scaling.type": "yarn"}, "describe a scaled RoPE of type 'yarn'"),
        ("olmo3", {"attention.sliding_window_pattern": [True]}, "local_layers has 1 entries"),
        ("glm4_moe", {"expert_group_count": 4}, "expert_group_count=4: experts in groups"),
        ("glm4_moe", {"expert_gating_func": 1}, "expert_gating_func=1: routers of sigmoids"),
        ("glm4_moe", {"rope.dimension_sections": [2, 2, 2, 0]}, "dimension_sections=.*not read"),
        ("mixtral", {"expert_gating_func": 2}, "expert_gating_func=2: routers of softmaxes"),
        ("mixtral", {"expert_weights_norm": False}, "expert_weights_norm=False is not read"),
        ("ministral3", {"attention.sliding_window": 40}, "sliding_window=40 is not read"),
        ("mixtral", {"attention.sliding_window": 63}, "sliding_window=63 is not read"),
        ("mixtral", {"attention.sliding_window_pattern": 2}, "window_pattern=2 is not read"),
        ("mixtral", {"rope.freq_base_swa": 2e4}, "rope.freq_base_swa=20000.0 is not read"),
        ("mixtral", {"rope.scaling.factor": 0.0}, "rope.scaling.factor=0.0: .* above 0"),
        ("ministral3", {"rope.scaling.factor": -2.0}, "rope.scaling.factor=-2.0: .* above 0"),
        ("ministral3", {"rope.scaling.factor": math.nan}, "rope.scaling.factor=nan: .* above 0"),
    ],
)  # fmt: skip
def test_metadata_that_are_not_read(case, changes, message):
    arch, meta, _, _ = CONVERTED[case]
    tables = ("rope_factors_long.weight",) if case == "phi3-long" else ()
    with pytest.raises(ValueError, match=message):
        gguf.describe(arch, meta | changes, 97, (), dict.fromkeys(tables, np.ones(2, np.float32)))


_UNREAD = [arch for arch in dict.fromkeys(record.name for record in ARCHITECTURES)
           if arch not in ("gemma2", "gemma3", "phi3", "olmo2", "gpt-oss")]  # fmt: skip
_ALL = {
    **_SIZES,
    "attention.head_count_kv": [0, 2],
    "feed_forward_length": [48, 0],
    "attention.key_length": 8,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 24,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
    "interleave_moe_layer_step": 1,
    "shortconv.l_cache": 3,
    **{f"ssm.{key}": 4 for key in ("time_step_rank", "group_count", "state_size", "conv_kernel")},
    "ssm.inner_size": 32,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def _metadata(arch):
    """What suffices for an architecture."""
    meta = dict(_ALL)
    if not arch.startswith("nemotron_h"):
        meta["feed_forward_length"] = 48
    if arch not in ("granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"):
        meta["attention.head_count_kv"] = 2
    if arch != "gemma2":
        del meta["attn_logit_softcapping"], meta["final_logit_softcapping"]
    if arch == "nemotron_h":
        del meta["expert_count"]
    return meta


@pytest.mark.parametrize("arch", _UNREAD)
def test_windows_are_read_or_refused(arch):
    """Of every architecture that has no window, one that hides nothing is none."""
    plain = gguf.describe(arch, _metadata(arch), 97, ())
    for window in (5, 63):
        with pytest.raises(ValueError, match=rf"attention.sliding_window={window}"):
            gguf.describe(arch, _metadata(arch) | {"attention.sliding_window": window}, 97, ())
    for key, value in {"attention.sliding_window_pattern": [True, False],
                       "rope.freq_base_swa": 5e3}.items():  # fmt: skip
        with pytest.raises(ValueError, match=rf"{key}=.* is not read"):
            gguf.describe(arch, _metadata(arch) | {key: value}, 97, ())
    neutral = {"attention.sliding_window_pattern": [False, False], "rope.freq_base_swa": 1e4}
    assert gguf.describe(arch, _metadata(arch) | neutral, 97, ()) == plain
    for window in (0, 64, 100):
        meta = _metadata(arch) | {"attention.sliding_window": window}
        if arch == "llama4":  # whose chunks llama.cpp leaves out with a window of 0
            with pytest.raises(ValueError, match=f"sliding_window={window}: chunks of 8192"):
                gguf.describe(arch, meta, 97, ())
        else:
            assert gguf.describe(arch, meta, 97, ()) == plain


@pytest.mark.parametrize("arch", ["gemma2", "gemma3", "gpt-oss", "olmo2"])
def test_windows_are_read(arch):
    meta = _metadata(arch) | {"block_count": 12, "attention.sliding_window": 5}
    every = {"gemma3": 6, "olmo2": 4}.get(arch, 2)
    base = {"gemma3": 1e4, "olmo2": 1e4}.get(arch)
    config = gguf.describe(arch, meta, 97, ())
    assert (config.sliding_window, config.local_rope_theta) == (5, base)
    assert config.local_layers == tuple((i + 1) % every != 0 for i in range(12))
    key = "attention.sliding_window_pattern"
    for pattern, layers in {
        3: (True, True, False) * 4, 0: (True,) * 12, (True,) * 5 + (False,) * 7: None,
    }.items():  # fmt: skip
        value = list(pattern) if isinstance(pattern, tuple) else pattern
        assert gguf.describe(arch, meta | {key: value}, 97, ()).local_layers == (layers or pattern)
    if base:
        other = gguf.describe(arch, meta | {"rope.freq_base_swa": 2e4}, 97, ())
        assert other == dataclasses.replace(config, local_rope_theta=2e4)
    else:
        with pytest.raises(ValueError, match=r"rope.freq_base_swa=20000.0 is not read"):
            gguf.describe(arch, meta | {"rope.freq_base_swa": 2e4}, 97, ())


def test_gemma_3_without_a_window():
    for meta in ({}, {"attention.sliding_window": 0}):
        config = gguf.describe("gemma3", _metadata("gemma3") | meta, 97, ())
        assert config.sliding_window is None and not any(config.local_layers)


_ROUTED = [
    "llama", "qwen3moe", "gpt-oss", "minimax-m2", "glm4moe", "granitemoe", "granitehybrid",
    "nemotron_h_moe", "lfm2moe", "llama4",
]  # fmt: skip


@pytest.mark.parametrize("arch", _ROUTED)
def test_routers_are_those_of_the_family(arch):
    meta = _metadata(arch) | ({"attention.sliding_window": 5} if arch == "gpt-oss" else {})
    plain = gguf.describe(arch, meta, 97, ())
    gates = {"softmax": (0, 1, 3), "sigmoid": (0, 2)}[plain.experts.scoring]
    for gate in range(5):
        if gate in gates:
            assert gguf.describe(arch, meta | {"expert_gating_func": gate}, 97, ()) == plain
        else:
            with pytest.raises(ValueError, match=rf"expert_gating_func={gate}: routers of"):
                gguf.describe(arch, meta | {"expert_gating_func": gate}, 97, ())
    for norm in (True, False):
        changed = meta | {"expert_weights_norm": norm}
        if arch in ("glm4moe", "nemotron_h_moe") or norm == plain.experts.normalize:
            assert gguf.describe(arch, changed, 97, ()).experts.normalize == norm
        else:
            with pytest.raises(ValueError, match=f"expert_weights_norm={norm} is not read"):
                gguf.describe(arch, changed, 97, ())


def test_a_factor_without_a_type_is_linear():
    """As llama.cpp takes it."""
    meta = _metadata("qwen3") | {"rope.scaling.factor": 4.0}
    assert gguf.describe("qwen3", meta, 97, ()).rope_scaling == RopeScaling("linear", 4.0)


def _rewrite(path, changed, fields, tensors):
    """A file with other metadata and further tensors."""
    reader = library.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    writer = library.GGUFWriter(changed, arch)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for key, value in fields.items():
        writer.add_uint32(f"{arch}.{key}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    for name in tensors:
        writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_layers_that_predict_further_tokens_are_left_out(tmp_path, written):
    path, params = written("glm4_moe-plain")
    further, stray = (f"blk.{layer}.nextn.enorm.weight" for layer in (1, 0))
    _rewrite(path, tmp_path / "a.gguf", {"nextn_predict_layers": 1}, [further])
    config, got = load.load(str(tmp_path / "a.gguf"))
    assert config == dataclasses.replace(CASES["glm4_moe-plain"], num_layers=1)
    bottom = {**params, "layers": jax.tree.map(lambda leaf: leaf[:1], params["layers"])}
    jax.tree.map(np.testing.assert_array_equal, got, bottom)
    _rewrite(path, tmp_path / "b.gguf", {"nextn_predict_layers": 1}, [further, stray])
    with pytest.raises(ValueError, match=rf"with no place \['{stray}'\]"):
        load.load(str(tmp_path / "b.gguf"))


@pytest.mark.sample(4, broad=8)
@pytest.mark.parametrize("case", CASES)
def test_tensors_have_the_names_of_their_architecture(case):
    """Those that the package `gguf` lists for it."""
    arch = gguf_write.architecture(CASES[case])
    (number,) = [key for key, name in library.MODEL_ARCH_NAMES.items() if name == arch]
    stems = {library.TENSOR_NAMES[tensor] for tensor in library.MODEL_TENSORS[number]}
    family = "llama" if case == "mistral" else CASES[case].family
    for group in gguf.tensors(dataclasses.replace(CASES[case], family=family)).values():
        for row, name in enumerate(group):
            stem = re.sub(r"\.(weight|bias)$", "", re.sub(r"^blk\.\d+\.", "blk.{bid}.", name))
            assert stem in stems, f"layer {row}: {name}"


def test_llama3_scaling_is_kept_as_factors(written):
    path, params = written("llama3")
    tokens = list(range(3, 43))
    config, got = load.load(str(path))
    ours, theirs = _logits(CASES["llama3"], params, tokens), _logits(config, got, tokens)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    plain = dataclasses.replace(config, rope_scaling=None)
    assert np.abs(ours - _logits(plain, got, tokens)).max() > 1e-2


@pytest.mark.sample(9, broad=6)
@pytest.mark.parity
@pytest.mark.exact("llama.cpp gives the log-probs of a GGUF file that we wrote, to 2e-3")
@pytest.mark.parametrize("case", CASES)
def test_llama_cpp(written, case):
    llama_cpp = pytest.importorskip("xllamacpp")
    path, params = written(case)
    settings = llama_cpp.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx = settings.n_batch = 64
    settings.n_parallel = settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.warmup = settings.fit_params = False
    settings.cache_type_k = settings.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    tokens = list(range(3, 27))
    request = {"prompt": tokens, "n_predict": 1, "temperature": 0, "n_probs": 10}
    request["ignore_eos"] = True  # which would leave no token to tell of
    reply = llama_cpp.Server(settings).handle_completions(request)
    reply = reply if isinstance(reply, dict) else json.loads(reply)
    (place,) = reply["choices"][0]["logprobs"]["content"]
    found = {row["id"]: row["logprob"] for row in place["top_logprobs"]}
    assert len(found) == 10
    logp = jax.nn.log_softmax(_logits(CASES[case], params, tokens)[-1])
    np.testing.assert_allclose([logp[i] for i in found], list(found.values()), atol=2e-3)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_narrow_matrices(tmp_path, written, dtype, bits):
    params = written("qwen3")[1]
    fields = gguf_fields.read(written("qwen3")[0].parent, byte_tokenizer.SIZE)
    gguf_write.save(tmp_path / "a.gguf", CASES["qwen3"], params, fields=fields, dtype=dtype)
    got = gguf.load(tmp_path / "a.gguf")[1]
    np.testing.assert_array_equal(got["norm"]["weight"], params["norm"]["weight"])
    matrix = params["layers"]["mlp"]["up"]
    np.testing.assert_allclose(got["layers"]["mlp"]["up"], matrix, rtol=2.0**-bits, atol=1e-7)
    assert np.abs(got["layers"]["mlp"]["up"] - matrix).max() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "falcon_h1"}, "family 'falcon_h1' is not written as GGUF"),
        (
            {"family": "deepseek_v2", "latent": Latent(8, None, 4, 4, 8)},
            "family 'deepseek_v2' is not written",
        ),
        (
            {"family": "mistral", "sliding_window": 5, "local_layers": (True, True)},
            r"'llama' cannot express sliding_window=5 \(would be None\); local_layers=",
        ),
        ({"family": "qwen3", "qk_norm": "head", "qkv_bias": True}, "cannot express qkv_bias=True"),
        ({"norm_offset": 1.0}, "cannot express norm_offset=1.0"),
        (
            {"family": "phi3", "head_dim": 12},
            r"'phi3' cannot express head_dim=12 \(would be 8\)",
        ),
        (
            {
                "family": "mixtral",
                "intermediate_size": 24,
                "experts": Experts(8, 3, 24),
                "sliding_window": 5,
                "local_layers": (True, True),
            },
            r"'llama' cannot express sliding_window=5",
        ),
        (
            {
                "family": "ministral3",
                "rope_scaling": RopeScaling(
                    "yarn", 4.0, 16, mscale=0.7, mscale_all_dim=1.0, query_beta=0.3
                ),
            },
            "'mistral3' cannot express rope_scaling=",
        ),
        ({**OLMO3, "local_rope_theta": 2e4}, "'olmo2' cannot express local_rope_theta=20000.0"),
        ({**OLMO3, "tie_embeddings": True}, "'olmo2' cannot express tie_embeddings=True"),
        (
            {**OLMO3, "rope_scaling": RopeScaling("yarn", 4.0, 16, attention_factor=1.2)},
            "'olmo2' cannot express rope_scaling=.*attention_factor=1.2",
        ),
        (
            {
                "family": "glm4_moe",
                "qkv_bias": True,
                "experts": Experts(
                    8, 2, 24, shared_size=24, groups=4, groups_per_token=2, **SIGMOID
                ),
            },
            "'glm4moe' cannot express experts=.*groups=4",
        ),
        ({"rope_scaling": RopeScaling("yarn", 2.0, 32, beta_fast=16.0)}, "beta_fast=16.0"),
        (
            {
                "family": "nemotron_h",
                "recurrent_layers": (True, False, True, False, True),
                "parts": ("mixer", "mlp", "mixer", "attention", "mixer"),
                **NEMOTRON,
                "mamba": dataclasses.replace(MAMBA, strides=(0.001, float("inf"))),
            },
            "time_step_min=0.001: llama.cpp does not bound strides",
        ),
        (
            {
                "family": "nemotron_h",
                "recurrent_layers": (True, False, False, False, True),
                "parts": ("mixer", "mlp", "experts", "attention", "mixer"),
                "experts": Experts(4, 2, 8, scoring="sigmoid", correction_bias=True),
                **NEMOTRON,
            },
            "'nemotron_h_moe' cannot express .*parts=",
        ),
    ],
)
def test_what_llama_cpp_cannot_express(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        gguf_write.save(tmp_path / "a.gguf", _with(**changes), {}, fields=[])
    assert not (tmp_path / "a.gguf").exists()
