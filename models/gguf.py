"""Weights from GGUF files: dequantised, renamed and laid out as ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.config import DecoderConfig
from models.decoder import Params

Layout = Callable[[np.ndarray], np.ndarray]


def read_config(reader: gguf.GGUFReader) -> DecoderConfig:
    """The decoder that the file's metadata describes.

    Raises:
      ValueError: an architecture we do not read.
    """
    arch = reader.fields["general.architecture"].contents()
    if arch != "llama":
        raise ValueError(f"general.architecture={arch!r} is not read; supported: 'llama'")
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
        norm_eps=meta["attention.layer_norm_rms_epsilon"],
        tie_embeddings=not any(t.name == "output.weight" for t in reader.tensors),
    )


def _layouts(config: DecoderConfig) -> tuple[dict[str, tuple[str, Layout]], ...]:
    """GGUF name to (our name, [out, in] matrix to our layout): outside and inside the layers."""
    n, k, h, d = config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size

    def same(w: np.ndarray) -> np.ndarray:
        return w

    def rotated(heads: int) -> Layout:
        # llama.cpp rotates neighbouring pairs and permutes rows to suit; we rotate halves
        def layout(w: np.ndarray) -> np.ndarray:
            return (
                w.reshape(heads, h // 2, 2, d)
                .swapaxes(1, 2)
                .reshape(heads, h, d)
                .transpose(2, 0, 1)
            )

        return layout

    outside = {"token_embd": ("embed", same), "output_norm": ("norm/weight", same)}
    if not config.tie_embeddings:
        outside["output"] = ("head", same)
    inside = {
        "attn_norm": ("attention_norm/weight", same),
        "attn_q": ("attention/q", rotated(n)),
        "attn_k": ("attention/k", rotated(k)),
        "attn_v": ("attention/v", lambda w: w.reshape(k, h, d).transpose(2, 0, 1)),
        "attn_output": ("attention/o", lambda w: w.T.reshape(n, h, d)),
        "ffn_norm": ("mlp_norm/weight", same),
        "ffn_gate": ("mlp/gate", np.transpose),
        "ffn_up": ("mlp/up", np.transpose),
        "ffn_down": ("mlp/down", np.transpose),
    }
    return outside, inside


def load(path: str | Path) -> tuple[DecoderConfig, Params]:
    """Config and fp32 parameters of a GGUF file of any quantisation `gguf` can undo.

    Raises:
      ValueError: tensors are missing or have no place; the message lists them.
    """
    reader = gguf.GGUFReader(str(path))
    config = read_config(reader)
    outside, inside = _layouts(config)
    tensors = {t.name.removesuffix(".weight"): t for t in reader.tensors}
    expected = set(outside) | {f"blk.{i}.{n}" for i in range(config.num_layers) for n in inside}
    missing, unmapped = sorted(expected - tensors.keys()), sorted(tensors.keys() - expected)
    if missing or unmapped:
        raise ValueError(f"{path}: missing tensors {missing}; tensors with no place {unmapped}")

    def read(name: str, layout: Layout) -> np.ndarray:
        tensor = tensors[name]
        return layout(gguf.quants.dequantize(tensor.data, tensor.tensor_type))

    flat = {ours: jnp.asarray(read(name, layout)) for name, (ours, layout) in outside.items()}
    for name, (ours, layout) in inside.items():
        layers = [read(f"blk.{i}.{name}", layout) for i in range(config.num_layers)]
        flat[f"layers/{ours}"] = jnp.asarray(np.stack(layers))
    return config, nnx.traversals.unflatten_mapping(flat, sep="/")
