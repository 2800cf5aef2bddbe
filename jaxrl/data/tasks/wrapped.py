"""Another task whose reward a method turns into its own, see `jaxrl.data.rewards.wrappers`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.rewards import wrappers
from jaxrl.data.text import templates
from jaxrl.data.types import Task


def task(
    of: str = "arithmetic",
    args: Mapping[str, Any] | str = "{}",
    by: str = "calibrated",
    asks: str = "",
    column: str = "",
) -> Task:
    """Problems of a task, each with a method's reward.

    Args:
      of: name of the task.
      args: its parameters, as a mapping or JSON.
      by: a function of `jaxrl.data.rewards.wrappers`, or module:function, reward -> reward.
      asks: added to each prompt, such as a request for `<confidence>0.8</confidence>`.
      column: of the row that the function reads; empty: its own default.

    Raises:
      ValueError: no such function, or a task that has turns or scores whole groups.
    """
    plain = tasks.within(of, args)
    if plain.turns is not None or plain.grouped:
        raise ValueError(f"of={of!r}: a task of one turn, which scores completions one by one")
    module, _, function = by.rpartition(":")
    try:
        home = importlib.import_module(module) if module else wrappers
        wrap = getattr(home, function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"wrapper={by!r}: {error}; name a function of jaxrl.data.rewards.wrappers, or "
            "module:function"
        ) from error

    return dataclasses.replace(
        templates.wrap(plain, lambda problem: templates.append(problem, asks)),
        reward=wrap(plain.reward, **({"column": column} if column else {})),
        alphabet=plain.alphabet and "".join(sorted({*plain.alphabet, *asks})),
        description=__doc__,
    )
