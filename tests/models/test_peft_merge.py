"""Adapters of every kind of PEFT's LoRA, merged into their base: against PEFT."""

from __future__ import annotations

import copy
import json
import re
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, head, load
from jaxrl.models.checkpoints import hf_config, peft_merge
from jaxrl.models.checkpoints.forms.quantized_files import Slice
from jaxrl.models.config import DecoderConfig

TARGETS = {"target_modules": ["q_proj", "v_proj"]}
KINDS = {
    "plain": TARGETS,
    "all-linear": {"target_modules": "all-linear"},
    "ranks": TARGETS | {"rank_pattern": {"q_proj": 4}},
    "alphas": TARGETS | {"alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 9, "v_proj": 3}},
    "ranks-and-alphas-rslora": TARGETS
    | {"rank_pattern": {"v_proj": 1}, "alpha_pattern": {"v_proj": 5}, "use_rslora": True},
    "one-layer": TARGETS | {"layers_to_transform": [1]},
    "dora-one-layer": TARGETS | {"layers_to_transform": 0, "use_dora": True},
    "dora-ranks": TARGETS | {"rank_pattern": {"q_proj": 4}, "use_dora": True},
    "biases": TARGETS | {"bias": "all"},
    "saved-norms": TARGETS | {"modules_to_save": ["input_layernorm", "norm"]},
    "saved-embedding-and-head": TARGETS | {"modules_to_save": ["embed_tokens", "lm_head"]},
    "saved-embedding": TARGETS | {"modules_to_save": ["embed_tokens"]},
    "saved-mlp": TARGETS | {"modules_to_save": ["mlp"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "tokens": TARGETS | {"trainable_token_indices": [3, 9, 4]},
    "tokens-of-the-embedding": TARGETS | {"trainable_token_indices": {"embed_tokens": [8, 3]}},
}
OF_EMBEDDINGS = [name for name in KINDS if re.search("embedding|head|tokens", name)]
ALWAYS = ("ranks-and-alphas-rslora", "dora-one-layer", "saved-embedding", "tokens")
TOKENS = np.arange(3, 15)[None]


def case(variant, kind):
    return pytest.param(variant, kind, marks=() if kind in ALWAYS else pytest.mark.broad)


def saved(model, directory, base, **options):
    """PEFT's model of random adapters, saved; the base as it names it."""
    import torch

    theirs = pytest.importorskip("peft")
    made = theirs.LoraConfig(r=3, lora_alpha=7, task_type="CAUSAL_LM", **options)
    wrapped = theirs.get_peft_model(copy.deepcopy(model), made)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in wrapped.parameters():
            if value.requires_grad:
                value.add_(0.2 * torch.randn_like(value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells which embeddings it saves
        wrapped.save_pretrained(directory)
    file = directory / "adapter_config.json"
    raw = json.loads(file.read_text()) | {"base_model_name_or_path": str(base)}
    file.write_text(json.dumps(raw))
    with torch.no_grad():
        return wrapped(torch.tensor(TOKENS)).logits[0].numpy()


def logits(config, params):
    positions = jnp.arange(TOKENS.shape[1])[None]
    lengths = jnp.full(TOKENS.shape, TOKENS.shape[1])
    out = decoder.hidden(config, params, jnp.asarray(TOKENS), positions, lengths)
    return head.logits(out[0], decoder.unembedding(params))


@pytest.mark.sample(8)
@pytest.mark.exact("adapters of every kind of PEFT's LoRA give its logits to 1e-4")
@pytest.mark.parity
@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        *(case("llama", kind) for kind in KINDS),  # embedding and head apart
        *(case("llama-llama3", kind) for kind in (*OF_EMBEDDINGS, "biases")),  # one for both
    ],
)
def test_every_kind_of_adapter_is_merged_exactly(tiny_model, variant, kind, tmp_path):
    model, directory, base, params = tiny_model(variant)
    expected = saved(model, tmp_path, directory, **KINDS[kind])
    config, merged = load.load(str(tmp_path))
    np.testing.assert_allclose(logits(config, merged), expected, atol=1e-4)
    assert np.abs(logits(base, params) - expected).max() > 0.1
    assert load.read_config(str(tmp_path)) == config
    assert ("head" in merged) != config.tie_embeddings


@pytest.mark.parity
def test_adapters_over_adapters_and_over_a_quantised_base(tiny_model, tmp_path):
    """The second is trained on the merge of the first; the base is quantised after both."""
    model, directory, config, _ = tiny_model("llama")
    first, second = tmp_path / "first", tmp_path / "second"
    saved(model, first, directory, **TARGETS)
    shutil.copytree(first, second)
    file = second / "adapter_config.json"
    raw = json.loads(file.read_text()) | {"base_model_name_or_path": str(first)}
    file.write_text(json.dumps(raw))
    none, one, two = (load.load(str(path))[1] for path in (directory, first, second))
    both = jax.tree.map(lambda base, merged: 2 * merged - base, none, one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), two, both)
    narrow = load.load(str(first), quantized="int8")[1]
    gaps = [np.abs(logits(config, narrow) - logits(config, each)).max() for each in (none, one)]
    assert gaps[1] < 0.2 * gaps[0]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type='LOHA'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters="),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication="),
        ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow=1"),
        ({"alpha_pattern": {"(": 1}}, "pattern that is none"),
        ({"use_dora": True}, r"has the parts \['a', 'b'\]"),
    ],
)
def test_other_kinds_are_refused_with_the_way_out(tiny_model, change, says, tmp_path):
    model, directory, _, _ = tiny_model("llama")
    saved(model, tmp_path, directory, **TARGETS)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=says) as refusal:
        load.load(str(tmp_path))
    assert "merge_and_unload" in str(refusal.value) or "pattern" in says


