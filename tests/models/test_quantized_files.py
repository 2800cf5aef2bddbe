"""Checkpoints in fp8 and of compressed-tensors, read as the numbers that they stand for."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as files

from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.checkpoints.forms import quantized_files
from jaxrl.models.config import DecoderConfig, Experts
from tests.models import tiny

CONFIG = DecoderConfig(
    vocab_size=11, hidden_size=24, intermediate_size=40, num_layers=2, num_heads=2,
    num_kv_heads=1, head_dim=8, tie_embeddings=False, family="qwen3_moe", qk_norm="head",
    experts=Experts(4, 2, 16, dense_layers=1),
)  # fmt: skip
FUSED = dataclasses.replace(
    CONFIG, family="phi3", num_kv_heads=1, head_dim=12, qk_norm="none", experts=None
)


def write_safetensors(path, tensors):
    """As the library, which writes no 8-bit floats from NumPy: (type, array) by name."""
    header, parts, at = {}, [], 0
    for name, (kind, value) in tensors.items():
        data = np.ascontiguousarray(value).tobytes()
        header[name] = {
            "dtype": kind, "shape": list(value.shape), "data_offsets": [at, at + len(data)],
        }  # fmt: skip
        parts, at = [*parts, data], at + len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def spread(scale, shape, block):
    """Scales of blocks, one for each entry."""
    high, wide = block
    return np.repeat(np.repeat(scale, high, 0), wide, 1)[: shape[0], : shape[1]]


def grid(shape, block):
    random = np.random.default_rng(3)
    counts = [-(-length // size) for length, size in zip(shape, block, strict=True)]
    return random.uniform(0.5, 2, counts).astype(np.float32)


def fp8(value, scale, block, kind="F8_E4M3"):
    """Codes, and the values that they stand for."""
    dtype = {"F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2}[kind]
    factors = spread(scale, value.shape, block)
    codes = (value / factors).astype(dtype)
    return codes, codes.astype(np.float32) * factors


def integers(value, scale, block, bits):
    """Codes, the values that they stand for, and the factor of each entry."""
    factors = spread(scale, value.shape, block) / np.float32(2 ** (bits - 1))
    codes = np.clip(np.round(value / factors), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.astype(np.int8), codes.astype(np.float32) * factors, factors


def pack(codes, bits):
    """Columns of unsigned codes in int32, the first lowest; the last is filled up."""
    each = 32 // bits
    codes = codes.astype(np.int64) + 2 ** (bits - 1)
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each)))
    codes = codes.reshape(len(codes), -1, each)
    words = sum(codes[:, :, i] << (bits * i) for i in range(each))
    return words.astype(np.uint32).view(np.int32)


def quantised(name, value, form):
    """The tensors of a matrix in a form, and the values that they stand for."""
    stem = name.removesuffix(".weight")
    whole, row = value.shape, (1, value.shape[1])
    match form:
        case "fp8":
            scale = grid(whole, (16, 9))
            codes, exact = fp8(value, scale, (16, 9))
            return {
                name: ("F8_E4M3", codes),
                f"{stem}.weight_scale_inv": ("F32", scale),
            }, exact
        case "fp8-tensor":
            scale = grid(whole, whole)
            codes, exact = fp8(value, scale, whole, "F8_E5M2")
            return {
                name: ("F8_E5M2", codes),
                f"{stem}.weight_scale_inv": ("F32", scale.reshape(())),
                f"{stem}.input_scale": ("F32", scale.reshape(())),
            }, exact
        case "float-quantized":
            scale = grid(whole, row).astype(jnp.bfloat16)
            codes, exact = fp8(value, scale.astype(np.float32), row)
            return {name: ("F8_E4M3", codes), f"{stem}.weight_scale": ("BF16", scale)}, exact
        case "int-quantized":
            codes, exact, factors = integers(value, grid(whole, row), row, 8)
            return {name: ("I8", codes), f"{stem}.weight_scale": ("F32", factors[:, 0])}, exact
    codes, exact, factors = integers(value, grid(whole, (1, 8)), (1, 8), 4)
    return {
        f"{stem}.weight_packed": ("I32", pack(codes, 4)),
        f"{stem}.weight_scale": ("F32", factors[:, ::8]),
        f"{stem}.weight_shape": ("I64", np.array(whole, np.int64)),
    }, exact


QUANTIZATION = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [16, 9]},
    "fp8-tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "float-quantized": {"strategy": "channel", "num_bits": 8, "type": "float"},
    "int-quantized": {"strategy": "channel", "num_bits": 8, "type": "int"},
    "pack-quantized": {"strategy": "group", "group_size": 8, "num_bits": 4, "type": "int"},
}


def checkpoint(directory, config, form):
    """A quantised checkpoint, beside a plain one of the numbers that it stands for."""
    plain, other = directory / "plain", directory / "quantised"
    huggingface.save(plain, config, decoder.init(config, jax.random.key(0)))
    tensors = files.load_file(plain / "model.safetensors")
    written, exact = {}, {}
    for name, value in tensors.items():
        if name.endswith("proj.weight"):
            more, exact[name] = quantised(name, value, form)
            written |= more
        else:
            written[name], exact[name] = ("F32", value), value
    other.mkdir()
    write_safetensors(other / "model.safetensors", written)
    files.save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((plain / "config.json").read_text())
    quantization = QUANTIZATION[form]
    if "quant_method" not in quantization:
        groups = {"group_0": {"targets": ["Linear"], "weights": quantization}}
        quantization = {
            "quant_method": "compressed-tensors", "format": form, "config_groups": groups,
        }  # fmt: skip
    raw["quantization_config"] = quantization
    (other / "config.json").write_text(json.dumps(raw))


@pytest.mark.sample(1, broad=2)
@pytest.mark.exact("weights in fp8 and of compressed-tensors: their numbers to the last bit")
@pytest.mark.parametrize("form", QUANTIZATION)
@pytest.mark.parametrize("config", [CONFIG, FUSED], ids=["experts", "fused"])
def test_quantised_weights_are_read_as_their_numbers(form, config, tmp_path):
    """Blocks that do not divide a matrix, scales of rows and of all, parts of a fused matrix."""
    checkpoint(tmp_path, config, form)
    again, params = huggingface.load(tmp_path / "quantised")
    assert again == config
    expected = huggingface.load(tmp_path / "plain")[1]
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    half = huggingface.load(tmp_path / "quantised", dtype="bfloat16")[1]
    assert half["layers"]["attention"]["q"].dtype == jnp.bfloat16
    quantized = huggingface.load(tmp_path / "quantised", quantized="nf4")[1]
    plain = huggingface.load(tmp_path / "plain", quantized="nf4")[1]
    jax.tree.map(np.testing.assert_array_equal, quantized, plain)


def _with(directory, **changes):
    raw = json.loads((directory / "config.json").read_text())
    raw["quantization_config"] |= changes
    (directory / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "nvfp4-pack-quantized"}, "format='nvfp4-pack-quantized'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity='sparse-24-bitmask'"),
        (
            {"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": None}}},
            "weights of 2 kinds",
        ),
    ],
)
def test_other_forms_are_refused(changes, message, tmp_path):
    checkpoint(tmp_path, CONFIG, "pack-quantized")
    _with(tmp_path / "quantised", **changes)
    with pytest.raises(ValueError, match=message):
        huggingface.load(tmp_path / "quantised")


def test_blocks_that_do_not_fit_are_refused(tmp_path):
    checkpoint(tmp_path, CONFIG, "fp8")
    _with(tmp_path / "quantised", weight_block_size=[8, 8])
    with pytest.raises(ValueError, match=r"scales of shape .* do not fit a matrix of"):
        huggingface.load(tmp_path / "quantised")


def test_scales_that_config_json_does_not_name_are_unmapped(tmp_path):
    checkpoint(tmp_path, CONFIG, "fp8")
    raw = json.loads((tmp_path / "quantised" / "config.json").read_text())
    del raw["quantization_config"]
    (tmp_path / "quantised" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=r"unmapped tensors .*weight_scale_inv"):
        huggingface.load(tmp_path / "quantised")


@pytest.mark.parity
def test_fp8_as_transformers_reads_it(tmp_path):
    """Its logits from the quantised files, which it dequantises itself.

    Blocks divide the matrices: transformers 5.24 takes others to have blocks of equal size.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(
        CONFIG, family="qwen3", experts=None, hidden_size=144, intermediate_size=288,
        num_heads=9, num_kv_heads=9, head_dim=16,
    )  # fmt: skip
    checkpoint(tmp_path, config, "fp8")
    auto, tokens = transformers.AutoModelForCausalLM, torch.arange(2, 9)[None]
    how = transformers.FineGrainedFP8Config(weight_block_size=(16, 9), dequantize=True)
    models = (
        auto.from_pretrained(tmp_path / "plain", dtype="float32"),
        auto.from_pretrained(tmp_path / "quantised", quantization_config=how, dtype="float32"),
    )
    with torch.no_grad():
        exact, theirs = (model(tokens).logits.numpy() for model in models)
    np.testing.assert_allclose(theirs, exact, atol=1e-5)


