"""The recipes: one module each, whose docstring says what it is and whose `config()` gives it."""

from __future__ import annotations

import importlib
import pkgutil

from jaxrl.config import Config
from jaxrl.functions import nearest

IDS = {"1_shot_rlvr": "one_shot_rlvr"}
"""Ids of methods that cannot be names of modules, and the modules."""


def names() -> list[str]:
    """All recipes, sorted. A module in this package is one; nothing is registered."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Config:
    """The config of a recipe.

    Raises:
      ValueError: no such recipe; the message gives the nearest.
    """
    name = IDS.get(name, name)
    if name not in names():
        raise ValueError(f"recipe {name!r} is unknown; {nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").config()


def rows() -> list[dict[str, str | int]]:
    """One object a recipe: `name`, `summary`, `model`, `task`, `steps`."""
    out: list[dict[str, str | int]] = []
    for name in names():
        config = load(name)
        doc = importlib.import_module(f"{__name__}.{name}").__doc__ or ""
        summary = doc.strip().split("\n\n")[0].replace("\n", " ")
        out.append(
            {
                "name": name,
                "summary": summary,
                "model": config.model,
                "task": ", ".join(config.domains) or config.task,
                "steps": config.steps,
            }
        )
    return out
