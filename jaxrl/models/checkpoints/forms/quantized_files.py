"""Quantised tensors in Hugging Face files, read as the numbers that they stand for."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.models.checkpoints.families import Raw

_FP8: Mapping[str, Any] = {"F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2}
"""Types that NumPy does not have, by the name that safetensors gives them."""

_MXFP4 = "mxfp4"

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What the codes of MXFP4 stand for (Open Compute Project, Microscaling Formats, 2023)."""

_FORMATS = ("float-quantized", "naive-quantized", "int-quantized", "pack-quantized")
"""Values of compressed-tensors' `format` that are read."""

_UNUSED = ("input_scale", "activation_scale", "k_scale", "v_scale")
"""Ends of the names of scales of activations and caches, which are not quantised here."""

_REMEDY = (
    "name the checkpoint in bf16, or load it in transformers with dequantisation and save it again"
)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A tensor that is computed from a file when indexed, as safetensors' own slices."""

    shape: tuple[int, ...]
    kind: str
    """Its type, by safetensors' name."""
    read: Callable[[slice], np.ndarray]
    """Rows of the tensor."""

    def get_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.shape

    def get_dtype(self) -> str:
        """The type of the tensor, by safetensors' name."""
        return self.kind

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.read(rows)


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the values of a safetensors file start, and what its head says of each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return 8 + length, json.loads(file.read(length))


def open_fp8(path: Path) -> dict[str, Slice]:
    """The 8-bit floats of a safetensors file by name, which its library does not read as NumPy."""
    start, header = read_header(path)
    fields = {name: field for name, field in header.items() if field.get("dtype") in _FP8}
    if not fields:
        return {}
    mapped = np.memmap(path, np.uint8, "r", offset=start)

    def decode(field: Raw) -> Slice:
        start, stop = field["data_offsets"]
        values = mapped[start:stop].view(_FP8[field["dtype"]]).reshape(field["shape"])
        return Slice(tuple(field["shape"]), field["dtype"], lambda rows: np.asarray(values[rows]))

    return {name: decode(field) for name, field in fields.items()}


def check(quantization: Raw | None, path: Path) -> None:
    """Refuse a kind of quantisation that is not read.

    Args:
      quantization: `quantization_config` of config.json.
      path: of config.json, for the message.

    Raises:
      ValueError: it is of such a kind.
    """
    if not quantization:
        return
    method, form = quantization.get("quant_method"), quantization.get("format")
    sparse = (quantization.get("sparsity_config") or {}).get("format", "dense")
    compressed = method == "compressed-tensors"
    if method in ("fp8", _MXFP4) or (compressed and form in _FORMATS and sparse == "dense"):
        return
    detail = f" with format={form!r}, sparsity={sparse!r}" if compressed else ""
    raise ValueError(
        f"{path}: quantization_config.quant_method={method!r}{detail} is not read, only 'fp8', "
        f"'mxfp4' and 'compressed-tensors' of {list(_FORMATS)}; {_REMEDY}"
    )


