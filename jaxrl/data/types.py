"""What the host side passes around: problems, scores, and tasks that make and score them."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.data.environments import Environment


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


LOGGED = frozenset({"mean", "std", "errors", "timeouts", "zero_variance_groups"})
"""What is logged of a batch's rewards beside the means of their parts."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A reward and its named parts, or the reason there is none. An error never becomes a 0.

    Raises:
      ValueError: neither or both of value and error, a value or part that is not a finite number,
        a value above `LARGEST_REWARD`, or a part with a name that the log of rewards needs.
    """

    value: float | None
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None
    """`kind: explanation`, as in "crash: the worker ended by signal 11"; see `count_errors`."""
    timed_out: bool = False
    """Whether judging the completion ran out of time; the value is then the task's for that."""
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What the reward says besides, such as the reason of a mark; for the log alone."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.error is None):
            raise ValueError(
                f"Score value={self.value!r} with error={self.error!r}: give exactly one of them"
            )
        values = {"value": 0.0 if self.value is None else self.value} | dict(self.parts)
        for name, number in values.items():
            if not isinstance(number, (float, numbers.Real)) or not math.isfinite(number):
                raise ValueError(
                    f"Score {name}={number!r} is not a finite number; return an error instead"
                )
        if self.value is not None and not is_reward(self.value):
            raise ValueError(
                f"Score value={self.value!r:.50}: a reward is at most {LARGEST_REWARD:g} in size; "
                "scale it"
            )
        if reserved_names := LOGGED.intersection(self.parts):
            raise ValueError(
                f"Score parts={sorted(reserved_names)}: the log of rewards has figures of these "
                "names; rename the parts"
            )


LARGEST_REWARD = 1e15
"""Of what size a reward may be. Statistics of a group square and add rewards as 32-bit floats:
one that is much larger would leave its group with advantages of 0, or of no number."""


def is_reward(number: numbers.Real | float) -> bool:
    """Whether a number is finite and no larger than a reward may be."""
    return -LARGEST_REWARD <= number <= LARGEST_REWARD


def exact_sum(parts: Iterable[float]) -> float:
    """The sum of a reward's parts, rounded once: 0.6 + 0.3 + 0.1 is 1, which plain `+` misses.

    Parts that no float holds exactly can still miss it, as 0.57 + 0.35 + 0.08 does. inf or nan
    where the sum is not finite.
    """
    terms = list(parts)
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        return float(sum(terms))


Reward = Callable[[Problem, str], Score | Awaitable[Score]]
"""Scores the completion of a problem; may be a coroutine function."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A source of problems and the reward of their completions.

    `jaxrl.data.tasks.get(task.name, **task.params)` gives an equal task in any process, which is
    how scoring workers come by it.
    """

    name: str
    problem: Callable[[str, int, int], Problem]
    """(split, seed, index) -> Problem; pure. A data set of fixed problems ignores the seed."""
    reward: Reward
    gold: Callable[[Problem], str] | None = None
    """A completion that earns the full reward: demonstrations for a supervised warm start."""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Filled in by `jaxrl.data.tasks.get`, as is the name."""
    splits: tuple[str, ...] = ("train", "test", "ood")
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of problems of a split, indices 0 to size - 1; a split not listed is endless."""
    alphabet: str | None = None
    """Every character of prompts and gold completions, where a character tokenizer will do."""
    parts: Mapping[str, Task] = dataclasses.field(default_factory=dict)
    """The tasks by domain that a mixture is made of."""
    description: str = ""
    pure: bool = False
    """Whether the reward is quick on any text and runs nothing of it. Only then is it called in the
    process that trains, where no limit holds."""
    sandboxed: bool = False
    """Whether the reward runs programs, so that a sandbox must be there; see
    `jaxrl.data.sandbox.runner`."""
    seconds: Callable[[Problem], float] | None = None
    """How long judging a completion may take, by limits that the reward keeps itself; None where it
    keeps none, and the limit of the scoring pool is the only one."""
    on_timeout: float | None = 0.0
    """The score of a completion whose judging overran the pool's limit; None makes it an error, for
    a reward that may be slow through no fault of the completion."""
    environment: tuple[str, ...] = ()
    """Environment variables that the reward reads, such as a key; workers get no others."""
    turns: Environment | None = None
    """What answers the policy's turns, and rewards them in place of `reward`; None: a problem is
    answered in one turn. `pure` then says that of its replies."""

    setup: Callable[[], None] | None = None
    """Called once in each scoring process before its first score, such as to load a model."""
    notes: tuple[str, ...] = ()
    """What a run says once of its data, such as the columns that nothing reads."""
    grouped: bool = False
    """Whether the reward scores all completions of a problem at once: its text is a JSON list of
    them, and its score is from `jaxrl.data.rewards.group.together`."""

    def of(self, problem: Problem) -> Task:
        """The task that scores a problem: the part of a mixture, else this task."""
        return self.parts.get(problem.domain, self)

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
