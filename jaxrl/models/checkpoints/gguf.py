"""Weights from GGUF files: dequantised, renamed and laid out as ours."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from jaxrl.gguf_file import Header, cached, header, open_file
from jaxrl.models.checkpoints.forms.gguf_architectures import (
    LAYER,
    NEUTRAL,
    OPTIONAL,
    OUTSIDE,
    ROUTED,
    check_router,
    find,
    find_written,
    scaling,
)
from jaxrl.models.checkpoints.forms.gguf_families import (
    LOCAL_BASE,
    PATTERN,
    READ,
    SCALE,
    WINDOW,
    by_layer,
    number,
)
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings, assemble, places, put

KEPT_BYTES = 2 << 30
"""Of the parameters of a model, as float32, up to which they are kept dequantised."""

_LISTS = ("feed_forward_length", "attention.head_count_kv", PATTERN, "rope.dimension_sections")
"""Metadata that may have a number of each layer, or of each section."""


class _Metadata(dict[str, Any]):
    """Metadata of an architecture, and which of them were looked at."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        value = super().__getitem__(key)
        if key == "rope.scaling.type":
            if not isinstance(value, str):
                raise TypeError(f"{key}={value!r}: a text is needed")
        elif isinstance(value, list) and key in _LISTS:
            if not all(isinstance(entry, int | float) for entry in value):
                raise TypeError(f"{key}={value!r}: numbers are needed")
        elif not isinstance(value, int | float):
            raise TypeError(f"{key}={value!r}: a number is needed")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        if key not in self:
            return default
        return self[key]

    def check(self) -> None:
        """Refuse what changes the decoder and was not looked at.

        Raises:
          ValueError: of a value that is not one of `NEUTRAL`.
        """
        base = self.get("rope.freq_base", 10_000.0)
        for key in sorted(NEUTRAL.keys() & (self.keys() - self.read)):
            value, values = self[key], NEUTRAL[key]
            if (
                value in values
                or (key == WINDOW and value >= self["context_length"])
                or (key == PATTERN and isinstance(value, list) and not any(value))
                or (key == LOCAL_BASE and value == base)
            ):
                continue
            raise ValueError(
                f"{key}={value!r} is not read of this architecture; it is supported with "
                f"{' or '.join(map(str, values))}"
            )


def read_config(path: str | Path) -> DecoderConfig:
    """The decoder that a file's metadata describes.

    Raises:
      ValueError: an unsound file, or an architecture, a scaling of RoPE or other metadata that we
        do not read.
    """
    head = header(path)
    prefix = ""
    try:
        arch = head.fields["general.architecture"]
        meta = _architecture_metadata(head, arch)
        record = find(arch, meta)
        vocab_size = len(head.fields["tokenizer.ggml.tokens"])
        prefix = f"{arch}."
        names = [name for name in record.tables if name in head.tensors]
        present = open_file(path).tensors if names else []
        tables = {tensor.name: tensor.data for tensor in present if tensor.name in names}
        return describe(arch, meta, vocab_size, head.tensors, tables)
    except KeyError as error:
        reason = f"{prefix}{error.args[0]} is missing"
    except (ArithmeticError, IndexError, TypeError) as error:
        reason = f"{prefix}{error}"
    raise ValueError(f"{path} is not a sound GGUF file: {reason}")


def _architecture_metadata(head: Header, arch: str) -> dict[str, Any]:
    prefix = f"{arch}."
    return {
        key.removeprefix(prefix): value
        for key, value in head.fields.items()
        if key.startswith(prefix)
    }


