"""jaxrl: reinforcement-learning post-training in JAX."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for, so that `import jaxrl` alone costs nothing."""
    if name in ("losses", "models", "data"):
        return importlib.import_module(name)
    if name == "load_run":
        return importlib.import_module("jaxrl.runs").load_run
    raise AttributeError(f"module 'jaxrl' has no attribute {name!r}")
