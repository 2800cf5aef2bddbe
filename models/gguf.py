"""Weights from GGUF files: dequantised, renamed and laid out as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from flax import nnx

from jaxrl.gguf_file import open_file
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings, assemble, places

_OUTSIDE = {"embed": "token_embd", "norm/weight": "output_norm", "head": "output"}

_LAYER = {
    "attention_norm/weight": "attn_norm",
    "attention/q": "attn_q",
    "attention/k": "attn_k",
    "attention/v": "attn_v",
    "attention/o": "attn_output",
    "attention/q_norm/weight": "attn_q_norm",
    "attention/k_norm/weight": "attn_k_norm",
    "attention_post_norm/weight": "post_attention_norm",
    "mlp_norm/weight": "ffn_norm",
    "mlp/gate": "ffn_gate",
    "mlp/up": "ffn_up",
    "mlp/down": "ffn_down",
    "mlp_post_norm/weight": "post_ffw_norm",
}
"""Our parameters in a layer, and their tensors under `blk.{layer}.`."""


def read_config(reader: gguf.GGUFReader) -> DecoderConfig:
    """The decoder that the file's metadata describes.

    Raises:
      ValueError: an architecture we do not read, or a scaled RoPE.
    """
    arch = reader.fields["general.architecture"].contents()
    if arch not in ("llama", "gemma3"):
        raise ValueError(f"general.architecture={arch!r} is not read; supported: llama, gemma3")
    meta = {
        key.removeprefix(f"{arch}."): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{arch}.")
    }
    scaled = [key for key in meta if key.startswith("rope.scaling")]
    if scaled:
        raise ValueError(f"{scaled} describe a scaled RoPE, which is not read from GGUF")
    heads = meta["attention.head_count"]
    return DecoderConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=meta["embedding_length"],
        intermediate_size=meta["feed_forward_length"],
        num_layers=meta["block_count"],
        num_heads=heads,
        num_kv_heads=meta.get("attention.head_count_kv", heads),
        head_dim=meta.get("attention.key_length", meta["embedding_length"] // heads),
        max_positions=meta["context_length"],
        rope_theta=meta.get("rope.freq_base", 10_000.0),
        # kept as float32 in the file: 1e-05, not 9.999999747378752e-06
        norm_eps=float(str(np.float32(meta["attention.layer_norm_rms_epsilon"]))),
        tie_embeddings=not any(t.name == "output.weight" for t in reader.tensors),
        **(_gemma3(meta) if arch == "gemma3" else {}),
    )


def _gemma3(meta: dict[str, Any]) -> dict[str, Any]:
    """What the format leaves to the architecture's name."""
    layers, size, heads = (
        meta[key] for key in ("block_count", "embedding_length", "attention.head_count")
    )
    largest = layers == 62  # the 27B alone scales by its width
    return {
        "family": "gemma3_text",
        "norm_offset": 1.0,
        "post_norm": True,
        "qk_norm": "head",
        "activation": "gelu_tanh",
        "embed_scale": size**0.5,
        "attention_scale": (size / heads if largest else meta["attention.key_length"]) ** -0.5,
        "sliding_window": meta["attention.sliding_window"],
        "local_layers": tuple(bool((i + 1) % 6) for i in range(layers)),
        "local_rope_theta": 10_000.0,
    }


def _to_ours(config: DecoderConfig, path: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
    if path.endswith("norm/weight"):
        return value - config.norm_offset  # the file adds it beforehand
    if not leaf.inputs:
        return value
    shape = leaf.shape[leaf.batch :]
    if config.family == "llama" and path in ("layers/attention/q", "layers/attention/k"):
        # llama.cpp rotates neighbouring pairs and permutes rows to suit; we rotate halves
        heads, size = shape[1:]
        value = value.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(heads * size, -1)
    return value.T.reshape(shape)


def load(
    path: str | Path,
    *,
    shardings: Shardings | None = None,
    dtype: str = "float32",
    quantized: Kind | None = None,
) -> tuple[DecoderConfig, Params]:
    """Config and parameters of a GGUF file of any quantisation `gguf` can undo.

    Beside the parameters, the host holds one tensor of one layer at a time.

    Args:
      path: of the file.
      shardings: where the parameters go; None: the default device.
      dtype: of the matrices that are not quantised; vectors and routers are float32.
      quantized: quantise the matrices of the layers anew, as `quantize.quantize` does.

    Raises:
      ValueError: tensors are missing or have no place; the message lists them.
    """
    reader = open_file(path)
    config = read_config(reader)
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    names = {
        ours: [f"blk.{i}.{_LAYER[ours.removeprefix('layers/')]}" for i in range(config.num_layers)]
        if leaf.batch
        else [_OUTSIDE[ours]]
        for ours, leaf in leaves.items()
    }
    tensors = {t.name.removesuffix(".weight"): t for t in reader.tensors}
    expected = {name for group in names.values() for name in group}
    missing, unmapped = sorted(expected - tensors.keys()), sorted(tensors.keys() - expected)
    if missing or unmapped:
        raise ValueError(f"{path}: missing tensors {missing}; tensors with no place {unmapped}")

    def read(ours: str, name: str) -> np.ndarray:
        tensor = tensors[name]
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return _to_ours(config, ours, leaves[ours], value)

    where = places(config, shardings)
    flat = {
        path: assemble(
            leaf,
            (read("/".join(path), name) for name in names["/".join(path)]),
            where[path],
            dtype,
            quantized,
        )
        for path, leaf in layout(config).items()
    }
    return config, nnx.traversals.unflatten_mapping(flat)
