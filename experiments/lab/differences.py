"""In what an arm differs from its recipe: nowhere but in sizes, and in what circumstances."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from experiments.lab import arms, phases
from experiments.lab.arms import Arm
from jaxrl.config import Config, stages
from jaxrl.training.optimizer import OptimizerConfig

RATE = ("learning_rate", "schedule", "decay_share", "warmup_steps", "weight_decay")
"""Settings of the optimizer that the lab has its own of: a constant rate without any decay."""
SAMPLING = (
    "sampling.weights", "sampling.dtype", "rollout.in_flight", "rollout.rounds",
    "asynchronous.order",
)  # fmt: skip
"""Settings of a recipe's sampling that no arm has."""
PLACES = {
    "objective": "objective",
    "curriculum": "curriculum",
    "bandit": "bandit",
    "updates_per_batch": "updates_per_batch",
    "rollout.temperature": "temperature",
    "rollout.oversampling": "oversampling",
    "rollout.chunks": "chunks",
}
"""Place of a setting in a recipe -> the field of an arm that it must be in."""
EXTENSIONS = {
    **{name: name for name in ("guidance", "replay", "nucleus", "critic", "sharpness", "latents",
                               "renormalise")},
    "reference_refresh": "reference",
    arms.IMITATION: "imitation",
}  # fmt: skip
"""Extension of a recipe -> the field of an arm that its settings must be in."""
YOUNGER = frozenset(f.name for f in dataclasses.fields(Arm) if f.metadata == arms.LATER)
"""Fields that are described if set."""
LABS_OWN = ("model", "measure")
"""Fields of an arm that no recipe has: sizes of the policy, and what measures it."""
ONE_TURN = {"branching": "answers of one turn in the lab, episodes that branch in the recipe"}
"""Extensions that the lab's answers of one turn have no place for, and how the regime differs."""


def unlike(config: Config, method: Arm) -> list[str]:
    """In what an arm differs from its recipe, beyond sizes and regime; one line a field."""
    config = phases.joined(config)
    lines = _unlike(config, method)
    known = {
        "guidance",
        "replay",
        "nucleus",
        "critic",
        "reference_refresh",
        "policy_reward",
        "judge",
        "sharpness",
        arms.IMITATION,
        "latents",
        "renormalise",
        *ONE_TURN,
    }
    lines += [f"extensions.{n}: the lab has none" for n in sorted({*config.extensions} - known)]
    default = OptimizerConfig()
    lines += [
        f"optimizer.{field.name}: the recipe has {getattr(config.optimizer, field.name)!r}, the "
        f"lab {getattr(default, field.name)!r}"
        for field in dataclasses.fields(OptimizerConfig)
        if field.name not in RATE
        and getattr(config.optimizer, field.name) != getattr(default, field.name)
    ]
    staged = {k.removeprefix("rollout.").split(".")[0] for s in config.stages.values() for k in s}
    staged = {"weights" if name == "domains" else name for name in staged}
    changed = {name for _, fields in method.stages for name in fields}
    if bool(changed) != bool(staged) or (changed ^ staged) - arms.SIZES:
        lines.append(f"stages: the recipe changes {sorted(staged)}, the arm {sorted(changed)}")
        return lines
    theirs, mine = sorted({0, *config.stages}), sorted({0, *dict(method.stages)})
    if method.stages and len(theirs) != len(mine):
        return [*lines, f"stages: the recipe has {len(theirs)}, the arm {len(mine)}"]
    for number, (begin, start) in enumerate(zip(theirs, mine, strict=False) if changed else (), 1):
        found = _unlike(stages.at(config, begin), method.at(start))
        lines += [f"stage {number}: {line}" for line in found if line not in lines]
    return lines


def _unlike(config: Config, method: Arm) -> list[str]:
    """The fields in which an arm differs from its recipe, stages aside."""
    recipe, own = read(config), arms.flat(arms.describe(method))
    return [
        f"{path}: the recipe has {recipe.get(path)!r}, the arm {own.get(path)!r}"
        for path in sorted({*recipe} | {*own})
        if path.split(".")[0] not in (*arms.REGIME, *LABS_OWN)
        and recipe.get(path) != own.get(path)
        and not (path in arms.SIZES and _another_size(path, recipe, own))
    ]


def _another_size(path: str, recipe: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a difference is one of sizes alone: neither lacks what has the size."""
    return path not in recipe or bool(recipe[path]) == bool(own.get(path))


def read(config: Config) -> dict[str, Any]:
    """Path of an arm's field -> what a recipe has there, read from the recipe by `PLACES`.

    `arms.arm` builds the arm; this does not use it, so that what is lost there is seen.
    """
    values = {name: operator.attrgetter(place)(config) for place, name in PLACES.items()}
    values |= {name: config.extensions.get(place) for place, name in EXTENSIONS.items()}
    paths = dict[str, Any]()
    for name, value in values.items():
        if value is not None or name not in YOUNGER:
            paths |= arms.flat(arms.describe(value), name)
    return paths


def regime(config: Config, method: Arm, stands_for: str = "") -> list[str]:
    """In what the circumstances of an arm differ from those of its recipe; one line each.

    Args:
      config: of the recipe.
      method: the arm.
      stands_for: what of the recipe the arm's rewards are in the lab, if anything.
    """
    lines = []
    allowed = config.asynchronous.staleness
    recipe = f"up to {allowed}" if allowed else "0"
    oldest = method.delay + method.sync_every - 1
    lab = str(oldest) if method.sync_every == 1 else f"up to {oldest}"
    if method.sync_every > method.steps:
        lines.append(
            f"data sampled once before training in the lab, staleness {recipe} in the recipe"
        )
    elif lab != recipe:
        lines.append(f"staleness {lab} in the lab, {recipe} in the recipe")
    if method.rewards is not None:
        module, name = method.rewards.__module__, method.rewards.__qualname__
        own = f"{module.removeprefix('experiments.')}:{name}"
        lines.append(f"rewards of {own} in the lab, of {stands_for or config.task} in the recipe")
    mine, other = len(method.weights), len(config.domains)
    if mine != other:
        lines.append(f"{mine or 1} domains in the lab, {other or 1} in the recipe")
    if (method.before is not None) != bool(config.curriculum.history):
        where = ("the lab", "the recipe") if method.before else ("the recipe", "the lab")
        lines.append("an earlier run read in {} and none in {}".format(*where))
    default = Config()
    for path in SAMPLING:
        own, plain = (operator.attrgetter(path)(each) for each in (config, default))
        if own != plain:
            lines.append(f"{path} {plain} in the lab, {own} in the recipe")
    return lines + [line for name, line in ONE_TURN.items() if name in config.extensions]
