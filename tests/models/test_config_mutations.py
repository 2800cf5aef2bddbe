"""A config.json that differs in one key: the logits of transformers, or a refusal.

A key that one side heeds and the other does not would change the model in silence.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.models import decoder, head
from jaxrl.models.checkpoints import hf_config, huggingface
from tests.models import tiny

pytestmark = pytest.mark.parity

T = 24
TOKENS = np.random.default_rng(0).integers(3, 97, (1, T)).astype(np.int32)
SAMPLE = 10
"""How many changes of each family are tried where not all are."""

DEEP = ("llama", "mistral", "qwen2-yarn", "qwen3", "gemma2", "olmo2", "phi3", "mixtral")
"""Variants that get 4 layers, so that keys that list layers have something to say."""

NOT_COMPARED = {
    "phi4-longrope": ("max_position_embeddings=32",),
}
"""Changes after which the two differ as documented: the length of what is read decides in
transformers which factors of longrope apply, and the length of the context here."""


Raw = dict[str, Any]

SHAPES = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "model_type",
}
"""Keys that are not changed: the files would be of another model."""

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

VALUES: dict[str, list[Any]] = {
    "attention_bias": [True],
    "attention_out_bias": [True],
    "use_bias": [True],
    "mlp_bias": [True],
    "rope_scaling": [
        {"rope_type": "linear", "factor": 4.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        _LLAMA3,
    ],
    "partial_rotary_factor": [0.5],
    "rotary_dim": [4],
    "sliding_window": [5, None],
    "use_sliding_window": [True, False],
    "rope_theta": [100.0],
    "rope_local_base_freq": [50.0],
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["gelu", "silu"],
    "attn_logit_softcapping": [5.0, None],
    "final_logit_softcapping": [5.0, None],
    "tie_word_embeddings": [True, False],
    "rms_norm_eps": [1e-2],
    "layer_norm_eps": [1e-2],
    "use_bidirectional_attention": [True, "vision", "all"],
    "no_rope_layers": [[1, 1, 0, 1]],
    "max_position_embeddings": [32],
    "query_pre_attn_scalar": [64],
    "norm_topk_prob": [True, False],
    "decoder_sparse_step": [2],
    "mlp_only_layers": [[1]],
    "num_experts_per_tok": [1],
    "n_group": [2],
    "topk_group": [1],
    "routed_scaling_factor": [3.0],
    "scoring_func": ["softmax"],
    "topk_method": ["greedy", "noaux_tc"],
    "use_qk_norm": [True, False],
    "rope_interleave": [False],
    "aux_loss_alpha": [0.5],
    "moe_layer_freq": [2],
    "sliding_window_pattern": [2],
    "max_window_layers": [0, 1],
    "original_max_position_embeddings": [8],
    "cache_implementation": ["hybrid"],
    "pretraining_tp": [2],
    "llama_4_scaling_beta": [0.2],
    "embedding_multiplier": [3.0],
    "residual_multiplier": [0.5],
    "attention_multiplier": [0.3],
    "logits_scaling": [7.0],
    "attention_dropout": [0.5],
    "initializer_range": [0.5],
    "use_cache": [False],
}
"""What a key is changed to, or added with; other keys are doubled or negated."""


def mutations(raw: Raw) -> Iterator[tuple[str, Raw]]:
    """Every change of a config.json, with a name for it."""
    for key in raw.keys() - SHAPES:
        yield f"without {key}", {k: v for k, v in raw.items() if k != key}
        for value in _others(key, raw[key]):
            yield f"{key}={value}", raw | {key: value}
    for key in VALUES.keys() - raw.keys():
        for value in VALUES[key]:
            yield f"added {key}={value}", raw | {key: value}
    depth = raw.get("num_hidden_layers") or len(raw["layers_block_type"])
    typed = (["sliding_attention", "full_attention"] * depth)[:depth]
    yield "layer types", raw | {"layer_types": typed, "sliding_window": 5}
    yield from _ropes(raw)


def _others(key: str, value: Any) -> list[Any]:
    if key in VALUES:
        return [other for other in VALUES[key] if other != value]
    if isinstance(value, bool):
        return [not value]
    return [value * 2] if isinstance(value, int | float) else []


def _ropes(raw: Raw) -> Iterator[tuple[str, Raw]]:
    rope = raw.get("rope_parameters") or {}
    for path in [(key,) for key in rope] + [
        (kind, key) for kind, part in rope.items() if isinstance(part, dict) for key in part
    ]:
        for value in (None, *_others(path[-1], _at(rope, path))):
            changed = copy.deepcopy(raw)
            part = _at(changed["rope_parameters"], path[:-1])
            if value is None:
                del part[path[-1]]
            else:
                part[path[-1]] = value
            yield f"rope_parameters {'.'.join(path)}={value}", changed
    if rope and not any(isinstance(part, dict) for part in rope.values()):
        old = {key: value for key, value in raw.items() if key != "rope_parameters"}
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        if "partial_rotary_factor" in rest:
            old["partial_rotary_factor"] = rest.pop("partial_rotary_factor")
        if rest.get("rope_type") != "default":
            old["rope_scaling"] = rest
        yield "the old keys of RoPE", old | {"rope_theta": rope.get("rope_theta", 1e4)}


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@functools.lru_cache(maxsize=8)
def _forward(config):
    @jax.jit
    def logits(params):
        positions = np.arange(T, dtype=np.int32)[None]
        hidden = decoder.hidden(config, params, TOKENS, positions, np.full((1, T), T, np.int32))
        return head.logits(hidden[0], decoder.unembedding(params), softcap=config.logit_softcap)

    return logits


class Sides:
    """Logits of both sides, computed anew where the config that a side reads is another."""

    def __init__(self, base):
        import transformers

        self.open = functools.partial(self.auto().from_pretrained, attn_implementation="eager")
        self.describe = transformers.AutoConfig.from_pretrained
        self.config, self.values = huggingface.read_config(base), self.describe(base).to_dict()
        self.base = self.ours_anew(base), self.theirs_anew(base)

    def auto(self):
        """The class of transformers that opens the model."""
        import transformers

        return transformers.AutoModelForCausalLM

    def text_model(self, model):
        """What computes logits of a text."""
        return model

    def ours(self, directory):
        same = huggingface.read_config(directory) == self.config
        return self.base[0] if same else self.ours_anew(directory)

    def theirs(self, directory):
        same = self.describe(directory).to_dict() == self.values
        return self.base[1] if same else self.theirs_anew(directory)

    def ours_anew(self, directory):
        config, params = huggingface.load(directory)
        return np.asarray(_forward(config)(params))

    def theirs_anew(self, directory):
        import torch

        model, report = self.open(directory, output_loading_info=True)
        if any(report.values()):
            raise ValueError(f"transformers draws weights at random: {report}")
        with torch.no_grad():
            text = self.text_model(model.eval())
            return text(torch.tensor(TOKENS, dtype=torch.long)).logits[0].numpy()


@pytest.fixture(autouse=True)
def _reference():
    """The library that says what a config means."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")


