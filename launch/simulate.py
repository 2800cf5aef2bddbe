"""A run in simulated time: the schedule of `jaxrl.rollout.schedule` on a heap of timed events.

`simulate` drives the same `decide` that drives a live run, and takes seconds from `Costs` in place
of devices. `costs_of` fits these to the log of a synchronous run.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.record import jsonl, metrics
from jaxrl.rollout import schedule
from jaxrl.rollout.schedule import (
    Admit,
    Arrived,
    Ended,
    Event,
    Finished,
    Joined,
    Limits,
    State,
    Train,
    Trained,
)

_WORKER = "sampler"


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a run's parts, on all of its devices."""

    decode_step: float
    """Of a decoding step, whatever is decoded."""
    decode_token: float
    """Of each token that a step decodes."""
    update: float
    """Of a training step, whatever is trained on."""
    update_token: float
    """Of each token that is trained on."""
    push: float = 0.0
    """Of bringing new weights to the sampler."""
    score: float = 0.0
    """From the end of a completion to its score."""
    read_token: float = 0.0
    """Of each token that is read again after new weights came."""

    def on(self, sampling: float) -> Costs:
        """The costs where a share of the devices samples and the rest trains.

        A decoding step's own seconds are of latency and stay; all else is divided by the share.
        """
        training = 1.0 - sampling
        return dataclasses.replace(
            self,
            decode_token=self.decode_token / sampling,
            read_token=self.read_token / sampling,
            update=self.update / training,
            update_token=self.update_token / training,
        )


class Workload(NamedTuple):
    """What a run samples."""

    lengths: Callable[[int], np.ndarray]
    """The lengths in tokens of a group's completions, [group size], by its number."""
    slots: int
    """Completions decoded at once."""
    chunk: int
    """Decoding steps between two decisions."""


class Span(NamedTuple):
    """What one of the two did, in seconds from the start."""

    who: str
    start: float
    end: float
    step: int


