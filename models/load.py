"""From a name or a path to a config and parameters."""

from __future__ import annotations

from pathlib import Path

from jaxrl import gguf_file
from jaxrl.models import catalog, gguf, huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Params
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings


def read_config(name_or_path: str) -> DecoderConfig:
    """The decoder of a model by name or path, without its weights."""
    path = _checked(name_or_path)
    if path.is_dir():
        return huggingface.read_config(path)
    return gguf.read_config(gguf_file.open_file(path))


def load(
    name_or_path: str,
    *,
    shardings: Shardings | None = None,
    dtype: str = "float32",
    quantized: Kind | None = None,
) -> tuple[DecoderConfig, Params]:
    """Config and parameters of a model.

    Args:
      name_or_path: a key of `catalog.PACKAGED`, a GGUF file, or a Hugging Face directory.
      shardings: from the config to where the parameters go; None: the default device.
      dtype: of the matrices that are not quantised; vectors and routers are float32.
      quantized: quantise the matrices of the layers as they are read.
    """
    path = _checked(name_or_path)
    read = huggingface.load if path.is_dir() else gguf.load
    return read(path, shardings=shardings, dtype=dtype, quantized=quantized)


def _checked(name_or_path: str) -> Path:
    path = catalog.locate(name_or_path)
    if path.suffix == ".gguf" or (path / "config.json").exists():
        return path
    raise ValueError(
        f"model {name_or_path!r}: expected a .gguf file or a directory with config.json and "
        "safetensors files"
    )