def dequantize(quantization: Raw, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors by the names that they have unquantised, and without their scales.

    Args:
      quantization: `quantization_config` of config.json, of a kind that `check` lets pass.
      tensors: of the files, by name.

    Raises:
      ValueError: weights of several kinds, with zero points, or with their columns in another
        order; or scales that do not fit their weights.
    """
    if quantization.get("quant_method") == _MXFP4:
        return _read_mxfp4(tensors)
    plain = dict(tensors)
    block, bits = _described(quantization)
    for name in tensors:
        stem, _, end = name.rpartition(".")
        if end in ("weight_scale", "weight_scale_inv"):
            scale = _grid(plain.pop(name))
            packed = plain.pop(f"{stem}.weight_packed", None)
            if packed is not None:
                shape = [int(size) for size in plain.pop(f"{stem}.weight_shape")[:]]
                codes = _unpacked(packed, shape, bits)
            else:
                codes = plain[f"{stem}.weight"]
            plain[f"{stem}.weight"] = _scaled(codes, scale, block)
        elif end in ("weight_zero_point", "weight_g_idx"):
            raise ValueError(f"the tensor {name} is not read; {_REMEDY}")
        elif end in _UNUSED:
            del plain[name]
    return plain


def _read_mxfp4(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Experts in MXFP4, as gpt-oss has them, by the names of the tensors [experts, inputs, outputs]
    that they stand for.

    A block is 32 inputs of an output, two to a byte, the first lowest; its scale is a power of 2.

    Raises:
      ValueError: blocks without scales of their shape.
    """
    plain = dict(tensors)
    for name in tensors:
        if not name.endswith("_blocks"):
            continue
        stem = name.removesuffix("_blocks")
        blocks, scales = plain.pop(name), plain.pop(f"{stem}_scales", None)
        shape = tuple(blocks.get_shape())
        if scales is None or tuple(scales.get_shape()) != shape[:-1] or len(shape) != 4:
            raise ValueError(f"{name} of shape {shape} lacks {stem}_scales that fit; {_REMEDY}")
        plain[stem] = _mxfp4(blocks, scales, shape)
    return plain


def _mxfp4(blocks: Any, scales: Any, shape: tuple[int, ...]) -> Slice:
    experts, outputs, count, size = shape

    def read(part: slice) -> np.ndarray:
        codes = np.asarray(blocks[part])
        values = _FP4[np.stack([codes & 15, codes >> 4], axis=-1)]
        exponents = np.asarray(scales[part]).astype(np.int32) - 127
        values = np.ldexp(values, exponents[..., None, None])
        return values.reshape(len(codes), outputs, -1).swapaxes(1, 2)

    return Slice((experts, 2 * count * size, outputs), "F32", read)


def _described(quantization: Raw) -> tuple[tuple[int, int] | None, int]:
    """Rows and columns that share a scale, if config.json says so, and the bits of a weight.

    Raises:
      ValueError: weights of several kinds.
    """
    groups = [group.get("weights") for group in quantization.get("config_groups", {}).values()]
    if any(group != groups[0] for group in groups):
        raise ValueError(
            f"quantization_config.config_groups holds weights of {len(groups)} kinds; {_REMEDY}"
        )
    weights = groups[0] if groups and groups[0] else {}
    block = quantization.get("weight_block_size") or weights.get("block_structure")
    if block is None and (size := weights.get("group_size")) and size > 0:
        block = (1, size)
    return block and (int(block[0]), int(block[1])), weights.get("num_bits", 8)


def _grid(scale: Any) -> np.ndarray:
    """A tensor of scales as float32 [rows, columns]: those of a vector are of rows."""
    values = np.asarray(scale[...], np.float32)
    return values.reshape(len(values) if values.ndim else 1, -1)


def _scaled(codes: Any, scale: np.ndarray, block: tuple[int, int] | None) -> Slice:
    """A matrix of which each block of `codes` has a scale."""
    rows, columns = codes.get_shape()
    high = _share(rows, scale.shape[0], block and block[0])
    wide = _share(columns, scale.shape[1], block and block[1])
    if (math.ceil(rows / high), math.ceil(columns / wide)) != scale.shape:
        raise ValueError(
            f"scales of shape {scale.shape} do not fit a matrix of {rows} x {columns} in blocks of "
            f"{high} x {wide}; {_REMEDY}"
        )

    def read(part: slice) -> np.ndarray:
        index = np.arange(rows)[part] // high
        factors = np.repeat(scale[index], wide, axis=1)[:, :columns]
        return np.asarray(codes[part]).astype(np.float32) * factors

    return Slice((rows, columns), "F32", read)


def _share(length: int, count: int, size: int | None) -> int:
    """How many of `length` rows or columns have a scale in common, of which there are `count`."""
    if count in (1, length):
        return length // count
    return math.ceil(length / count) if size is None else size


def _unpacked(packed: Any, shape: list[int], bits: int) -> Slice:
    """Integers of few bits, of which each int32 holds several columns, the first lowest."""
    codes_per_word = 32 // bits

    def read(rows: slice) -> np.ndarray:
        words = np.asarray(packed[rows]).view(np.uint32)
        shifts = np.arange(codes_per_word, dtype=np.uint32) * np.uint32(bits)
        codes = (words[:, :, None] >> shifts) & np.uint32(2**bits - 1)
        codes = codes.reshape(len(words), -1)[:, : shape[1]]
        return codes.astype(np.int32) - 2 ** (bits - 1)

    return Slice((shape[0], shape[1]), "I32", read)
