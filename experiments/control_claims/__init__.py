"""What `python -m experiments control` runs: one module a question, whose `experiment()` answers
it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from jaxrl.control.environment import Environment
from jaxrl.data.offline.statistics import Bounds
from jaxrl.data.offline.transitions import Transitions
from jaxrl.functions import nearest
from jaxrl.launch import offline_sets


class Arm(NamedTuple):
    """One curve of an experiment."""

    label: str
    algorithm: str
    """Of `jaxrl/control/algorithms`."""
    config: Mapping[str, Any] = {}
    """Fields that differ from the algorithm's own."""
    data: str = ""
    """Key of the experiment's data sets; empty for an algorithm that needs none."""


class Claim(NamedTuple):
    """A published ordering, tested on the scores at the end of training."""

    text: str
    first: str
    """Label of an arm."""
    second: str
    kind: Literal["above", "matches"] = "above"
    """Whether the first must be above the second, or no more than `margin` below it."""
    margin: float = 5.0


class Setting(NamedTuple):
    """Where an experiment takes place; made only when it runs."""

    env: Environment
    bounds: Bounds
    """Returns of score 0 and 100."""
    sets: Mapping[str, Transitions] = {}


def tiered(env: Environment, **kwargs: int) -> Setting:
    """A setting whose data are the tiers of `offline_sets.tiers`, made with `kwargs`."""
    made = offline_sets.tiers(env, **kwargs)
    return Setting(env, made.bounds, made.sets)


class Experiment(NamedTuple):
    """A question, the arms that answer it, and what the literature says of them."""

    title: str
    make: Callable[[], Setting]
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...] = ()
    note: str = ""
    """What a reader must know to read the table."""
    points: int = 10
    episodes: int = 64
    """That each seed plays at a point."""


def names() -> list[str]:
    """All experiments, sorted. A module in this package is one; nothing is registered."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Experiment:
    """The experiment of a module.

    Raises:
      ValueError: no such experiment; the message gives the nearest.
    """
    if name not in names():
        raise ValueError(f"experiment {name!r} is unknown; {nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").experiment()