class Outcome(NamedTuple):
    """A simulated run."""

    seconds: float
    idle_sample: float
    """Share of the time in which nothing was decoded."""
    idle_train: float
    lag: float
    """Mean lag of the first token of a group, in steps."""
    tokens: int
    """Trained on."""
    spans: tuple[Span, ...]

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on in a second."""
        return self.tokens / self.seconds


def simulate(limits: Limits, costs: Costs, work: Workload, *, overlap: bool) -> Outcome:
    """A run of `limits.steps` steps in simulated time.

    Args:
      limits: of the schedule.
      costs: in seconds, on the devices of each.
      work: what is sampled.
      overlap: sampling continues during updates; else they take turns.

    Raises:
      ValueError: `limits.steps` is missing, or the schedule makes no progress.
    """
    if limits.steps is None:
        raise ValueError("limits.steps=None has no end; set the number of steps to simulate")
    run = _Run(limits, costs, work, overlap)
    run.tell(Joined(_WORKER, 0))
    while run.state.step < limits.steps:
        if not run.heap:
            raise ValueError(f"no progress after {run.state.step} steps: {limits}")
        run.now, _, act = heapq.heappop(run.heap)
        act()
    seconds = run.now
    return Outcome(
        seconds,
        1.0 - run.decoding / seconds,
        1.0 - run.training / seconds,
        float(np.mean(run.lags)),
        run.tokens,
        tuple(run.spans),
    )


class _Run:
    """The state of a simulation: one sampler, one trainer, and scorers without limit."""

    def __init__(self, limits: Limits, costs: Costs, work: Workload, overlap: bool) -> None:
        self.limits, self.costs, self.work, self.overlap = limits, costs, work, overlap
        self.state, self.now = State(), 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.spans: list[Span] = []
        self.lags: list[int] = []
        self.decoding = self.training = 0.0
        self.tokens = self._pushed = 0
        self._left: dict[tuple[int, int], int] = {}  # tokens to decode, by group and row
        self._rows: dict[int, int] = {}  # rows without a score
        self._versions: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._busy = False
        self.at(0.0, self.between)

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Do something at a time; what falls on one time is done in the order of asking."""
        self._pushed += 1
        heapq.heappush(self.heap, (time, self._pushed, act))

    def tell(self, event: Event) -> None:
        """An event, and what follows from it."""
        self.state, actions = schedule.decide(self.state, event, self.limits)
        for action in actions:
            match action:
                case Admit(_, numbers):
                    for number in numbers:
                        self.admit(number)
                case Train(numbers):
                    self.train(numbers)

    def admit(self, number: int) -> None:
        """Begin a group."""
        lengths = self.work.lengths(number)
        self._left |= {(number, row): int(n) for row, n in enumerate(lengths)}
        self._rows[number], self._sizes[number] = len(lengths), int(np.sum(lengths))
        self._versions[number] = self.state.held[_WORKER]

    def train(self, numbers: Sequence[int]) -> None:
        """Take a step."""
        tokens = sum(self._sizes.pop(number) for number in numbers)
        seconds = self.costs.update + self.costs.update_token * tokens
        step = self.state.step
        self.lags += [step - self._versions.pop(number) for number in numbers]
        self.tokens += tokens
        self.training += seconds
        self.spans.append(Span("train", self.now, self.now + seconds, step))
        self.at(self.now + seconds, self.trained)

    def trained(self) -> None:
        """A step is done; its weights are under way."""
        self.tell(Trained())
        version = self.state.step
        self.at(self.now + self.costs.push, lambda: self.arrived(version))

    def arrived(self, version: int) -> None:
        """Weights have arrived, and sequences in progress will be read again."""
        self.tell(Arrived(_WORKER, version))
        self.wake()

    def wake(self) -> None:
        """Let the sampler look, if it is idle."""
        if not self._busy:
            self.between()

    def between(self) -> None:
        """The sampler is between two chunks."""
        self._busy = False
        before = self.state.held[_WORKER]
        self.tell(Ended(_WORKER))
        if not self._left or (self.state.training and not self.overlap):
            return
        live = list(self._left)[: self.work.slots]
        seconds = 0.0
        if self.state.held[_WORKER] > before:
            seconds = self.costs.read_token * sum(self._sizes[number] for number, _ in live) / 2
        # as the sampler does, stop early once an eighth of the slots could be filled anew
        queue = len(self._left) > len(live)
        left = np.sort([self._left[name] for name in live])
        enough = left[min(len(left) - 1, len(live) // 8)] if queue else left[-1]
        steps = int(min(self.work.chunk, enough))
        decoded = int(np.minimum(left, steps).sum())
        seconds += self.costs.decode_step * steps + self.costs.decode_token * decoded
        end = self.now + seconds
        self.decoding += seconds
        self.spans.append(Span("sample", self.now, end, self.state.held[_WORKER]))
        for name in live:
            self._left[name] -= steps
            if self._left[name] <= 0:
                del self._left[name]
                self.at(end + self.costs.score, lambda number=name[0]: self.scored(number))
        self._busy = True
        self.at(end, self.between)

    def scored(self, number: int) -> None:
        """A completion has its score."""
        self._rows[number] -= 1
        if not self._rows[number]:
            del self._rows[number]
            self.tell(Finished(_WORKER, number))
            self.wake()


def costs_of(run: Path) -> Costs:
    """Costs fitted to the log of a synchronous run, by non-negative least squares over its steps.

    Decoding takes as many steps as the longest completion has tokens, where all completions of a
    step are decoded at once.

    Raises:
      ValueError: fewer than three steps are logged after the first, which compiles.
    """
    rows = list(metrics.read(run))[1:]
    if len(rows) < 3:
        raise ValueError(f"{run} has logged {len(rows) + 1} steps; costs are fitted to 4 or more")
    tokens = np.array([row["tokens"] for row in rows])
    longest = np.array([row["completion_length_max"] for row in rows])
    sample = np.array([row["time/sample"] for row in rows])
    train = np.array([row["time/train"] for row in rows])
    step, token = _fit(sample, longest, tokens)
    update, update_token = _fit(train, np.ones(len(rows)), tokens)
    push = float(np.median([row["time/sync"] for row in rows]))
    score = float(np.median([row["time/score"] for row in rows]))
    return Costs(step, token, update, update_token, push, score)


def _fit(seconds: np.ndarray, *columns: np.ndarray) -> tuple[float, float]:
    """Non-negative coefficients of two columns: of both, or of the better one alone."""
    both, *_ = np.linalg.lstsq(np.stack(columns, 1), seconds, rcond=None)
    if min(both) >= 0:
        return float(both[0]), float(both[1])
    alone = [float(seconds @ column / (column @ column)) for column in columns]
    errors = [
        float(np.sum((seconds - value * column) ** 2))
        for value, column in zip(alone, columns, strict=True)
    ]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


def lengths_of(run: Path) -> np.ndarray:
    """Lengths of the completions that a run has logged, in tokens.

    Raises:
      ValueError: it has logged none.
    """
    found = [
        sum(kind == "policy" for kind in row["source"])
        for path in sorted((run / "rollouts").glob("*.jsonl"))
        for row in jsonl.read(path)
    ]
    if not found:
        raise ValueError(f"{run} has no rollouts; log some with rollout_log.every")
    return np.array(found)


def drawn(lengths: np.ndarray, size: int, seed: int = 0) -> Callable[[int], np.ndarray]:
    """Lengths of groups of `size`, drawn from those that were seen; a group's are always the
    same."""
    return lambda number: np.random.default_rng([seed, number]).choice(lengths, size)


def timeline(outcome: Outcome, width: int = 72) -> str:
    """A picture of who worked when: a digit is the step that is trained or whose weights sample."""
    lines = []
    for who in ("sample", "train"):
        cells = [" "] * width
        for span in outcome.spans:
            if span.who == who:
                first = int(span.start / outcome.seconds * width)
                last = max(first + 1, int(span.end / outcome.seconds * width))
                cells[first:last] = str(span.step % 10) * (min(last, width) - first)
        lines.append(f"{who:>7} |{''.join(cells[:width])}|")
    return "\n".join(lines)


def example() -> str:
    """The timelines of docs/asynchronous.md: long-tailed lengths, in turns and side by side."""
    seen = np.random.default_rng(0).lognormal(5.5, 0.9, 4096).astype(int) + 1
    work = Workload(drawn(np.minimum(seen, 2048), 8), slots=256, chunk=64)
    costs = Costs(decode_step=0.02, decode_token=1e-5, update=1.0, update_token=2e-4, push=0.1)
    parts = []
    for staleness, overlap in ((0, False), (1, True), (2, True)):
        on = costs.on(0.5) if overlap else costs
        out = simulate(Limits(32, staleness, steps=10), on, work, overlap=overlap)
        title = f"staleness {staleness}, half of the devices each" if overlap else "in turns"
        figures = f"{out.seconds:.0f} s, idle/sample {out.idle_sample:.0%}"
        parts.append(
            f"{title}: {figures}, idle/train {out.idle_train:.0%}, lag {out.lag:.1f}\n"
            f"{timeline(out)}"
        )
    return "\n\n".join(parts)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The figures of an outcome, without its spans."""
    figures = {name: value for name, value in outcome._asdict().items() if name != "spans"}
    return figures | {"tokens_per_second": outcome.tokens_per_second}
