"""Weights from GGUF files: dequantised, renamed and laid out as ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from jaxrl.gguf_file import cached, header, open_file
from jaxrl.models.checkpoints.forms.gguf_architectures import (
    ARCHITECTURES,
    BIASES,
    LAYER,
    OUTSIDE,
    ROUTED,
    Architecture,
    Meta,
    by_layer,
    number,
    scaling,
)
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings, assemble, places, put

KEPT_BYTES = 2 << 30
"""Of the parameters of a model, as float32, up to which they are kept dequantised."""

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies, one for each: how Llama 3's scaling is kept."""


def read_config(path: str | Path) -> DecoderConfig:
    """The decoder that a file's metadata describes.

    Raises:
      ValueError: an unsound file, an architecture or a scaling of RoPE that we do not read.
    """
    head = header(path)
    arch = head.fields["general.architecture"]
    if arch not in ARCHITECTURES:
        raise ValueError(
            f"general.architecture={arch!r} is not read; supported: {', '.join(ARCHITECTURES)}"
        )
    meta = {
        key.removeprefix(f"{arch}."): value
        for key, value in head.fields.items()
        if key.startswith(f"{arch}.")
    }
    factors = None
    if FREQUENCIES in head.tensors:
        factors = next(t.data for t in open_file(path).tensors if t.name == FREQUENCIES)
    vocab_size = len(head.fields["tokenizer.ggml.tokens"])
    return describe(arch, meta, vocab_size, head.tensors, factors)


