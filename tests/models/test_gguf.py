"""GGUF files written here as llama.cpp's converter writes them, and models that come in parts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tempfile
import time
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import gguf_file
from jaxrl.data.text import tokenizers
from jaxrl.models import catalog, decoder, load
from jaxrl.models.checkpoints import gguf as ours
from jaxrl.models.config import DecoderConfig

LLAMA = DecoderConfig(
    vocab_size=11,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=64,
    tie_embeddings=False,
)
GEMMA = dataclasses.replace(
    LLAMA,
    family="gemma3_text",
    num_layers=6,
    tie_embeddings=True,
    norm_offset=1.0,
    post_norm=True,
    qk_norm="head",
    activation="gelu_tanh",
    embed_scale=32**0.5,
    attention_scale=8**-0.5,
    sliding_window=5,
    local_layers=(True,) * 5 + (False,),
    local_rope_theta=1e4,
    rope_theta=1e6,
)


def _permute(weight, heads):
    """As convert_hf_to_gguf.py does for Llama's queries and keys."""
    out, inputs = weight.shape
    return weight.reshape(heads, 2, out // heads // 2, inputs).swapaxes(1, 2).reshape(out, inputs)


def _tensors(config, params):
    llama = config.family == "llama"
    layers, d = jax.device_get(params["layers"]), config.hidden_size
    tensors = {"token_embd": params["embed"], "output_norm": params["norm"]["weight"]}
    if "head" in params:
        tensors["output"] = params["head"]
    for i in range(config.num_layers):
        a, m = ({k: v for k, v in layers[part].items()} for part in ("attention", "mlp"))
        q, k = (a[n][i].reshape(d, -1).T for n in "qk")
        tensors |= {
            f"blk.{i}.attn_norm": layers["attention_norm"]["weight"][i],
            f"blk.{i}.attn_q": _permute(q, config.num_heads) if llama else q,
            f"blk.{i}.attn_k": _permute(k, config.num_kv_heads) if llama else k,
            f"blk.{i}.attn_v": a["v"][i].reshape(d, -1).T,
            f"blk.{i}.attn_output": a["o"][i].reshape(-1, d).T,
            f"blk.{i}.ffn_norm": layers["mlp_norm"]["weight"][i],
            f"blk.{i}.ffn_gate": m["gate"][i].T,
            f"blk.{i}.ffn_up": m["up"][i].T,
            f"blk.{i}.ffn_down": m["down"][i].T,
        }
        if not llama:
            tensors |= {
                f"blk.{i}.attn_q_norm": a["q_norm"]["weight"][i],
                f"blk.{i}.attn_k_norm": a["k_norm"]["weight"][i],
                f"blk.{i}.post_attention_norm": layers["attention_post_norm"]["weight"][i],
                f"blk.{i}.post_ffw_norm": layers["mlp_post_norm"]["weight"][i],
            }
    plus = 0.0 if llama else 1.0
    return {n: np.asarray(v) + (plus if n.endswith("norm") else 0) for n, v in tensors.items()}


def _write(path, config, tensors, kind=gguf.GGMLQuantizationType.F32):
    writer = gguf.GGUFWriter(path, "llama" if config.family == "llama" else "gemma3")
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    writer.add_token_list([str(i) for i in range(config.vocab_size)])
    for name, value in tensors.items():
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _random(config):
    params = decoder.init(config, jax.random.key(0))
    keys = iter(jax.random.split(jax.random.key(1), 50))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), params)


@pytest.mark.exact("weights and config of a GGUF file are read back to 2e-7")
@pytest.mark.parametrize(
    "config", [LLAMA, pytest.param(GEMMA, marks=pytest.mark.broad)], ids=["llama", "gemma3"]
)
def test_weights_and_config(config, tmp_path):
    params = _random(config)
    path = _write(tmp_path / "a.gguf", config, _tensors(config, params))
    got_config, got = load.load(str(path))
    assert got_config == load.read_config(str(path)) == config
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-7), got, params)


