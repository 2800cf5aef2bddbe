"""Another task whose answers come with a stated confidence, rewarded for being right and honest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.rewards import shape
from jaxrl.data.sources import generate
from jaxrl.data.text import templates
from jaxrl.data.types import Problem, Task


def task(of: str = "arithmetic", args: Mapping[str, Any] | str = "{}", asks: str = "") -> Task:
    """A task with the reward of `jaxrl.data.rewards.shape.calibrated` (RLCR).

    Solutions to imitate state some confidence between 0.1 and 0.9, whatever they are worth: the
    form is shown and the judgement is left to be learned.

    Args:
      of: name of the task.
      args: its parameters, as a mapping or JSON.
      asks: added to each prompt, such as a request for `<confidence>0.8</confidence>`.
    """
    plain = tasks.within(of, args)

    def gold(problem: Problem) -> str:
        stated = generate.rng("confidence", problem.id).randint(1, 9) / 10
        bare = dataclasses.replace(problem, prompt=problem.prompt.removesuffix(asks))
        return f"{plain.gold(bare)}<confidence>{stated}</confidence>"

    alphabet = plain.alphabet and "".join(
        sorted({*plain.alphabet, *asks, *"</confidence>0123456789."})
    )
    return dataclasses.replace(
        templates.wrap(plain, lambda problem: templates.append(problem, asks)),
        reward=shape.calibrated(plain.reward),
        gold=gold if plain.gold else None,
        alphabet=alphabet,
        description=__doc__,
    )
