"""The recipes: one module each, whose docstring says what it is and whose `config()` gives it."""

from __future__ import annotations

import importlib
import pkgutil

from jaxrl.config import Config
from jaxrl.functions import nearest
from jaxrl.launch import algorithms

READY = ("calculator", "keydoor", "quickstart", "retrieval", "smollm2")
"""Recipes that are whole runs, with their model and task."""

IDS = {"1_shot_rlvr": "one_shot_rlvr"}
"""Ids of methods that cannot be names of modules, and the modules."""


def names() -> list[str]:
    """All recipes, sorted. A module in this package is one; nothing is registered."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def identity(name: str) -> str:
    """The id of a method: the name of its module, but for those of `IDS`."""
    return {module: known for known, module in IDS.items()}.get(name, name)


def load(name: str) -> Config:
    """The config of a recipe, or of an algorithm.

    Raises:
      ValueError: neither; the message gives the nearest.
    """
    spelled = algorithms.canonical(name)
    if spelled in algorithms.ALGORITHMS:
        return algorithms.load(spelled)
    name = IDS.get(name, name)
    if name not in names():
        raise ValueError(f"recipe {name!r} is unknown; {hint(name)}")
    return importlib.import_module(f"{__name__}.{name}").config()


def for_model(config: Config, model: str | None) -> Config:
    """The config of a recipe for another model than its toy, see `algorithms.without_toy`.

    Args:
      config: anything but an unchanged method of a toy, or the quickstart, stays as it is.
      model: that is to be trained; None or `fresh`: the toy.
    """
    name = IDS.get(config.recipe, config.recipe)
    toys = name == "quickstart" or (name in names() and name not in READY)
    if model in (None, "fresh") or not toys or config.model != "fresh" or config != load(name):
        return config
    return algorithms.without_toy(config, load("quickstart"))


def hint(name: str) -> str:
    """What can be named in place of an unknown name."""
    near = nearest(algorithms.canonical(name), [*algorithms.names(), *names()])
    if near.startswith("known"):
        near = f"algorithms: {', '.join(algorithms.names())}; `jaxrl recipes` lists the others"
    return f"{near} A config file, a .py file or a run directory may be named too"


def kind(name: str) -> str:
    """`ready`, a run for this machine; `data`, one that learns from a file; or `method`, one of the
    literature on a toy task."""
    if name in READY:
        return "ready"
    return "data" if load(name).data.kinds else "method"


def rows() -> list[dict[str, str | int]]:
    """One object a recipe: `name`, `kind`, `summary`, `model`, `task`, `steps`."""
    out: list[dict[str, str | int]] = []
    for name in names():
        config = load(name)
        doc = importlib.import_module(f"{__name__}.{name}").__doc__ or ""
        summary = doc.strip().split("\n\n")[0].replace("\n", " ")
        out.append(
            {
                "name": identity(name),
                "kind": kind(name),
                "summary": summary,
                "model": config.model,
                "task": ", ".join(config.domains) or config.task,
                "steps": config.steps,
            }
        )
    return out