def describe(
    arch: str,
    meta: Mapping[str, Any],
    vocab_size: int,
    names: Container[str],
    tables: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> DecoderConfig:
    """The decoder of an architecture.

    Args:
      arch: `general.architecture`.
      meta: its metadata.
      vocab_size: number of tokens.
      names: of the file's tensors.
      tables: float32 [rope_dim / 2] each, those of `Architecture.tables` that the file has.

    Raises:
      ArithmeticError, KeyError, TypeError: metadata that no decoder can have.
      ValueError: an architecture, a scaling of RoPE or other metadata that we do not read.
    """
    record, meta = find(arch, meta), _Metadata(meta)
    for key in ("attention.head_count", "block_count", "embedding_length"):
        if meta[key] < 1:
            raise ArithmeticError(f"{key}={meta[key]}: at least 1 is needed")
    heads = meta["attention.head_count"]
    total, kv_heads = meta["block_count"], meta.get("attention.head_count_kv", heads)
    rope, family = scaling(meta, tables), record.family
    if rope and family in SCALE:
        rope = SCALE[family](meta, rope)
    common = {
        "vocab_size": vocab_size,
        "hidden_size": meta["embedding_length"],
        "intermediate_size": max(by_layer(meta["feed_forward_length"], total)),
        "num_layers": total,
        "num_heads": heads,
        "num_kv_heads": max(by_layer(kv_heads, total)),
        "head_dim": meta.get("attention.key_length", meta["embedding_length"] // heads),
        "family": family,
        "max_positions": meta["context_length"],
        "rope_theta": number(meta.get("rope.freq_base", 10_000.0)),
        "rope_scaling": rope,
        "norm_eps": number(meta["attention.layer_norm_rms_epsilon"]),
        "tie_embeddings": OUTSIDE["head"] not in names,
    }
    for field in record.optional:
        tensor, *values = OPTIONAL[field]
        common[field] = values[tensor not in names]
    if rotated := meta.get("rope.dimension_count"):
        common["rope_fraction"] = rotated / common["head_dim"]
    fields = READ[family](meta) if family in READ else {}
    config = DecoderConfig(**(common | fields))
    keys = common["head_dim"]
    if (values := meta.get("attention.value_length", keys)) != keys:
        raise ValueError(
            f"attention.value_length={values}: values are read with the size of keys, {keys}"
        )
    if config.experts:
        check_router(meta, config.experts)
    meta.check()
    return config


def tensors(config: DecoderConfig) -> dict[str, list[str]]:
    """Our parameters by path, and the tensor of each layer, or of the whole."""
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    record = find_written(config)
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


def rows(config: DecoderConfig) -> dict[str, slice]:
    """Which outputs of its tensor each of our parameters is, for those that share one."""
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    ends, slices = dict[str, int](), dict[str, slice]()
    names = tensors(config)
    shared = collections.Counter(group[0] for group in names.values())
    for ours, (tensor, *_) in names.items():
        if shared[tensor] > 1:
            start = ends.get(tensor, 0)
            ends[tensor] = start + file_shape(config, ours, leaves[ours])[0]
            slices[ours] = slice(start, ends[tensor])
    return slices


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
    return rotated and find_written(config).permuted


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
    head = header(path)
    arch = head.fields["general.architecture"]
    later = range(config.num_layers, head.fields[f"{arch}.block_count"])
    beyond = tuple(f"blk.{layer}." for layer in later)  # that predict further tokens
    present = {
        name
        for name in head.tensors.keys() - set(find_written(config).tables)
        if not name.startswith(beyond)
    }
    missing, unmapped = sorted(expected - present), sorted(present - expected)
    if missing or unmapped:
        raise ValueError(f"{path}: missing tensors {missing}; tensors with no place {unmapped}")


def _layers(path: str | Path, config: DecoderConfig) -> Callable[[str], Iterator[np.ndarray]]:
    """What yields the layers of one of our parameters, dequantised, as float32."""
    present = {tensor.name: tensor for tensor in open_file(path).tensors}
    leaves = {"/".join(ours): leaf for ours, leaf in layout(config).items()}
    names, parts = tensors(config), rows(config)

    def read(ours: str) -> Iterator[np.ndarray]:
        for name in names[ours]:
            stored = present[name].data[parts.get(ours, slice(None))]
            value = gguf.quants.dequantize(stored, present[name].tensor_type)
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
