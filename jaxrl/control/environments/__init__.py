"""Environments that need no download, each a module with `make(...) -> Environment`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from jaxrl.control.environment import Environment
from jaxrl.functions import nearest

ALONE = {"mujoco_playground": "playground", "xminigrid": "xminigrid"}
"""Modules of packages that no extra has, and the names by which they are installed."""


def names() -> list[str]:
    """All environments, sorted. A module in this package is one; nothing is registered."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str, **args: Any) -> Environment:
    """The environment `name`: those of packages are `gym/NAME` (Gymnasium's), `gymnax/NAME`,
    `brax/NAME`, `playground/NAME` and `xminigrid/NAME`, and `module:function` is your own.

    Raises:
      ValueError: no such environment, or an argument that it does not take.
      ModuleNotFoundError: the package that it is of is not installed.
    """
    module, _, inner = name.partition("/")
    if ":" in module:
        return importlib.import_module(f"{__name__}.gym").from_function(name, **args)
    if module not in names():
        raise ValueError(f"environment {name!r} is unknown; {nearest(module, names())}")
    try:
        make = importlib.import_module(f"{__name__}.{module}").make
        return make(inner, **args) if inner else make(**args)
    except ModuleNotFoundError as error:
        package = ALONE.get(error.name or "", "'jaxrl[control]'")
        raise ModuleNotFoundError(
            f"environment {name!r} needs the package {error.name}: pip install {package}, "
            f"or choose one of {', '.join(names())}"
        ) from error
    except KeyError as error:
        raise ValueError(f"environment {name!r}: {module} has none named {inner!r}") from error
    except TypeError as error:
        raise ValueError(f"environment {name!r} with {args}: {error}") from error