@pytest.mark.parametrize(
    ("family", "embed"), [("llama", "embed_tokens"), ("nemotron_h", "embeddings")]
)
def test_a_new_embedding_parts_it_from_the_head(family, embed, tmp_path):
    """The head keeps the values of the base, whatever a family calls the embedding."""
    base, record = DecoderConfig(5, 4, 8, 1, 2, 1, 2, family=family), hf_config.find(family)
    old, new = np.zeros((5, 4), np.float32), np.ones((5, 4), np.float32)
    name = f"model.{embed}.weight"
    adapter = peft_merge.Adapter(tmp_path, {}, {name: {"whole": new}})
    assert not peft_merge.config(adapter, base, record).tie_embeddings
    tensors = {name: Slice(old.shape, "F32", lambda rows: old[rows])}
    merged = peft_merge.merge(adapter, base, tensors, record)
    np.testing.assert_array_equal(merged[name][:], new)
    np.testing.assert_array_equal(merged["lm_head.weight"][:], old)
    both = adapter._replace(changed={**adapter.changed, "lm_head.weight": {"whole": new}})
    assert peft_merge.config(both, base, record).tie_embeddings
    assert peft_merge.merge(both, base, tensors, record).keys() == {name}


@pytest.mark.parity
def test_an_adapter_of_another_base_is_refused(tiny_model, tmp_path):
    import safetensors.numpy

    model, directory, _, _ = tiny_model("llama")
    saved(model, tmp_path, directory, **TARGETS)
    file = tmp_path / "adapter_model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    name = next(name for name in tensors if "lora_B" in name)
    safetensors.numpy.save_file(tensors | {name: tensors[name][:-1]}, file)
    with pytest.raises(ValueError, match=r"of the shape .* the base has .*merge_and_unload"):
        load.load(str(tmp_path))
    extra = {"base_model.model.extra.lora_A.weight": np.ones(2)}
    safetensors.numpy.save_file(tensors | extra, file)
    with pytest.raises(ValueError, match=r"no tensors \['extra\.weight'\].*merge_and_unload"):
        load.load(str(tmp_path))
