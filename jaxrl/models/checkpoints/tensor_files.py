"""The tensors of a Hugging Face directory: which files hold them, and whether they are weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors

from jaxrl.models.checkpoints.forms import quantized_files

INDEX = "model.safetensors.index.json"
"""The file that says which file of several holds a tensor."""

SINGLE = "model.safetensors"
"""The file that holds all tensors where there is no index."""

_FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of tensors that are weights as they are."""

_COPIED = (*_FLOATS, "I64", "BOOL")
"""Types of tensors that no quantisation uses: weights as they are, and counts such as positions."""

_METADATA = "__metadata__"
"""What the head of a safetensors file says beside its tensors."""

_PIECE = 1 << 24
"""Bytes that are copied at a time."""

_LISTED = 10
"""How many names a message lists at most."""


def open_tensors(directory: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Every tensor by name, as a slice that reads from a memory-mapped file when indexed.

    Args:
      directory: of safetensors files. With an index, the files that it names are read; without
        one, `model.safetensors` alone, as transformers does; without that, all of them.
      stack: closes the files.

    Raises:
      FileNotFoundError: no safetensors files.
      ValueError: two files hold a tensor of the same name.
    """
    tensors: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name in _names(directory):
        file = stack.enter_context(safetensors.safe_open(directory / name, "numpy"))
        fp8_tensors = quantized_files.open_fp8(directory / name)
        for key in file.keys():  # noqa: SIM118
            if key in origin:
                raise ValueError(
                    f"{directory}: {origin[key]} and {name} both hold the tensor {key}; keep one "
                    f"of the files, or add {INDEX}"
                )
            tensors[key] = fp8_tensors[key] if key in fp8_tensors else file.get_slice(key)
            origin[key] = name
    return tensors


def _names(directory: Path) -> list[str]:
    index = directory / INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            inside = all(Path(n).name == n and n.endswith(".safetensors") for n in names)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise ValueError(f"{index} has no weight_map that can be read: {error}") from error
        if not inside:
            raise ValueError(f"{index}: its weight_map names more than safetensors beside it")
        return names
    if (directory / SINGLE).exists():
        return [SINGLE]
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise FileNotFoundError(f"{directory} holds no safetensors files; convert the weights")
    return names


def shard_name(number: int, count: int) -> str:
    """What the safetensors file of this number is called, of `count` in all, from 1."""
    return SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def tensor_names(directory: Path) -> list[str]:
    """The name of every tensor of a Hugging Face directory.

    Raises:
      FileNotFoundError, ValueError: as `open_tensors`.
    """
    headers = [quantized_files.read_header(directory / name)[1] for name in _names(directory)]
    return [name for header in headers for name in header if name != _METADATA]


def copy(directory: Path, names: Collection[str], target: Path) -> int:
    """Write tensors of a Hugging Face directory to one file, byte for byte.

    Args:
      directory: of safetensors files.
      names: of the tensors.
      target: the safetensors file to write.

    Returns:
      Their size in bytes.

    Raises:
      ValueError: one of them is quantised.
    """
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    sources, size, chosen = list[tuple[Path, int, int]](), 0, set(names)
    for name in _names(directory):
        start, fields = quantized_files.read_header(directory / name)
        for key in fields:
            if key == _METADATA or key not in chosen:
                continue
            if fields[key]["dtype"] not in _COPIED:
                raise ValueError(
                    f"{directory}: the tensor {key} is of type {fields[key]['dtype']} and is not "
                    "copied; begin from the checkpoint in bf16"
                )
            first, last = fields[key]["data_offsets"]
            header[key] = {**fields[key], "data_offsets": [size, size + last - first]}
            sources.append((directory / name, start + first, last - first))
            size += last - first
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for path, start, length in sources:
            with path.open("rb") as file:
                file.seek(start)
                for begin in range(0, length, _PIECE):
                    out.write(file.read(min(_PIECE, length - begin)))
    return size


def check_types(tensors: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse tensors that are no floating-point weights.

    Raises:
      ValueError: some of the tensors of these names are not.
    """
    dtypes = {name: tensors[name].get_dtype() for name in names}
    dtypes = {name: kind for name, kind in dtypes.items() if kind not in _FLOATS}
    if dtypes:
        kinds = ", ".join(sorted(set(dtypes.values())))
        raise ValueError(
            f"tensors of type {kinds} are no weights as they are: {listed(dtypes)}; name the "
            "checkpoint in bf16"
        )


def listed(names: Iterable[str]) -> str:
    """The names in order, the first of them spelled out."""
    names = sorted(names)
    unlisted_count = len(names) - _LISTED
    return f"{names[:_LISTED]}" + (f" and {unlisted_count} more" if unlisted_count > 0 else "")
