"""From a name or a path to a config and parameters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import safetensors

from jaxrl.models import catalog, lora
from jaxrl.models.checkpoints import (
    gguf,
    hf_config,
    huggingface,
    peft,
    peft_merge,
    tensor_files,
)
from jaxrl.models.checkpoints.forms import wrapped
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Params
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings


def read_config(name_or_path: str) -> DecoderConfig:
    """The decoder of a model by name or path, without its weights.

    Raises:
      FileNotFoundError: there is no such model; the message says what to run.
      ValueError: what is there is not read.
    """
    path = _checked(name_or_path)
    if not path.is_dir():
        return gguf.read_config(path)
    with _told(path):
        if (path / catalog.ADAPTERS).exists():
            base = read_config(_base(path))
            return peft_merge.config(peft_merge.read(path), base, hf_config.find(base.family))
        return huggingface.read_config(path)


def load(
    name_or_path: str,
    *,
    shardings: Shardings | None = None,
    dtype: str = "float32",
    quantized: Kind | None = None,
) -> tuple[DecoderConfig, Params]:
    """Config and parameters of a model.

    Args:
      name_or_path: whatever `catalog.locate` finds. Adapters in a directory of PEFT's are merged
        into the base that it names, of whatever kind where that is of Hugging Face's form, and
        plain LoRA and DoRA into a GGUF file.
      shardings: from the config to where the parameters go; None: the default device.
      dtype: of the matrices that are not quantised; vectors and routers are float32.
      quantized: quantise the matrices of the layers as they are read.

    Raises:
      FileNotFoundError: there is no such model; the message says what to run.
      ValueError: what is there is not read, or adapters do not fit their base.
    """
    path, adapters = _checked(name_or_path), list[Path]()
    read_config(name_or_path)  # before weights are read
    while (path / catalog.ADAPTERS).exists():
        adapters.insert(0, path)
        path = _checked(_base(path))
    if path.is_dir():
        merged = [peft_merge.read(folder) for folder in adapters]
        try:
            with _told(adapters[-1]) if adapters else contextlib.nullcontext():
                return huggingface.load(
                    path, shardings=shardings, dtype=dtype, quantized=quantized, adapters=merged
                )
        except safetensors.SafetensorError as error:
            raise ValueError(f"model {name_or_path!r} cannot be read: {error}") from error
    if adapters and quantized:
        raise ValueError(
            f"model {name_or_path!r} holds adapters of a GGUF file, which are not merged in "
            f"{quantized}; export the run with --to hf, and quantise that"
        )
    config, params = gguf.load(path, shardings=shardings, dtype=dtype, quantized=quantized)
    for folder in adapters:
        how, parts = peft.load(folder, config)
        params = lora.merge(config, params, parts, how)
    return config, params


def around(name_or_path: str) -> Path | None:
    """The directory of a model that holds more than its decoder, beneath adapters; None: it does
    not. It reads pictures too, or has tensors that the decoder does not compute with.

    Raises:
      FileNotFoundError, ValueError: as `read_config`.
    """
    path = _checked(name_or_path)
    while (path / catalog.ADAPTERS).exists():
        path = _checked(_base(path))
    if not path.is_dir():
        return None
    raw = wrapped.read_raw(path)
    if wrapped.find(raw):
        return path
    family = hf_config.FAMILIES.get(raw.get("model_type", ""))
    names = tensor_files.tensor_names(path) if family and family.carried else []
    return path if family and huggingface.carried(family, names) else None


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say of which model a text of JSON has values that no code expects.

    Raises:
      ValueError: of what is read here, one has.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            raise ValueError(f"model {str(path)!r} cannot be read: {error}") from error
        raise
    except (
        TypeError, AttributeError, LookupError, ArithmeticError, RecursionError,
        safetensors.SafetensorError,
    ) as error:  # fmt: skip
        kind = type(error).__name__
        raise ValueError(f"model {str(path)!r} cannot be read: {kind}: {error}") from error


def _base(directory: Path) -> str:
    """The base that a directory of PEFT's names: as written, or the `base` inside it if moved."""
    base = json.loads((directory / catalog.ADAPTERS).read_text()).get("base_model_name_or_path")
    inside = directory / "base"
    if inside.is_dir() and not (base and Path(base).exists()):
        return str(inside)
    if not base:
        raise ValueError(f"{directory / catalog.ADAPTERS} names no base_model_name_or_path; add it")
    return base


def _checked(name_or_path: str) -> Path:
    path = catalog.locate(name_or_path)
    has_config = any((path / name).exists() for name in ("config.json", catalog.ADAPTERS))
    if path.suffix == ".gguf" or has_config:
        return path
    raise ValueError(
        f"model {name_or_path!r}: expected a .gguf file, or a directory with one, with config.json "
        "and safetensors files, or with adapter_config.json and its adapters"
    )
