"""A method of the literature as a change of a run's settings, which any base can take.

`METHOD` in the module of a recipe is what the method itself sets, and what it needs of the user's
data. It is put on a run of one's own model and data, and on the small run that shows it, its
`EXAMPLE`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from jaxrl.config import AsynchronousConfig, BanditConfig, Config, CurriculumConfig, SamplingConfig
from jaxrl.training.objective import ObjectiveConfig

DEFAULT_BASE = "quickstart"
"""The recipe that most examples begin with."""

Need = Literal[
    "answer", "solution", "domains", "harmful", "facts", "judge", "rewards", "environment",
    "parameters", "history", "task", "runs",
]  # fmt: skip
"""What a method may need of the user; `jaxrl.launch.needs` has the flag of each."""


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
    asynchronous: AsynchronousConfig | None = None
    sampling: SamplingConfig | None = None
    wrapper: str | None = None
    wrapper_args: Mapping[str, str] | None = None
    stages: Mapping[float, Mapping[str, Any]] | None = None
    """Fields that change, as in `Config.stages`, by the share of the run that is done, from 0 to
    below 1, or by the number of finished steps, from 1."""
    by_domain: Callable[[tuple[str, ...]], Mapping[str, Any]] | None = None
    """Names of the user's domains, the most frequent first -> `weights` by name at the beginning,
    and `stages` by share of the run -> weights by name."""
    rewards: tuple[str, ...] = ()
    """Specifications, as of --reward, that are added to the user's rewards; with them a run needs
    no others."""
    needs: tuple[Need, ...] = ()
    """What the method cannot do without."""


class Example(NamedTuple):
    """The small run that shows a method."""

    changes: Mapping[str, Any] = {}
    """Fields of `Config`; of a group of fields, a mapping of those that change."""
    base: str = DEFAULT_BASE
    """The recipe to begin with."""
    stages: Mapping[float, Mapping[str, Any]] | None = None
    """In place of the method's stages; None: as the method has them."""


def parameters(method: Method) -> tuple[str, ...]:
    """Parameters of a task that a method's stages set, sorted."""
    fields = {field for changes in (method.stages or {}).values() for field in changes}
    start = "task_args."
    return tuple(sorted(name.removeprefix(start) for name in fields if name.startswith(start)))


_OF_CONFIG = (
    "objective", "extensions", "rollout", "updates_per_batch", "curriculum", "bandit",
    "asynchronous", "sampling", "wrapper", "wrapper_args",
)  # fmt: skip
"""Fields of a method that are those of a config."""
_OF_OBJECTIVE = ("policy", "advantage", "shaping", "aggregation", "rows", "kl")
"""Fields of an objective that are a method; coefficients are for tuning."""


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
    values = {name: getattr(method, name) for name in _OF_CONFIG}
    config = changed(config, {name: value for name, value in values.items() if value is not None})
    return config if method.stages is None else placed(config, method)


def fitted(config: Config, method: Method) -> Config:
    """The config with a method's stages at the shares of the run that it now has, and its weights
    of the user's domains."""
    config = placed(config, method)
    staged = dict(config.stages)
    if method.by_domain is None or not config.domains:
        return config
    plan = method.by_domain(tuple(config.domains))
    weights = plan.get("weights", {})
    domains = {
        name: dataclasses.replace(domain, weight=weights.get(name, domain.weight))
        for name, domain in config.domains.items()
    }
    stages = {
        share: {f"domains.{name}.weight": weight for name, weight in later.items()}
        for share, later in plan.get("stages", {}).items()
    }
    for start, fields in _at_steps(config.steps, stages).items():
        staged[start] = fields | staged.get(start, {})
    return dataclasses.replace(config, domains=domains, stages=dict(sorted(staged.items())))


def placed(config: Config, method: Method) -> Config:
    """The config with a method's stages at their shares of the run."""
    return dataclasses.replace(config, stages=_at_steps(config.steps, method.stages or {}))


def lost(config: Config, method: Method) -> list[str]:
    """Fields that a method sets and the user has set otherwise, as FIELD=VALUE.

    What a need's flag sets, such as `curriculum.history`, is the user's part.

    Args:
      config: of the run.
      method: of its recipe.
    """
    out = []
    for name in _OF_CONFIG:
        value, config_value = getattr(method, name), getattr(config, name)
        if dataclasses.is_dataclass(value):
            out += [
                f"{name}.{field.name}={getattr(config_value, field.name)!r}"
                for field in dataclasses.fields(value)
                if (not isinstance(value, ObjectiveConfig) or field.name in _OF_OBJECTIVE)
                and getattr(value, field.name)
                not in (getattr(config_value, field.name), getattr(type(value)(), field.name))
            ]
        elif name == "wrapper_args" and value:
            out += [
                f"wrapper_args.{key}={config_value.get(key, '')!r}"
                for key in value.keys() - {"column"}
                if config_value.get(key) != value[key]
            ]
        elif name == "extensions" and value:
            out += [f"extensions without {key}" for key in value if key not in config_value]
        elif name == "rollout" and value:
            out += [
                f"rollout.{k}={getattr(config_value, k)!r}"
                for k, v in value.items()
                if getattr(config_value, k) != v
            ]
        elif value is not None and value != config_value:
            out.append(f"{name}={config_value!r}")
    return out


def _at_steps(
    steps: int, stages: Mapping[float, Mapping[str, Any]]
) -> dict[int, dict[str, bool | int | float | str]]:
    return {
        round(start * steps if start < 1 else start): dict(changes)
        for start, changes in stages.items()
    }
