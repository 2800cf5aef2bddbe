"""jaxrl: reinforcement-learning post-training in JAX."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load `load_run` when it is asked for, so that `import jaxrl` alone costs nothing."""
    if name == "load_run":
        from jaxrl.runs import load_run

        return load_run
    raise AttributeError(f"module 'jaxrl' has no attribute {name!r}")
