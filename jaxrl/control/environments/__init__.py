"""Environments that need no download, each a module with `make(...) -> Environment`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from jaxrl.control.environment import Environment
from jaxrl.functions import nearest


def names() -> list[str]:
    """All environments, sorted. A module in this package is one; nothing is registered."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str, **args: Any) -> Environment:
    """The environment `name`: gymnax's, brax's and Gymnasium's are `gymnax/NAME`, `brax/NAME` and
    `gym/NAME`, and `module:function` is your own.

    Raises:
      ValueError: no such environment, or an argument that it does not take.
      ModuleNotFoundError: the extra `control` is not installed.
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
        raise ModuleNotFoundError(
            f"environment {name!r} needs the package {error.name}: pip install 'jaxrl[control]', "
            f"or choose one of {', '.join(names())}"
        ) from error
    except KeyError as error:
        raise ValueError(f"environment {name!r}: {module} has none named {inner!r}") from error
    except TypeError as error:
        raise ValueError(f"environment {name!r} with {args}: {error}") from error
