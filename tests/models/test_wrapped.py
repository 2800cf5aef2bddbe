"""Models that read pictures: the text model inside equals transformers, and the rest stays."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from safetensors import numpy as files

from jaxrl.models import decoder, load, lora
from jaxrl.models.checkpoints import hf_config, huggingface, peft
from jaxrl.models.checkpoints.forms import stacked, wrapped
from jaxrl.models.lora import LoraConfig
from tests import broad_except
from tests.models import test_config_mutations, wrapped_tiny
from tests.models.test_families import _logits, _oracle, _rows

pytestmark = pytest.mark.parity

SAMPLE = 10


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """A torch model, its directory, and the config and parameters of the text model."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    models = {}

    def get(variant):
        if variant not in models:
            directory = tmp_path_factory.mktemp(variant)
            torch_model = wrapped_tiny.make(*wrapped_tiny.VARIANTS[variant], directory)
            models[variant] = torch_model, directory, *load.load(str(directory))
        return models[variant]

    return get


def _tensors(directory):
    tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors |= files.load_file(file)
    return tensors


def _together(config, tensors):
    """The tensors of a file as released, experts in one where the family has them so."""
    groups = stacked.groups(hf_config.find(config.family).stacks, tensors)
    return {
        name: stacked.join(group.stack, [tensors[part] for part in group.names])
        if group.stack
        else tensors[group.names[0]]
        for name, group in groups.items()
    }


def _open(directory):
    import transformers

    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        directory, dtype="float32", attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()


def _ours(config, params, rows):
    @jax.jit
    def run(params):
        hidden = decoder.hidden(
            config, params, rows["tokens"], rows["positions"], rows["visible_until"]
        )
        return _logits(config, params, hidden)

    return np.asarray(run(params))


@pytest.mark.exact("text logits of models that read pictures equal those of transformers to 1e-4")
@pytest.mark.parametrize("variant", wrapped_tiny.VARIANTS)
def test_logits(model_of, variant):
    """Prefill, packed segments, left and right padding, all in one batch."""
    model, _, config, params = model_of(variant)
    rows = _rows()
    rows["tokens"] %= 90  # the rest stands for pictures
    expected, real = _oracle(wrapped_tiny.text_model(model), rows), rows["real"]
    assert np.abs(expected[real]).max() > 1
    np.testing.assert_allclose(_ours(config, params, rows)[real], expected[real], atol=1e-4)


@pytest.mark.sample(3)
@pytest.mark.exact("a model that reads pictures is exported with its tower, bit for bit")
@pytest.mark.parametrize("variant", wrapped_tiny.VARIANTS)
def test_export_keeps_the_tower(model_of, variant, tmp_path):
    """Unchanged parameters give the same bytes; changed ones change the text model alone."""
    _, directory, config, params = model_of(variant)
    same, other = tmp_path / "same", tmp_path / "other"
    huggingface.save(same, config, params, around=directory, max_shard_bytes=20_000)
    assert len(list(same.glob("*.safetensors"))) > 2
    before, after = _together(config, _tensors(directory)), _tensors(same)
    assert before.keys() == after.keys()
    assert all(a.tobytes() == after[k].tobytes() for k, a in before.items())
    assert huggingface.read_config(same) == config
    _open(same)

    trained = jax.tree.map(lambda a: a * 1.1, params)
    huggingface.save(other, config, trained, around=directory, dtype="bfloat16")
    after = _tensors(other)
    tower = wrapped.outside(before)
    assert tower
    assert all(before[k].tobytes() == after[k].tobytes() for k in tower)
    raw = json.loads((other / "config.json").read_text())
    assert (
        raw["vision_config"] == json.loads((directory / "config.json").read_text())["vision_config"]
    )
    rows = _rows()
    rows["tokens"] %= 90
    read = load.load(str(other))
    expected = _oracle(wrapped_tiny.text_model(_open(other)), rows)
    np.testing.assert_allclose(_ours(*read, rows)[rows["real"]], expected[rows["real"]], atol=1e-4)


@pytest.mark.sample(3)
@pytest.mark.exact("adapters of a model that reads pictures give PEFT's logits")
@pytest.mark.parametrize(
    "variant",
    # PEFT has no adapters of single experts
    broad_except(
        ("qwen3-vl",),
        [v for v in wrapped_tiny.VARIANTS if not v.endswith("-moe") and v != "llama4"],
    ),
)
def test_adapters(model_of, variant, tmp_path):
    """PEFT opens them on the whole model, where they leave the tower alone; so do we."""
    theirs = pytest.importorskip("peft")
    _, directory, config, params = model_of(variant)
    how = LoraConfig(rank=2, alpha=8.0, targets=("*/attention/*", "*/mlp/*"))
    adapters = lora.init(jax.random.key(0), config, params, how)
    adapters = jax.tree.map(lambda a: a + 0.05, adapters)
    prefix = wrapped.find(wrapped.read_raw(directory)).prefix
    peft.save(tmp_path, config, adapters, how, base=str(directory), prefix=prefix)
    rows = _rows()
    rows["tokens"] %= 90
    real = rows["real"]
    expected = _ours(config, lora.merge(config, params, adapters, how), rows)[real]
    adapted = theirs.PeftModel.from_pretrained(_open(directory), tmp_path)
    loaded = [name for name, _ in adapted.named_parameters() if "lora_B" in name]
    # a recurrent layer has five projections in place of four, one without keys and values two
    further = sum(config.recurrent_layers) - 2 * config.sharing
    assert len(loaded) == 7 * config.num_layers + further
    np.testing.assert_allclose(_oracle(adapted, rows)[real], expected, atol=1e-4)
    np.testing.assert_allclose(_ours(*load.load(str(tmp_path)), rows)[real], expected, atol=1e-4)
    assert load.around(str(tmp_path)) == directory


