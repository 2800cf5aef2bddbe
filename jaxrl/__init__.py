"""jaxrl: reinforcement-learning post-training in JAX.

`jaxrl.losses`, `jaxrl.models` and `jaxrl.data` are the base packages; `jaxrl.sampling`,
`jaxrl.rollout`, `jaxrl.training`, `jaxrl.mesh`, `jaxrl.record`, `jaxrl.config`, `jaxrl.run`,
`jaxrl.extensions` and `jaxrl.control` the core; `jaxrl.launch` the command line and the recipes.

`jaxrl.train(jaxrl.recipes.grpo(model=..., data=..., reward=function))` trains, and
`jaxrl.load_run` reads a run as tables.
"""

import importlib
from typing import Any

_PACKAGES = (
    "losses", "models", "data", "launch",
    "mesh", "sampling", "training", "record", "rollout", "run", "control",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a package when it is first used, so that `import jaxrl` alone costs nothing."""
    if name in _PACKAGES:
        return importlib.import_module(f"jaxrl.{name}")
    if name == "recipes":
        return importlib.import_module("jaxrl.launch.algorithms")
    if name in ("train", "Result"):
        return getattr(importlib.import_module("jaxrl.launch.api"), name)
    if name == "load_run":
        return importlib.import_module("jaxrl.record.runs").load_run
    raise AttributeError(f"module 'jaxrl' has no attribute {name!r}")
