"""Another task whose reward a method turns into its own, see `jaxrl.data.rewards.wrappers`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.rewards import named, wrappers
from jaxrl.data.sources import generate
from jaxrl.data.text import templates
from jaxrl.data.types import Problem, Task


def task(
    of: str = "arithmetic",
    args: Mapping[str, Any] | str = "{}",
    by: str = "calibrated",
    asks: str = "",
    column: str = "",
    states: str = "",
) -> Task:
    """Problems of a task, each with a method's reward.

    Args:
      of: name of the task.
      args: its parameters, as a mapping or JSON.
      by: a function of `jaxrl.data.rewards.wrappers`, or module:function, reward -> reward.
      asks: added to each prompt, such as a request for `<confidence>0.8</confidence>`.
      column: of the row that the function reads; empty: its own default.
      states: module:function, (problem's id, names of its rewards) -> a text added to its prompt;
        empty: none.

    Raises:
      ValueError: no such function, or a task that has turns or scores whole groups.
    """
    plain = tasks.within(of, args)
    if plain.turns is not None or plain.grouped:
        raise ValueError(
            f"wrapper={by!r}: task {of!r} has turns, or rewards whole groups, and this method's "
            "reward is made of that of single answers; use --data FILE, or a task of one turn"
        )
    wrap = _function("wrapper", by)
    names = [spec.name for spec in named.read(str(plain.params.get("rewards", "[]")))]

    def addition(problem: Problem) -> str:
        """What the prompt of a problem has besides."""
        return asks + (_function("states", states)(problem.id, names) if states else "")

    def bare(problem: Problem) -> Problem:
        """As the task wrote it, whose solutions and rewards may be made of the prompt."""
        return templates.remove(problem, addition(problem))

    return dataclasses.replace(
        templates.wrap(plain, lambda problem: templates.append(problem, addition(problem))),
        gold=plain.gold and (lambda problem: plain.gold(bare(problem))),
        reward=wrap(
            lambda problem, completion: plain.reward(bare(problem), completion),
            **({"column": column} if column else {}),
        ),
        alphabet=plain.alphabet and _characters(plain, asks, bool(states)),
        description=__doc__,
    )


def _function(field: str, name: str) -> Callable[..., Any]:
    """The function that a field names."""
    module, _, function = name.rpartition(":")
    try:
        return getattr(importlib.import_module(module) if module else wrappers, function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{field}={name!r}: {error}; name a function of jaxrl.data.rewards.wrappers, or "
            "module:function"
        ) from error


def _characters(plain: Task, asks: str, states: bool) -> str:
    """The alphabet of a task and of what is added to its prompts."""
    return "".join(sorted({*plain.alphabet, *asks, *(generate.ASCII if states else "")}))