@pytest.mark.exact("experts in MXFP4 are read as the numbers that transformers reads")
@pytest.mark.parity
def test_mxfp4(tmp_path):
    """Dequantised while they are read, and exported in bf16 as files that transformers opens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.integrations import mxfp4

    plain, packed, out = tmp_path / "plain", tmp_path / "packed", tmp_path / "out"
    arguments = {**tiny.VARIANTS["gpt-oss"][1], "intermediate_size": 64, "swiglu_limit": 7.0}
    tiny.make("GptOssConfig", arguments, plain)
    tensors = files.load_file(plain / "model.safetensors")
    blocks = dict(tensors)
    rng = np.random.default_rng(0)
    for name, value in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = value.shape
            codes = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
            scales = rng.integers(120, 126, codes.shape[:3], np.uint8)
            blocks |= {f"{name}_blocks": codes, f"{name}_scales": scales}
            del blocks[name]
            read = mxfp4.convert_moe_packed_tensors(
                torch.tensor(codes), torch.tensor(scales), dtype=torch.float32
            )
            tensors[name] = read.numpy()
    files.save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    packed.mkdir()
    files.save_file(blocks, packed / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(
        json.dumps({**raw, "quantization_config": {"quant_method": "mxfp4"}})
    )
    config, params = huggingface.load(packed)
    expected_config, expected = huggingface.load(plain)
    assert config == expected_config
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    narrow = huggingface.load(packed, dtype="bfloat16")[1]["layers"]["mlp"]["gate"]
    assert narrow.dtype == "bfloat16"  # 4 bits and a power of 2 lose nothing
    np.testing.assert_array_equal(narrow.astype("float32"), expected["layers"]["mlp"]["gate"])

    huggingface.save(out, config, params, dtype="bfloat16")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        out, dtype="float32", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    read = model.model.layers[0].mlp.experts.gate_up_proj.detach().numpy()
    np.testing.assert_array_equal(read, tensors["model.layers.0.mlp.experts.gate_up_proj"])


def test_mxfp4_without_its_scales_is_refused():
    codes = quantized_files.Slice((2, 4, 1, 16), "U8", lambda rows: np.zeros((2, 4, 1, 16)))
    with pytest.raises(ValueError, match=r"lacks experts\.down_proj_scales that fit"):
        quantized_files.dequantize({"quant_method": "mxfp4"}, {"experts.down_proj_blocks": codes})
