"""Functions named in a config: looked up once, called with whatever they ask for."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def nearest(name: str, known: list[str]) -> str:
    """A hint for an unknown name: the closest known one, or the whole list when it is short."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


def resolve(reference: str, args: Mapping[str, Any], given: set[str]) -> Callable[..., Any]:
    """The function `module:name`, checked against how it will be called.

    Args:
      reference: e.g. `losses.policy:ppo_clip`.
      args: keyword arguments from the config.
      given: names of the arrays that the caller can supply.

    Raises:
      ValueError: no such function, an argument it does not take, or one it needs and nobody gives.
    """
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"function {reference!r}: no module {module_name!r}; write it as module:name, "
            "e.g. losses.policy:ppo_clip"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        public = [n for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"]
        raise ValueError(f"function {reference!r} does not exist; {nearest(name, public)}")
    parameters = inspect.signature(function).parameters
    for arg in args:
        if arg not in parameters or arg in given:
            free = [p for p in parameters if p not in given]
            raise ValueError(f"{reference} takes no argument {arg!r}; {nearest(arg, free)}")
    for p in parameters.values():
        if p.default is p.empty and p.name not in given and p.name not in args:
            raise ValueError(
                f"{reference} needs {p.name!r}, which this run does not provide; set it in the "
                "function's arguments, or choose another function"
            )
    return function


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has an argument of this name."""
    return name in inspect.signature(function).parameters


def requires(function: Callable[..., Any], name: str) -> bool:
    """Whether the function cannot be called without this argument."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def call(function: Callable[..., Any], args: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Call with the config's `args` and those of the `given` arrays that the function names."""
    wanted = inspect.signature(function).parameters
    return function(**{k: v for k, v in given.items() if k in wanted}, **args)