def _check(variant, directory, count):
    """Try changes, all or so many of them; returns how many were compared."""
    name, arguments = tiny.VARIANTS[variant]
    depth = {"num_hidden_layers": 4} if variant in DEEP else {}
    base = directory / "base"
    tiny.make(name, {**arguments, **depth}, base)
    raw = json.loads((base / "config.json").read_text())
    sides = Sides(base)
    np.testing.assert_allclose(*sides.base, atol=1e-4)
    return compare(sides, dict(mutations(raw)), base, variant, count)


def compare(sides, changes, base, variant, count):
    """Try changes of a config.json by name, all or so many; returns how many were compared."""
    labels = sorted(changes)
    if count is not None:
        labels = random.Random(zlib.crc32(variant.encode())).sample(labels, count)
    silent, compared = {}, 0
    for number, label in enumerate(labels):
        if label in NOT_COMPARED.get(variant, ()):
            continue
        other = base.parent / str(number)
        other.mkdir()
        (other / "model.safetensors").symlink_to(base / "model.safetensors")
        (other / "config.json").write_text(json.dumps(changes[label]))
        try:
            ours = sides.ours(other)
        except (ValueError, KeyError) as error:
            assert isinstance(error, ValueError), f"{label}: {error!r}"
            continue
        try:
            theirs = sides.theirs(other)
        except Exception:  # of whatever kind: transformers does not open it
            continue
        compared += 1
        if not np.abs(ours - theirs).max() < 1e-4:
            silent[label] = float(np.abs(ours - theirs).max())
    assert not silent, silent
    return compared


@pytest.mark.sample(3)
@pytest.mark.exact("a changed key of config.json: the logits of transformers, or a refusal")
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_a_sample_of_changed_keys(variant, tmp_path):
    assert _check(variant, tmp_path, SAMPLE) > 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_every_changed_key(variant, tmp_path):
    assert _check(variant, tmp_path, None) > 20


