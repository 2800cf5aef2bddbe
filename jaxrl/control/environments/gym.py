"""Any environment of Gymnasium, and your own by `module:function`, played on the host."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from jaxrl.control import host
from jaxrl.control.environment import Environment
from jaxrl.functions import nearest


def make(name: str = "CartPole-v1", horizon: int = 1000, **kwargs: Any) -> Environment:
    """Gymnasium's environment `name`.

    Args:
      name: as registered; `module:Name-v0` imports the module first.
      horizon: steps of an episode where the environment has no time limit.
      **kwargs: of the environment.
    """
    import gymnasium

    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        near = nearest(name, sorted(gymnasium.registry))
        hint = near if near.startswith("did") else "see gymnasium.registry"
        raise ValueError(f"environment gym/{name}: {error}; {hint}") from error
    return host.environment(
        f"gym/{name}", functools.partial(gymnasium.make, name, **kwargs), horizon
    )


def from_function(reference: str, horizon: int = 1000, **kwargs: Any) -> Environment:
    """The environment of your function `module:function`.

    Args:
      reference: a function that gives a fresh `gymnasium.Env`, or an `Environment`, at each call.
      horizon: steps of an episode where a `gymnasium.Env` has no time limit.
      **kwargs: of the function.

    Raises:
      ValueError: no such function, or it gives something else.
    """
    module, _, function = reference.partition(":")
    try:
        call = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"env={reference!r}: {error}; name a function of a module that can be imported here"
        ) from error
    try:
        first = call(**kwargs)
    except TypeError as error:
        raise ValueError(
            f"env={reference!r} with env_args={kwargs}: {error}; give what it takes with "
            "--env-args.NAME"
        ) from error
    if isinstance(first, Environment):
        return first._replace(name=reference)
    return host.environment(reference, functools.partial(call, **kwargs), horizon)