@pytest.mark.exact("experts in one tensor are those that lie apart")
def test_experts_in_one_tensor(model_of, tmp_path):
    """As in the files of the Hub; `save_pretrained` of a fresh model writes them apart."""
    _, directory, config, params = model_of("qwen3.5-moe")
    apart = _tensors(directory)
    together = _together(config, apart)
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in together
    assert len(together) < len(apart)
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    files.save_file(together, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path)[1], params)


def test_a_text_model_cut_out_of_another(model_of, tmp_path):
    """`save_pretrained` of the text model alone keeps the names that it was loaded from."""
    _, directory, config, params = model_of("qwen3.5")
    raw = json.loads((directory / "config.json").read_text())
    inner = {**raw["text_config"], "tie_word_embeddings": False}
    assert inner["model_type"] == "qwen3_5_text"
    (tmp_path / "config.json").write_text(json.dumps(inner))
    tensors = _tensors(directory)
    for name in wrapped.outside(tensors):
        del tensors[name]
    assert "model.language_model.norm.weight" in tensors
    files.save_file(tensors, tmp_path / "model.safetensors")
    read_config, read = huggingface.load(tmp_path)
    assert read_config == config
    jax.tree.map(np.testing.assert_array_equal, read, params)


def test_what_predicts_further_tokens_is_kept_as_it_is():
    """Qwen3.5's layers for it lie beside the text model and are not read."""
    tensors = {"mtp.layers.0.mlp.up_proj.weight": 1, "model.visual.x": 2}
    text = {"model.language_model.norm.weight": 3, "lm_head.weight": 4}
    assert set(wrapped.outside(tensors | text)) == set(tensors)


class Sides(test_config_mutations.Sides):
    """Logits of both sides, of a model that reads pictures."""

    def auto(self):
        import transformers

        return transformers.AutoModelForImageTextToText

    def text_model(self, model):
        return wrapped_tiny.text_model(model)


def _check(variant, directory, count):
    """Change keys of the text model's config; returns how many were compared."""
    base = directory / "base"
    wrapped_tiny.make(*wrapped_tiny.VARIANTS[variant], base)
    raw = json.loads((base / "config.json").read_text())
    changes = {
        label: {**raw, "text_config": inner}
        for label, inner in test_config_mutations.mutations(raw["text_config"])
    }
    changes["outer tie"] = {**raw, "tie_word_embeddings": not raw["tie_word_embeddings"]}
    changes["no tie"] = {k: v for k, v in raw.items() if k != "tie_word_embeddings"}
    return test_config_mutations.compare(Sides(base), changes, base, variant, count)


@pytest.mark.sample(3)
@pytest.mark.exact("a changed key of a text_config: the logits of transformers, or a refusal")
@pytest.mark.parametrize("variant", broad_except(("gemma3",), wrapped_tiny.VARIANTS))
def test_a_sample_of_changed_keys(variant, tmp_path):
    pytest.importorskip("transformers")
    assert _check(variant, tmp_path, SAMPLE) > 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", wrapped_tiny.VARIANTS)
def test_every_changed_key(variant, tmp_path):
    pytest.importorskip("transformers")
    assert _check(variant, tmp_path, None) > 20


@pytest.mark.parametrize("variant", ["qwen2-vl", "qwen2.5-vl"])
def test_keys_of_the_text_model_may_stand_beside_those_of_the_tower(model_of, variant):
    """As in the files of the Hub, with their names of a RoPE of several axes."""
    _, directory, config, _ = model_of(variant)
    raw = json.loads((directory / "config.json").read_text())
    inner = raw.pop("text_config")
    rope = inner.pop("rope_parameters")
    axes = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = {**inner, **raw, "rope_theta": rope["rope_theta"], "rope_scaling": axes}
    flat["tie_word_embeddings"] = config.tie_embeddings
    assert hf_config.read(flat) == config


def test_what_is_left_out_is_that_of_the_wrapper():
    """Official Gemma 3 files say five things of their text model."""
    inner = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    transformers = pytest.importorskip("transformers")
    raw = {"model_type": "gemma3", "text_config": inner}
    theirs = transformers.Gemma3Config(text_config=inner).to_dict()
    assert hf_config.read(raw) == hf_config.read(theirs)


def test_a_head_of_its_own_is_read_where_config_json_does_not_say(model_of, tmp_path):
    """Files of the Hub leave the key out where transformers' default is the other."""
    _, directory, config, params = model_of("mistral3")
    raw = json.loads((directory / "config.json").read_text())
    del raw["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").symlink_to(directory / "model.safetensors")
    assert huggingface.read_config(tmp_path) == config
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path)[1], params)


def test_a_wrapper_without_its_text_model_is_refused():
    with pytest.raises(ValueError, match="lacks 'text_config'"):
        hf_config.read({"model_type": "gemma3"})
    capped = {"model_type": "gemma3_text", "final_logit_softcapping": 5.0}
    with pytest.raises(ValueError, match=r"text_config\.final_logit_softcapping=5\.0"):
        hf_config.read({"model_type": "gemma3", "text_config": capped})
    typed = {"model_type": "mistral", "layer_types": ["sliding_attention"]}
    with pytest.raises(ValueError, match=r"text_config\.layer_types=\['sliding_attention'\]"):
        hf_config.read({"model_type": "mistral3", "text_config": typed})
    raw = {"model_type": "mistral3", "text_config": {"model_type": "mamba"}}
    with pytest.raises(ValueError, match="'mamba' is not one of"):
        hf_config.read(raw)
