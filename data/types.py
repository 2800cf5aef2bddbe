"""What the host side passes around: problems, scores, and tasks that make and judge them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing to solve. Equal ids mean the same problem. Must pickle, to be scored elsewhere."""

    id: str
    prompt: str
    """Plain text, ready for a base model."""
    answer: Any
    """What the verifier compares with; its type is the task's own."""
    messages: tuple[Mapping[str, str], ...] | None = None
    """The same prompt as a conversation, for a chat template; None if the task has no such form."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    domain: str = ""
    """Names the source in a mixture: curricula and metrics are kept by domain."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A reward and its named parts, or the reason there is none. An error never becomes a 0.

    Raises:
      ValueError: neither or both of value and error, or a value or part that is not finite.
    """

    value: float | None
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None
    """`kind: explanation`, as in "timeout: no score after 5 s"; see `count_errors`."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.error is None):
            raise ValueError(
                f"Score value={self.value!r} with error={self.error!r}: give exactly one of them"
            )
        for name, number in [("value", self.value), *self.parts.items()]:
            if number is not None and not math.isfinite(number):
                raise ValueError(f"Score {name}={number!r} is not finite; return an error instead")


Reward = Callable[[Problem, str], Score | Awaitable[Score]]
"""Judges the completion of a problem; may be a coroutine function."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A source of problems and the judge of their completions.

    `data.tasks.get(task.name, **task.params)` gives an equal task in any process, which is how
    scoring workers come by it.
    """

    name: str
    problem: Callable[[str, int, int], Problem]
    """(split, seed, index) -> Problem; pure. A data set of fixed problems ignores the seed."""
    reward: Reward
    gold: Callable[[Problem], str] | None = None
    """A completion that earns the full reward: demonstrations for a supervised warm start."""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Filled in by `data.tasks.get`, as is the name."""
    splits: tuple[str, ...] = ("train", "test", "ood")
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of problems of a split, indices 0 to size - 1; a split not listed is endless."""
    alphabet: str | None = None
    """Every character of prompts and gold completions, where a character tokenizer will do."""
    parts: Mapping[str, Task] = dataclasses.field(default_factory=dict)
    """The tasks by domain that a mixture is made of."""
    description: str = ""

    def check_split(self, split: str) -> None:
        """Raises ValueError if the task has no such split."""
        if split not in self.splits:
            raise ValueError(
                f"split={split!r}: task {self.name!r} has {', '.join(self.splits)}; choose one"
            )


def count_errors(scores: list[Score]) -> dict[str, int]:
    """How many scores failed, by kind: `{"timeout": 2, "crash": 1}`."""
    counts: dict[str, int] = {}
    for score in scores:
        if score.error is not None:
            kind = score.error.split(":", 1)[0]
            counts[kind] = counts.get(kind, 0) + 1
    return counts