def test_keys_of_released_files(tmp_path):
    """LFM2 has them by other names, which win over the usual ones."""
    name, arguments = tiny.VARIANTS["lfm2"]
    tiny.make(name, arguments, tmp_path / "base")
    raw = json.loads((tmp_path / "base/config.json").read_text())
    rest = {k: v for k, v in raw.items() if k not in ("layer_types", "tie_word_embeddings")}
    released = {"intermediate_size": 12, "block_ff_dim": 48, "full_attn_idxs": [2, 5]}
    changes = {
        "other names": rest | released | {"tie_embedding": True},
        "both": raw | released | {"tie_word_embeddings": False, "tie_embedding": True},
        "norms": raw | {"norm_eps": 1e-2},
        "as it is": raw | {"block_auto_adjust_ff_dim": False, "block_ff_dim": 48},
    }
    sides = Sides(tmp_path / "base")
    assert compare(sides, changes, tmp_path / "base", "lfm2", None) == len(changes)
    wrong = (
        rest | {"block_multiple_of": 0},
        rest | {"full_attn_idxs": []},
        raw | {"conv_L_cache": 1},
    )
    for other in wrong:
        with pytest.raises(ValueError, match=r"block_multiple_of|needs (attention|a convolution)"):
            hf_config.read(other)


@pytest.mark.broad
def test_keys_of_mamba(tmp_path):
    """Granite 4: bounds of the strides, and layers by the names of transformers 4."""
    tiny.make(*tiny.VARIANTS["granite-hybrid-dense"], tmp_path / "base")
    raw = json.loads((tmp_path / "base/config.json").read_text())
    rest = {k: v for k, v in raw.items() if k != "layer_types"}
    old = ["mamba", "attention", "mamba"]
    changes = {
        "strides": raw | {"time_step_limit": [0.4, 1.5]},
        "a lower bound": raw | {"time_step_limit": [0.9, float("inf")]},
        "old names": rest | {"layers_block_type": old, "time_step_limit": None},
        "sizes": raw | {"mamba_d_head": "auto", "position_embedding_type": None},
    }
    sides = Sides(tmp_path / "base")
    dense = "granite-hybrid-dense"
    assert compare(sides, changes, tmp_path / "base", dense, None) == len(changes) - 1
    wrong = {
        "mamba_proj_bias": True,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_types": ["mamba", "attention", "conv"],
        "mamba_d_head": 4,
        "mamba_n_groups": 3,
        "mamba_d_conv": 1,
        "time_step_limit": [2.0, 1.0],
    }
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=rf"{key.removeprefix('mamba_n_')}|taps=1"):
            hf_config.read(raw | {key: value})
    with pytest.raises(ValueError, match=r"layer_types=\(\): give 3"):
        hf_config.read(rest)


@pytest.mark.broad
def test_keys_of_released_kimi_linear(tmp_path):
    """Layers and sizes of the delta rule in a dict of their own, numbered from 1."""
    tiny.make(*tiny.VARIANTS["kimi-linear"], tmp_path / "base")
    raw = json.loads((tmp_path / "base/config.json").read_text())
    linear = ("layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")
    rest = {key: value for key, value in raw.items() if key not in linear}
    layers = {"full_attn_layers": [3, 6], "kda_layers": [1, 2, 4, 5]}
    sizes = {"head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4}
    dense = {k: v for k, v in rest.items() if k != "mlp_layer_types"}
    changes = {
        "a dict": rest | {"linear_attn_config": layers | sizes},
        "dense layers": dense | {"linear_attn_config": layers | sizes, "first_k_dense_replace": 1},
        "sizes alone": raw | {"linear_attn_config": sizes},
    }
    sides = Sides(tmp_path / "base")
    assert compare(sides, changes, tmp_path / "base", "kimi", None) == len(changes)
    wrong = {
        "linear_attn_config": sizes | layers | {"kda_layers": [1, 2]},
        "mla_use_nope": False,
        "attention_bias": True,
        "num_key_value_heads": 2,
        "moe_layer_freq": 2,
        "mlp_layer_types": ["sparse", "dense"] * 3,
    }
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=key):
            hf_config.read(rest | {key: value})


