"""The algorithms of control: one module each, that says everything about one.

A module has a docstring (paper, idea, formula, claim), `config()` that returns a frozen dataclass,
and `programs(env, config)` that returns the phases of its training, whose `Algorithm` it makes or
takes from another module.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from jaxrl.functions import nearest


def names() -> list[str]:
    """All algorithms, sorted. A module in this package is one; nothing is registered."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The module of an algorithm.

    Raises:
      ValueError: no such algorithm; the message gives the nearest.
    """
    if name not in names():
        raise ValueError(f"algorithm {name!r} is unknown; {nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}")
