"""A method of the literature as a change of a run's settings, which any base can take.

`METHOD` in the module of a recipe is what the method itself sets. It is put on a run of one's own
model and data, see `for_own_model`, and on the small run that shows it, its `EXAMPLE`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.config import AsynchronousConfig, BanditConfig, Config, CurriculumConfig, SamplingConfig
from jaxrl.training.objective import ObjectiveConfig

DEFAULT_BASE = "quickstart"
"""The recipe that most examples begin with."""


@dataclasses.dataclass(frozen=True)
class Method:
    """What a method sets, by the names of `Config`; None: as the base has it."""

    objective: ObjectiveConfig | None = None
    extensions: Mapping[str, Any] | None = None
    """All extensions of the run, with their settings."""
    rollout: Mapping[str, Any] | None = None
    """Fields of `RolloutConfig`; the other fields stay."""
    updates_per_batch: int | None = None
    curriculum: CurriculumConfig | None = None
    bandit: BanditConfig | None = None
    stages: Mapping[int, Mapping[str, Any]] | None = None
    steps: int | None = None
    """Of the whole run, where stages begin at steps of it."""
    asynchronous: AsynchronousConfig | None = None
    sampling: SamplingConfig | None = None


class Example(NamedTuple):
    """The small run that shows a method."""

    changes: Mapping[str, Any] = {}
    """Fields of `Config`; of a group of fields, a mapping of those that change."""
    base: str = DEFAULT_BASE
    """The recipe to begin with."""


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with fields changed.

    Args:
      config: to begin with.
      changes: values by the field's name. A mapping changes fields of a group, such as `rollout`,
        and leaves its other fields; it replaces a field that holds entries, such as `extensions`.

    Raises:
      TypeError: no such field.
    """
    values = {}
    for name, value in changes.items():
        group = getattr(config, name, None)
        part = dataclasses.is_dataclass(group) and isinstance(value, Mapping)
        values[name] = dataclasses.replace(group, **value) if part else value
    return dataclasses.replace(config, **values)


def applied(config: Config, method: Method) -> Config:
    """The config with what a method sets."""
    fields = (field.name for field in dataclasses.fields(method))
    return changed(
        config, {name: value for name in fields if (value := getattr(method, name)) is not None}
    )