def test_quantised_tensors(tmp_path):
    params = _random(LLAMA)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = _write(tmp_path / "a.gguf", LLAMA, _tensors(LLAMA, params), kind)
    got = ours.load(path)[1]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(params), strict=True):
        assert np.abs(a - b).max() < np.abs(b).max() / 127


@pytest.mark.broad
@pytest.mark.exact("weights from the cache equal those that were dequantised")
def test_a_file_is_read_and_dequantised_once(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "SMALLEST", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept, kind = tmp_path / "cache/jaxrl/gguf", gguf.GGMLQuantizationType.Q8_0
    path = _write(tmp_path / "a.gguf", LLAMA, _tensors(LLAMA, _random(LLAMA)), kind)
    first = {dtype: ours.load(path, dtype=dtype) for dtype in ("float32", "bfloat16")}
    with monkeypatch.context() as broken:
        broken.setattr(gguf_file, "_Reader", None)  # nothing may open the file again
        for dtype, (config, params) in first.items():
            again, got = ours.load(path, dtype=dtype)
            assert again == config
            jax.tree.map(np.testing.assert_array_equal, got, params)
            assert all(jax.tree.leaves(jax.tree.map(lambda a, b: a.dtype == b.dtype, got, params)))
    assert len(list(kept.iterdir())) == 2  # the header and the weights

    quantized = ours.load(path, quantized="int8")[1]
    monkeypatch.setattr(gguf_file, "SMALLEST", 1 << 40)  # without the cache
    for dtype, (_, params) in first.items():
        jax.tree.map(np.testing.assert_array_equal, ours.load(path, dtype=dtype)[1], params)
    jax.tree.map(np.testing.assert_array_equal, ours.load(path, quantized="int8")[1], quantized)

    monkeypatch.setattr(gguf_file, "SMALLEST", 0)
    other = jax.tree.map(lambda x: x + 1, _random(LLAMA))
    _write(path, LLAMA, _tensors(LLAMA, other), kind)  # another file of the same name
    assert np.abs(ours.load(path)[1]["embed"] - other["embed"]).max() < 0.1
    monkeypatch.setattr(gguf_file, "CACHED_BYTES", 1)
    gguf_file.cached(path, "more", lambda partial: partial.write_text("x"))
    assert [file.name.rpartition("-")[2] for file in kept.iterdir()] == ["more"]


def test_a_cache_that_cannot_be_written_is_gone_without(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "SMALLEST", 0)
    (tmp_path / "cache").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    params = _random(LLAMA)
    got = ours.load(_write(tmp_path / "a.gguf", LLAMA, _tensors(LLAMA, params)))[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-7), got, params)


def test_lengths_that_the_file_cannot_hold(tmp_path):
    """Of arrays, texts, keys, and numbers of entries: refused at once, whatever they claim."""
    sound = _write(tmp_path / "a.gguf", LLAMA, _tensors(LLAMA, _random(LLAMA))).read_bytes()
    tokens = sound.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    places = {
        "tensors": 8, "entries": 16, "first key": 24, "array": tokens + 8, "text": tokens + 16
    }  # fmt: skip
    start = time.monotonic()
    for place in places.values():
        for length in (2**20, 2**31, 2**40, 2**62, 2**64 - 1):
            broken = bytearray(sound)
            broken[place : place + 8] = length.to_bytes(8, "little")
            (tmp_path / "b.gguf").write_bytes(broken)
            with pytest.raises(ValueError, match=r"b\.gguf is not a sound GGUF file"):
                gguf_file.open_file(tmp_path / "b.gguf")
    nested = bytearray(sound)
    nested[tokens + 4 : tokens + 8] = (9).to_bytes(4, "little")
    (tmp_path / "b.gguf").write_bytes(nested)
    with pytest.raises(ValueError, match="no arrays of arrays"):
        gguf_file.open_file(tmp_path / "b.gguf")
    assert time.monotonic() - start < 30
    for read in (ours.load, tokenizers.load):  # weights and vocabulary by the same reader
        with pytest.raises(ValueError, match="no arrays of arrays"):
            read(tmp_path / "b.gguf")
    assert gguf_file.open_file(tmp_path / "a.gguf").tensors


