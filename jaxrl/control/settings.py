"""One check of the settings of every algorithm, by what a field's name says that it is."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

MAY_BE_ZERO = frozenset({
    "online_steps", "offline_steps", "warmup", "lag", "capacity", "demonstrations", "pessimism",
    "shift", "classifier_steps", "most_updates",
})  # fmt: skip
"""Whole numbers that may be 0; all others are at least 1."""
RATES = frozenset({
    "learning_rate", "actor_rate", "max_norm", "temperature", "bound", "clip", "alpha",
    "classifier_rate",
})  # fmt: skip
"""Numbers that are above 0."""
SHARES = frozenset({
    "discount", "polyak", "mixing", "expectile", "distance_expectile", "quantile", "prior", "real",
    "ahead", "dropout", "mixed", "epsilon", "rate", "share",
})  # fmt: skip
"""Numbers in [0, 1]."""
UNBOUNDED = frozenset({"target", "low", "high", "log_std", "target_entropy", "max_steps"})
"""Numbers that may be below 0."""


def check(config: Any, prefix: str = "algorithm") -> None:
    """Refuse the values of a config that no training can be made of.

    Counts are at least 1, rates above 0 and finite, shares in [0, 1], weights not below 0;
    minibatches divide what a round of segments holds, and with a memory its worlds; a batch of a
    classifier has two halves, and there are labels only where one is trained.

    Args:
      config: a dataclass, of a run or of an algorithm.
      prefix: what the flags of its fields begin with; empty for those of the run.

    Raises:
      ValueError: naming the field, its value and what may stand there.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        flag = f"{prefix}.{field.name}" if prefix else field.name
        for part in value if isinstance(value, tuple) else (value,):
            wrong = _wrong(field.name, part)
            if wrong:
                option = flag.replace("_", "-")
                raise ValueError(f"{flag}={value}: {wrong}; choose another with --{option}")
    names = {field.name for field in dataclasses.fields(config)}
    if {"worlds", "segment", "minibatches"} <= names:
        rows = config.worlds * config.segment
        if rows % config.minibatches or rows < 2 * config.minibatches:
            raise ValueError(
                f"{prefix}.minibatches={config.minibatches} does not divide the {rows} steps of a "
                f"round (worlds={config.worlds} x segment={config.segment}) into parts of two or "
                f"more; choose a divisor of {rows} of at most {rows // 2}"
            )
    if getattr(config, "recurrent", "none") != "none":
        _check_recurrent(config, prefix)
    if {"labels", "classifier_steps"} <= names and config.labels and not config.classifier_steps:
        raise ValueError(
            f"{prefix}.labels={config.labels!r} is for a classifier, and "
            f"{prefix}.classifier_steps=0 trains none; choose --algorithm.classifier-steps 100, or "
            "leave labels out"
        )
    if "classifier_batch" in names and config.classifier_batch % 2:
        raise ValueError(
            f"{prefix}.classifier_batch={config.classifier_batch} has no halves of success and of "
            "failure; choose an even number"
        )
    if {"subset", "members"} <= names and config.subset > config.members:
        raise ValueError(
            f"{prefix}.subset={config.subset} is more than {prefix}.members={config.members}; "
            "choose at most as many"
        )


def _check_recurrent(config: Any, prefix: str) -> None:
    """Refuse minibatches of a policy with a memory that would cut its sequences."""
    if config.recurrent != "gru":
        raise ValueError(f"{prefix}.recurrent={config.recurrent!r}: choose none or gru")
    if config.worlds % config.minibatches:
        counts = [n for n in range(1, config.worlds + 1) if config.worlds % n == 0]
        raise ValueError(
            f"{prefix}.minibatches={config.minibatches} does not divide worlds={config.worlds}, "
            f"and with recurrent={config.recurrent} a minibatch is of worlds with all their steps; "
            f"choose one of {', '.join(map(str, counts))} with --{prefix}.minibatches, or other "
            "worlds"
        )
    if not config.hidden:
        raise ValueError(
            f"{prefix}.hidden=() has no layer for the memory to follow; choose one or more with "
            f"--{prefix}.hidden"
        )


def _wrong(name: str, value: Any) -> str:
    """What is wrong with a value; empty where nothing is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if not math.isfinite(value):
        return "not a finite number"
    if name in UNBOUNDED:
        return ""
    if name in SHARES:
        return "" if 0.0 <= value <= 1.0 else "a share lies in 0 to 1"
    if isinstance(value, int):
        least = 0 if name in MAY_BE_ZERO else 1
        return "" if value >= least else f"a count is {least} or more"
    if name in RATES:
        return "" if value > 0.0 else "a rate is above 0"
    return "" if value >= 0.0 else "a weight is 0 or more"