def describe(
    arch: str,
    meta: Meta,
    vocab_size: int,
    names: Mapping[str, Any],
    factors: np.ndarray | None = None,
) -> DecoderConfig:
    """The decoder of an architecture.

    Args:
      arch: key of `ARCHITECTURES`.
      meta: its metadata.
      vocab_size: number of tokens.
      names: of the file's tensors.
      factors: float32 [rope_dim / 2], the tensor `FREQUENCIES`.

    Raises:
      ValueError: a scaling of RoPE that we do not read.
    """
    heads, record = meta["attention.head_count"], ARCHITECTURES[arch]
    total, kv_heads = meta["block_count"], meta.get("attention.head_count_kv", heads)
    common = {
        "vocab_size": vocab_size,
        "hidden_size": meta["embedding_length"],
        "intermediate_size": max(by_layer(meta["feed_forward_length"], total)),
        "num_layers": total,
        "num_heads": heads,
        "num_kv_heads": max(by_layer(kv_heads, total)),
        "head_dim": meta.get("attention.key_length", meta["embedding_length"] // heads),
        "family": record.family,
        "max_positions": meta["context_length"],
        "rope_theta": number(meta.get("rope.freq_base", 10_000.0)),
        "rope_scaling": scaling(meta, factors),
        "norm_eps": number(meta["attention.layer_norm_rms_epsilon"]),
        "tie_embeddings": OUTSIDE["head"] not in names,
    }
    common |= {name: BIASES[name] in names for name in record.biases}
    if rotated := meta.get("rope.dimension_count"):
        common["rope_fraction"] = rotated / common["head_dim"]
    return DecoderConfig(**(common | record.fields(meta)))


def tensors(config: DecoderConfig) -> dict[str, list[str]]:
    """Our parameters by path, and the tensor of each layer, or of the whole."""
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    record = _record(config.family)
    outside = {**OUTSIDE, **record.outside}
    tensor_names: dict[str, list[str]] = {
        ours: [outside[ours]] for ours, leaf in leaves.items() if not leaf.batch and ours in outside
    }
    for layer in range(config.num_layers):
        stack, _ = config.place(layer)
        names = {**LAYER, **(ROUTED if config.routes(layer) else {}), **record.names}
        for inner, tensor in names.items():
            if f"{stack}/{inner}" in leaves:
                tensor_names.setdefault(f"{stack}/{inner}", []).append(f"blk.{layer}.{tensor}")
    if nameless := sorted(leaves.keys() - tensor_names.keys()):
        raise ValueError(f"GGUF has no tensor for {nameless[0]} of a {config.family} decoder")
    return tensor_names


def _record(family: str) -> Architecture:
    return next(record for record in ARCHITECTURES.values() if record.family == family)


def to_ours(config: DecoderConfig, path: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """One layer of a parameter from its tensor in the file.

    Args:
      config: the decoder.
      path: of our parameter.
      leaf: the parameter.
      value: as `file_shape` says.
    """
    if path.endswith("norm/weight"):
        return (value - config.norm_offset).reshape(_shape(leaf))  # the file adds it beforehand
    if path.endswith("mixer/a_log"):
        value = np.log(-value)
    if _is_permuted(config, path):
        # llama.cpp rotates neighbouring pairs and permutes rows to suit; we rotate halves
        heads, size = _heads(leaf)
        turned = value.reshape(heads, size // 2, 2, -1).swapaxes(1, 2)
        value = turned.reshape(heads * size, *value.shape[1:])
    if not leaf.inputs:
        return value.reshape(_shape(leaf))
    return value.swapaxes(-1, -2).reshape(_shape(leaf))


def to_file(config: DecoderConfig, path: str, leaf: Leaf, value: np.ndarray) -> np.ndarray:
    """What `to_ours` undoes: the tensor in the file from one layer of a parameter, as float32."""
    value = np.asarray(value, np.float32)
    if path.endswith("norm/weight"):
        value = value + np.float32(config.norm_offset)
    if path.endswith("mixer/a_log"):
        value = -np.exp(value)
    if leaf.inputs:
        *experts, outputs, inputs = file_shape(config, path, leaf)
        value = value.reshape(*experts, inputs, outputs).swapaxes(-1, -2)
    else:
        value = value.reshape(file_shape(config, path, leaf))
    if _is_permuted(config, path):
        heads, size = _heads(leaf)
        turned = value.reshape(heads, 2, size // 2, -1).swapaxes(1, 2)
        value = turned.reshape(heads * size, *value.shape[1:])
    return np.ascontiguousarray(value)


def file_shape(config: DecoderConfig, path: str, leaf: Leaf) -> tuple[int, ...]:
    """Of the tensor in the file: [outputs, inputs], [size], or the same of all experts.

    The taps of a convolution are [channels, taps], and what Mamba-2 has of each head or of each
    group [heads, 1] and [groups, size], but for the bias of its strides.
    """
    inner, experts = leaf.shape[leaf.batch :], leaf.shape[1 : leaf.batch]
    size = math.prod(inner)
    if leaf.inputs:
        inputs = math.prod(inner[: leaf.inputs])
        return (*experts, size // inputs, inputs)
    if "vocab" in leaf.axes:
        return inner
    if "taps" in leaf.axes:
        return inner[0], inner[-1]
    if path.endswith(("mixer/a_log", "mixer/skip")):
        return size, 1
    if config.mamba and path.endswith("mixer/norm/weight"):
        return config.mamba.groups, size // config.mamba.groups
    return (*experts, size)


def _is_permuted(config: DecoderConfig, path: str) -> bool:
    rotated = path.partition("/")[2].startswith(("attention/q", "attention/k"))
    return rotated and _record(config.family).permuted


def _heads(leaf: Leaf) -> tuple[int, int]:
    """Heads and their size, the last two axes of queries and keys."""
    return leaf.shape[-2:]


def _shape(leaf: Leaf) -> tuple[int, ...]:
    """Of one layer."""
    return leaf.shape[1:] if leaf.batch else leaf.shape


def load(
    path: str | Path,
    *,
    shardings: Shardings | None = None,
    dtype: str = "float32",
    quantized: Kind | None = None,
) -> tuple[DecoderConfig, Params]:
    """Config and parameters of a GGUF file of any quantisation `gguf` can undo.

    Beside the parameters, the host holds one tensor of one layer at a time. A model that takes at
    most `KEPT_BYTES` in float32 is dequantised once, into the cache of `gguf_file.cached`, and held
    whole while that is written.

    Args:
      path: of the file.
      shardings: where the parameters go; None: the default device.
      dtype: of the matrices that are not quantised; vectors and routers are float32.
      quantized: quantise the matrices of the layers anew, as `quantize.quantize` does.

    Raises:
      ValueError: tensors are missing or have no place; the message lists them.
    """
    config = read_config(path)
    leaves = layout(config)
    _check_names(path, config)
    where = places(config, shardings)
    cache_path = None
    if 4 * sum(math.prod(leaf.shape) for leaf in leaves.values()) <= KEPT_BYTES:
        cache_path = cached(
            path, "float32.safetensors", lambda partial: _keep(path, config, partial)
        )
    if cache_path is None:
        layers = _layers(path, config)
        flat = {
            ours: assemble(leaf, layers("/".join(ours)), where[ours], dtype, quantized)
            for ours, leaf in leaves.items()
        }
    else:
        with safetensors.safe_open(cache_path, framework="numpy") as file:
            flat = {
                ours: put(leaf, file.get_tensor("/".join(ours)), where[ours], dtype, quantized)
                for ours, leaf in leaves.items()
            }
    return config, nnx.traversals.unflatten_mapping(flat)


def _check_names(path: str | Path, config: DecoderConfig) -> None:
    """Refuse a file whose tensors are not those of the decoder."""
    expected = {name for group in tensors(config).values() for name in group}
    present = header(path).tensors.keys() - {FREQUENCIES}
    missing, unmapped = sorted(expected - present), sorted(present - expected)
    if missing or unmapped:
        raise ValueError(f"{path}: missing tensors {missing}; tensors with no place {unmapped}")


def _layers(path: str | Path, config: DecoderConfig) -> Callable[[str], Iterator[np.ndarray]]:
    """What yields the layers of one of our parameters, dequantised, as float32."""
    present = {tensor.name: tensor for tensor in open_file(path).tensors}
    leaves = {"/".join(ours): leaf for ours, leaf in layout(config).items()}
    names = tensors(config)

    def read(ours: str) -> Iterator[np.ndarray]:
        for name in names[ours]:
            value = gguf.quants.dequantize(present[name].data, present[name].tensor_type)
            yield to_ours(config, ours, leaves[ours], value)

    return read


def _keep(path: str | Path, config: DecoderConfig, partial: Path) -> None:
    """Write all parameters as float32, by our names."""
    layers, arrays = _layers(path, config), dict[str, np.ndarray]()
    for ours, leaf in layout(config).items():
        value = np.empty(leaf.shape, np.float32)
        for row, layer in enumerate(layers("/".join(ours))):
            value[row if leaf.batch else ...] = layer
        arrays["/".join(ours)] = value
    try:
        safetensors.numpy.save_file(arrays, partial)
    except safetensors.SafetensorError as error:  # of a full disk, say
        raise OSError(str(error)) from error
