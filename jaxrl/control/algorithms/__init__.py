"""The algorithms of control: one module each, that says everything about one.

A module has a docstring (paper, idea, formula, claim), `config()` that returns a frozen dataclass,
and `programs(env, config)` that returns the phases of its training, whose `Algorithm` it makes or
takes from another module.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields
from types import ModuleType
from typing import Any

from jaxrl.functions import nearest


def names() -> list[str]:
    """All algorithms, sorted. Each module in a folder of this package is one."""
    return sorted(_modules())


def load(name: str) -> ModuleType:
    """The module of an algorithm.

    Raises:
      ValueError: no such algorithm; the message gives the nearest.
    """
    modules = _modules()
    if name not in modules:
        raise ValueError(f"algorithm {name!r} is unknown; {nearest(name, names())}")
    return importlib.import_module(modules[name])


def _modules() -> dict[str, str]:
    """Name of each algorithm -> its module."""
    modules = pkgutil.walk_packages(__path__, f"{__name__}.")
    return {m.name.rpartition(".")[2]: m.name for m in modules if not m.ispkg}


def shared(kind: type, config: Any, **overrides: Any) -> Any:
    """A config of `kind`, for a variant: what `config` has too, `overrides`, and the defaults."""
    both = {f.name for f in fields(kind)} & {f.name for f in fields(config)}
    return kind(**{name: getattr(config, name) for name in both} | overrides)