@given(st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=8)), min_size=1))
@settings(deadline=5000, max_examples=60)
def test_a_file_is_read_or_refused(changes):
    with tempfile.TemporaryDirectory() as directory:
        path = _write(Path(directory) / "a.gguf", LLAMA, {"output": np.zeros((11, 32))})
        broken = bytearray(path.read_bytes())
        for place, put in changes:
            broken[place : place + len(put)] = put
        path.write_bytes(broken)
        with contextlib.suppress(ValueError):
            gguf_file.open_file(path)


def test_tensors_must_fit(tmp_path):
    tensors = _tensors(LLAMA, _random(LLAMA))
    tensors["blk.0.attn_gate"] = tensors.pop("output_norm")
    path = _write(tmp_path / "a.gguf", LLAMA, tensors)
    with pytest.raises(ValueError, match=r"missing tensors \['output_norm.weight'\]; .*attn_gate"):
        ours.load(path)


def test_architectures_we_do_not_read(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture='mamba' is not read"):
        load.load(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(
            (key, None, f"{key} is missing")
            for key in (
                *("general.architecture", "tokenizer.ggml.tokens", "llama.block_count"),
                *("llama.attention.head_count", "llama.context_length"),
            )
        ),
        ("llama.attention.head_count", 0, "llama.attention.head_count=0: at least 1"),
        ("llama.attention.head_count", [4, 4], r"head_count=\[4, 4\]: a number is needed"),
        ("llama.attention.head_count", "4", "head_count='4': a number is needed"),
        ("llama.attention.head_count_kv", ["2"], r"head_count_kv=\['2'\]: numbers are needed"),
        ("llama.block_count", [2], r"llama.block_count=\[2\]: a number is needed"),
        ("llama.rope.freq_base", "high", "llama.rope.freq_base='high': a number is needed"),
        ("llama.rope.scaling.type", 3, "llama.rope.scaling.type=3: a text is needed"),
        ("llama.attention.sliding_window", "5", "sliding_window='5': a number is needed"),
        ("tokenizer.ggml.tokens", 11, "object of type 'int' has no len"),
    ],
)
def test_unsound_metadata(tmp_path, monkeypatch, key, value, message):
    path = _write(tmp_path / "a.gguf", LLAMA, {})
    head = gguf_file.header(path)
    fields = {k: v for k, v in head.fields.items() if k != key}
    fields |= {} if value is None else {key: value}
    monkeypatch.setattr(ours, "header", lambda path: head._replace(fields=fields))
    with pytest.raises(ValueError, match=rf"a\.gguf is not a sound GGUF file: .*{message}"):
        ours.read_config(path)


@pytest.mark.exact("a model that is packaged in parts is joined to the file of its hash")
def test_models_in_parts_are_joined_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for i, text in enumerate(("first ", "second")):
        (tmp_path / f"jaxrl_part{i}").mkdir()
        (tmp_path / f"jaxrl_part{i}" / "__init__.py").write_text("raise AssertionError('imported')")
        (tmp_path / f"jaxrl_part{i}" / "part").write_text(text)
    parts = tuple((f"jaxrl_part{i}", "part") for i in range(2))
    digest = hashlib.sha256(b"first second").hexdigest()
    good = catalog.Packaged(parts, "pip install it", "none", digest)
    monkeypatch.setattr(catalog, "PACKAGED", {"good": good})
    path = catalog.locate("good")
    assert path.read_text() == "first second" and path.suffix == ".gguf"
    assert catalog.locate("good") == path and list(path.parent.iterdir()) == [path]

    bad = dataclasses.replace(good, sha256="0" * 64)
    away = dataclasses.replace(good, parts=(("jaxrl_absent", "part"), *parts))
    monkeypatch.setattr(catalog, "PACKAGED", {"bad": bad, "away": away})
    with pytest.raises(ValueError, match="join to sha256"):
        catalog.locate("bad")
    with pytest.raises(ModuleNotFoundError, match="needs package 'jaxrl_absent': pip install it"):
        catalog.locate("away")