@pytest.mark.broad
def test_keys_of_chunks(tmp_path):
    """Llama 4: which layers have RoPE, chunks and experts, by several keys."""
    tiny.make(*tiny.VARIANTS["llama4"], tmp_path / "base")
    raw = json.loads((tmp_path / "base/config.json").read_text())
    rest = {k: v for k, v in raw.items() if k not in ("layer_types", "no_rope_layers")}
    changes = {
        "an interval": rest | {"no_rope_layer_interval": 2},
        "no list": rest | {"no_rope_layers": []},
        "a list": rest | {"no_rope_layers": [0, 1, 1, 0, 1]},
        "no chunks": rest | {"attention_chunk_size": None},
        "larger chunks": raw | {"attention_chunk_size": 7},
        "no temperature": raw | {"attn_temperature_tuning": False},
        "another temperature": raw | {"attn_scale": 2.0, "floor_scale": 3},
        "no norms": raw | {"use_qk_norm": False},
        "two experts": raw | {"num_experts_per_tok": 2},
        "every layer": {k: v for k, v in raw.items() if k != "moe_layers"},
    }
    sides = Sides(tmp_path / "base")
    assert compare(sides, changes, tmp_path / "base", "llama4", None) == len(changes)
    wrong = {
        "layer_types": ["full_attention"] * 5,
        "no_rope_layers": [1, 0],
        "moe_layers": [7],
        "attention_chunk_size": 0,
        "floor_scale": 0,
    }
    names = {"attention_chunk_size": "size=0", "floor_scale": "interval=0"}
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=names.get(key, key)):
            hf_config.read(raw | {key: value})
    with pytest.raises(ValueError, match="interleave_moe_layer_step=0"):
        hf_config.read(rest | {"moe_layers": None, "interleave_moe_layer_step": 0})


@pytest.mark.broad
def test_keys_of_attention_beside_mamba(tmp_path):
    """Falcon-H1: norms and gates of the mixer, its size, and what no file may say."""
    tiny.make(*tiny.VARIANTS["falcon-h1-norm"], tmp_path / "base")
    raw = json.loads((tmp_path / "base/config.json").read_text())
    factors = {"mlp_multipliers": [0.5, 2.0], "ssm_multipliers": [0.5, 2.0, 1.5, 0.7, 0.9]}
    changes = {
        "a gate before the norm": raw | {"mamba_norm_before_gate": False},
        "strides": raw | {"time_step_limit": [0.4, 1.5]},
        "sizes": raw | {"mamba_d_ssm": 64, "mamba_d_head": 8},
        "factors": raw | factors,
        "no factors": raw | dict.fromkeys(factors),
        "bias of the convolution": raw | {"mamba_conv_bias": True},
    }
    sides = Sides(tmp_path / "base")
    assert compare(sides, changes, tmp_path / "base", "falcon", None) == len(changes)
    wrong = {
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "hidden_act": "gelu_pytorch_tanh",
        "mamba_d_head": 4,
        "ssm_multipliers": [1.0, 2.0],
        "mlp_multipliers": [1.0, "2"],
        "lm_head_multiplier": 0.0,
        "mamba_n_groups": 3,
    }
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=key.removeprefix("mamba_n_")):
            hf_config.read(raw | {key: value})


@pytest.mark.broad
def test_keys_of_parts(tmp_path):
    """Nemotron-H: layers as released files write them, and keys by older names."""
    tiny.make(*tiny.VARIANTS["nemotron-h"], tmp_path / "base")
    raw = json.loads((tmp_path / "base/config.json").read_text())
    rest = {k: v for k, v in raw.items() if k != "layers_block_type"}
    changes = {
        "letters": rest | {"hybrid_override_pattern": "ME*-ME*-M", "num_hidden_layers": 9},
        "a lower bound": raw | {"time_step_min": 1.2},
        "its older name": {k: v for k, v in raw.items() if k != "time_step_min"}
        | {"mamba_dt_min": 1.2},
        "norms": raw | {"layer_norm_epsilon": 1e-2, "rms_norm_eps": 1.0},
        "groups of experts": raw | {"n_group": 2, "topk_group": 1, "norm_topk_prob": False},
    }
    sides = Sides(tmp_path / "base")
    assert compare(sides, changes, tmp_path / "base", "nemotron-h", None) == len(changes)
    wrong = {
        "mlp_hidden_act": "silu",
        "mamba_hidden_act": "gelu",
        "layers_block_type": ["mamba", "conv"],
        "moe_latent_size": 8,
        "use_bias": True,
        "mlp_bias": True,
    }
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=key):
            hf_config.read(raw | {key: value})
    with pytest.raises(ValueError, match="hybrid_override_pattern"):
        hf_config.read(rest | {"hybrid_override_pattern": "MX*-"})


def test_short_texts_by_an_edited_context(tmp_path):
    """Of longrope, the short factors with the temperature of the whole context, as documented."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 4.0],
        "original_max_position_embeddings": 32,
    }
    name, arguments = tiny.VARIANTS["phi3"]
    sizes = {"max_position_embeddings": 128, "original_max_position_embeddings": 32}
    tiny.make(name, {**arguments, **sizes, "rope_parameters": rope}, tmp_path)
    expected = Sides(tmp_path).base[1]
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["rope_parameters"]["factor"] = 128 / 32
    (tmp_path / "config.json").write_text(json.dumps({**raw, "max_position_embeddings": 32}))
    ours, theirs = Sides(tmp_path).base
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    np.testing.assert_allclose(theirs, expected, atol=1e-4)
