"""Directories of safetensors: round trips, shards, the mesh, and what must not load."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import subprocess
import sys
import tracemalloc

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors import numpy as files

from jaxrl.models import decoder, load, quantize
from jaxrl.models.checkpoints import hf_config, huggingface, tensor_files
from jaxrl.models.checkpoints.forms import quantized_files, stacked
from jaxrl.models.config import DecoderConfig, Experts, Latent, RopeScaling
from jaxrl.models.mixers import pattern
from tests.models import tiny


def _bytes(directory, stacks=(), joined=(), spellings=()):
    """Experts that lie apart come in one tensor where the family has `stacks` for them, parts of a
    tensor joined, and tensors that have several names by the usual one."""
    tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors |= files.load_file(file)
    for end, usual in dict(spellings).items():
        for name in [name for name in tensors if name.endswith("." + end)]:
            tensors[name.removesuffix(end) + usual] = tensors.pop(name)
    for end, parts in dict(joined).items():
        for name in [name for name in tensors if name.endswith(parts[0])]:
            before = name.removesuffix(parts[0])
            tensors[before + end] = np.concatenate([tensors.pop(before + part) for part in parts])
    for name, group in stacked.groups(stacks, list(tensors)).items():
        if group.stack:
            tensors[name] = stacked.join(group.stack, [tensors.pop(part) for part in group.names])
    return {name: (value.dtype, value.shape, value.tobytes()) for name, value in tensors.items()}


@pytest.mark.sample(24)
@pytest.mark.exact("a Hugging Face directory is read and written to the last bit")
@pytest.mark.parity
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_round_trip_is_bit_equal(tiny_model, variant, tmp_path):
    """HF, ours, HF: the same bytes, in files that transformers loads without a warning."""
    import torch
    import transformers

    model, directory, config, params = tiny_model(variant)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    around = load.around(str(directory))  # the indexer's tensors are copied from there
    huggingface.save(tmp_path, config, params, extra=ids, max_shard_bytes=20_000, around=around)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    family = hf_config.find(config.family)
    spellings = family.spellings if variant == "kimi-linear" else ()
    assert _bytes(tmp_path) == _bytes(directory, family.stacks, family.joined, spellings)
    assert huggingface.read_config(tmp_path) == config

    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    tokens = torch.arange(3, 15)[None]
    saved = again.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(saved[name], tensor), name
    # torch's sums over experts and chunks of a state differ in the last bits on some processors
    with torch.no_grad():
        ours, theirs = again(tokens).logits, model(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


CONFIG = DecoderConfig(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    tie_embeddings=False,
)


@pytest.fixture
def saved(tmp_path):
    params = decoder.init(CONFIG, jax.random.key(0))
    huggingface.save(tmp_path, CONFIG, params)
    return tmp_path, params


@pytest.mark.broad
@pytest.mark.exact("bfloat16 weights are read and written to the last bit")
def test_bf16_files_round_trip(tmp_path, saved):
    rounded = jax.tree.map(lambda a: a.astype("bfloat16"), saved[1])
    first, second = tmp_path / "a", tmp_path / "b"
    huggingface.save(first, CONFIG, rounded, dtype="bfloat16")
    huggingface.save(second, *huggingface.load(first), dtype="bfloat16")
    assert _bytes(first) == _bytes(second)
    assert {str(dtype) for dtype, _, _ in _bytes(first).values()} == {"bfloat16"}


@pytest.mark.broad
def test_decays_of_recurrent_layers_are_never_rounded(tmp_path):
    """As in released files of Qwen3.5."""
    sizes = ("key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
    raw = {**RAW, "model_type": "qwen3_5_text", "full_attention_interval": 2}
    raw |= {"num_key_value_heads": 1, "head_dim": 8}
    config = hf_config.read(raw | {f"linear_{size}": 2 for size in sizes})
    params = decoder.init(config, jax.random.key(0))
    huggingface.save(tmp_path, config, params, dtype="bfloat16", max_shard_bytes=1000)
    written = {name: value[0] for name, value in _bytes(tmp_path).items()}
    exact = {name for name, dtype in written.items() if dtype == np.float32}
    mixer = "model.layers.0.linear_attn"
    assert exact == {f"{mixer}.A_log", f"{mixer}.norm.weight"}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    size = sum(len(value[2]) for value in _bytes(tmp_path).values())
    assert index["metadata"]["total_size"] == size
    read = huggingface.load(tmp_path)[1]
    for stack in filter(pattern.is_stack, params):
        if "mixer" in params[stack]:
            np.testing.assert_array_equal(
                read[stack]["mixer"]["a_log"], params[stack]["mixer"]["a_log"]
            )


def test_what_is_copied_lies_as_it_lay(tmp_path):
    """In one order, whatever that of names in a set is; counts are copied too."""
    names = [f"tower.{letter}" for letter in "hgfedcba"]
    tensors = {name: np.full(3, i, np.int64) for i, name in enumerate(names)}
    tensors["tower.weight"] = np.ones(2, np.float32)
    files.save_file({**tensors, "other": np.ones(2)}, tmp_path / "model.safetensors")
    target = tmp_path / "copy.safetensors"
    assert tensor_files.copy(tmp_path, [*names[::-1], "tower.weight"], target) == 8 * 3 * 8 + 8
    header = quantized_files.read_header(target)[1]
    source = quantized_files.read_header(tmp_path / "model.safetensors")[1]
    assert [n for n in header if n in tensors] == [n for n in source if n in tensors]
    jax.tree.map(np.testing.assert_array_equal, files.load_file(target), tensors)
    files.save_file({"tower.codes": np.ones(2, np.uint8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="of type U8 and is not copied"):
        tensor_files.copy(tmp_path, ["tower.codes"], target)


@pytest.mark.exact("parameters loaded onto a mesh equal those on one device to the last bit")
def test_parameters_go_straight_to_their_shardings(saved):
    directory, params = saved
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))

    def place(config):
        axes = decoder.abstract(config)[1]
        return jax.tree.map(
            lambda names: NamedSharding(
                mesh, PartitionSpec(*("fsdp" if n == "embed" else None for n in names))
            ),
            axes,
            is_leaf=lambda x: isinstance(x, tuple),
        )

    config, got = load.load(str(directory), shardings=place)
    assert config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, got, params)
    same = jax.tree.map(lambda a, s: a.sharding.is_equivalent_to(s, a.ndim), got, place(CONFIG))
    assert all(jax.tree.leaves(same))


@pytest.mark.broad
def test_the_host_holds_one_layer_at_a_time(tmp_path):
    """NumPy and file buffers peak at a few copies of one matrix, not at the model or a stack."""
    config = dataclasses.replace(CONFIG, hidden_size=256, intermediate_size=1024, num_layers=8)
    huggingface.save(tmp_path, config, decoder.init(config, jax.random.key(0)))
    matrix, model = 256 * 1024 * 4, (tmp_path / "model.safetensors").stat().st_size
    tracemalloc.start()
    try:
        huggingface.load(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model > 24 * matrix
    assert peak < 6 * matrix


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact(
    "weights quantised while loaded equal those quantised afterwards to the last bit"
)
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantised_while_loaded(saved, kind):
    directory, params = saved
    got = huggingface.load(directory, quantized=kind)[1]
    jax.tree.map(np.testing.assert_array_equal, got, quantize.quantize(CONFIG, params, kind))


@pytest.mark.broad
def test_quantised_as_loaded_the_host_never_holds_the_model(tmp_path):
    """Sixteen layers more add to the peak what they take quantised, in processes of their own."""
    wide = dataclasses.replace(CONFIG, hidden_size=256, intermediate_size=4096)
    peaks, sizes = [], []
    for depth in (2, 18):
        config = dataclasses.replace(wide, num_layers=depth)
        params, path = decoder.init(config, jax.random.key(0)), tmp_path / str(depth)
        huggingface.save(path, config, params)
        small = jax.eval_shape(functools.partial(quantize.quantize, config, kind="int8"), params)
        sizes.append(
            [sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(t)) for t in (params, small)]
        )
        command = [sys.executable, "-m", "tests.models.peak_memory", str(path), "int8"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
        peaks.append(int(done.stdout))
    (model, small), more = np.subtract(sizes[1], sizes[0]), peaks[1] - peaks[0]
    assert small < model / 3
    assert more < 1.5 * small < model / 2


def _edit(directory, change):
    tensors = files.load_file(directory / "model.safetensors")
    change(tensors)
    files.save_file(tensors, directory / "model.safetensors")


def test_missing_and_unmapped_tensors_are_listed(saved):
    def change(tensors):
        tensors["model.layers.1.mlp.fancy.weight"] = tensors.pop("model.norm.weight")
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:, :4].copy()

    _edit(saved[0], change)
    with pytest.raises(ValueError) as error:
        huggingface.load(saved[0])
    for part in (
        "missing tensors ['model.norm.weight']",
        "unmapped tensors ['model.layers.1.mlp.fancy.weight']",
        "lm_head.weight: (11, 4), not (11, 8)",
    ):
        assert part in str(error.value)


def test_a_message_lists_ten_names_at_most(saved):
    def change(tensors):
        tensors |= {f"model.layers.{i}.extra": np.ones(1, np.float32) for i in range(5000)}

    _edit(saved[0], change)
    with pytest.raises(ValueError, match=r"extra'\] and 4990 more; wrong") as error:
        huggingface.load(saved[0])
    assert len(str(error.value)) < 1000


def test_without_an_index_the_single_file_is_read_alone(saved):
    """As transformers reads it, whatever lies beside it and whatever its name."""
    directory, params = saved
    tensors = files.load_file(directory / "model.safetensors")
    for name in ("consolidated", "a", "other"):
        changed = {key: value + 1 for key, value in tensors.items()}
        files.save_file(changed, directory / f"{name}.safetensors")
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(directory)[1], params)


def test_two_files_with_a_tensor_of_one_name(saved):
    directory, _ = saved
    (directory / "model.safetensors").rename(directory / "one.safetensors")
    shutil.copy(directory / "one.safetensors", directory / "two.safetensors")
    with pytest.raises(ValueError, match=r"one\.safetensors and two\.safetensors both hold"):
        huggingface.load(directory)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers_are_no_weights(saved, dtype):
    def change(tensors):
        name = "model.layers.0.mlp.gate_proj.weight"
        tensors[name] = tensors[name].astype(dtype)

    _edit(saved[0], change)
    with pytest.raises(ValueError, match=r"no weights as they are.*layers\.0\.mlp\.gate_proj"):
        huggingface.load(saved[0])


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "modelopt", None])
def test_quantised_checkpoints_are_refused_in_one_sentence(saved, method):
    directory, _ = saved
    raw = json.loads((directory / "config.json").read_text())
    raw["quantization_config"] = {"quant_method": method, "bits": 4}
    (directory / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=f"quant_method={method!r} is not read.*bf16") as error:
        load.load(str(directory))
    assert len(str(error.value)) < 400


def test_a_family_renames_its_experts(tmp_path):
    config = dataclasses.replace(CONFIG, family="qwen3_moe", experts=Experts(4, 2, 16))
    names = {
        "mlp/router": "block.gate.weight",
        "mlp/gate": "block.experts.{expert}.w1.weight",
        "mlp/up": "block.experts.{expert}.w3.weight",
        "mlp/down": "block.experts.{expert}.w2.weight",
    }
    family = dataclasses.replace(hf_config.find("qwen3_moe"), routed=names, fixed={})
    params = decoder.init(config, jax.random.key(0))
    huggingface.save(tmp_path, config, params, family=family)
    assert "model.layers.1.block.experts.3.w2.weight" in _bytes(tmp_path)
    again = huggingface.load(tmp_path, family=family)[1]
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_a_repeated_tied_embedding_must_be_the_embedding(saved):
    directory, _ = saved
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | {"tie_word_embeddings": True}))
    with pytest.raises(ValueError, match="differs from the embedding"):
        huggingface.load(directory)

    def repeat(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    _edit(directory, repeat)
    assert "head" not in huggingface.load(directory)[1]


def test_a_repeated_embedding_of_another_name(tmp_path):
    """Nemotron-H calls the embedding otherwise than Llama."""
    sizes = {"num_key_value_heads": 1, "head_dim": 4, "mamba_num_heads": 2, "mamba_head_dim": 4}
    raw = {**RAW, **sizes, "model_type": "nemotron_h", "n_groups": 1, "ssm_state_size": 3}
    config = hf_config.read({**raw, "hybrid_override_pattern": "M*-", "tie_word_embeddings": True})
    params = decoder.init(config, jax.random.key(0))
    huggingface.save(tmp_path, config, params)

    def repeat(tensors):
        tensors["lm_head.weight"] = tensors["backbone.embeddings.weight"]

    _edit(tmp_path, repeat)
    again = huggingface.load(tmp_path)[1]
    jax.tree.map(np.testing.assert_array_equal, again, params)

    def change(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1

    _edit(tmp_path, change)
    with pytest.raises(ValueError, match=r"differs from the embedding; set tie_word_embeddings"):
        huggingface.load(tmp_path)


def test_derived_buffers_are_left_out(saved):
    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)

    _edit(saved[0], change)
    huggingface.load(saved[0])


RAW = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def test_what_an_old_config_leaves_out():
    config = hf_config.read(RAW)
    assert (config.num_kv_heads, config.head_dim, config.tie_embeddings) == (2, 4, False)


def test_yarn_as_qwen_documents_it():
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = hf_config.read({**RAW, "model_type": "qwen2", "rope_scaling": scaling})
    assert config.rope_scaling == RopeScaling("yarn", factor=4.0, original_max_positions=32768)


def test_a_window_longer_than_the_context_is_none():
    config = hf_config.read({**RAW, "model_type": "mistral", "sliding_window": 4096})
    assert config.local_layers == ()


@pytest.mark.parametrize(
    ("family", "scoring"), [("deepseek_v2", "softmax"), ("deepseek_v3", "sigmoid")]
)
def test_how_experts_are_scored_is_written(family, scoring):
    """Engines such as vLLM take softmax where a config does not say."""
    config = dataclasses.replace(
        CONFIG,
        family=family,
        num_kv_heads=2,
        head_dim=6,
        latent=Latent(kv_rank=8, q_rank=None, nope_dim=4, rope_dim=2, v_dim=4),
        experts=Experts(4, 2, 16, shared_size=16, scoring=scoring),
    )
    assert hf_config.write(config, "float32")["scoring_func"] == scoring


@pytest.mark.parity
def test_a_model_without_the_scaling_that_its_family_has(tmp_path):
    """A file of gpt-oss that says nothing of positions stands for yarn."""
    transformers = pytest.importorskip("transformers")
    name, arguments = tiny.VARIANTS["gpt-oss"]
    scaled = hf_config.read(getattr(transformers, name)(**arguments).to_dict())
    config = dataclasses.replace(scaled, rope_scaling=None, rope_theta=500.0)
    raw = hf_config.write(config, "float32")
    assert hf_config.read(raw) == config
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert (theirs["rope_type"], theirs["rope_theta"]) == ("default", 500.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type='bert' is not one of"),
        ({"hidden_act": "relu2"}, "hidden_act='relu2'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
        ({"model_type": "qwen3_moe", "num_experts": 4}, "lacks 'num_experts_per_tok'"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3"),
    ],
)
def test_unsupported_configs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        hf_config.read({**RAW, **change})


def test_a_directory_without_weights(saved):
    directory, _ = saved
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no safetensors"):
        huggingface.load(directory)
    shutil.rmtree(directory)
    with pytest.raises(FileNotFoundError, match="neither a path nor one of"):
        load.load(str(directory))
