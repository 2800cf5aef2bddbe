"""From a name or a path to a config and parameters."""

from __future__ import annotations

from models import catalog, gguf
from models.config import DecoderConfig
from models.decoder import Params


def load(name_or_path: str) -> tuple[DecoderConfig, Params]:
    """Config and fp32 parameters of a model by name (`catalog.PACKAGED`) or GGUF path."""
    path = catalog.locate(name_or_path)
    if path.suffix == ".gguf":
        return gguf.load(path)
    raise ValueError(f"model {name_or_path!r}: expected a .gguf file")
