"""A run in simulated time: the schedule of `jaxrl.rollout.schedule` on a heap of timed events.

`simulate` drives the same `decide` that drives a live run, and takes seconds from `Costs` in place
of devices. `jaxrl.launch.planning.costs` fits these to the log of a synchronous run.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.launch.planning.costs import Costs, width
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
from jaxrl.sampling.admission import work_of
from jaxrl.sampling.work import SamplerConfig, slot_counts

_WORKER = "sampler"


class Workload(NamedTuple):
    """What a run samples."""

    lengths: Callable[[int], np.ndarray]
    """The lengths in tokens of a group's completions, [group size], by its number."""
    sampler: SamplerConfig
    """Completions decoded at once, and most decoding steps between two decisions."""
    prompt: int = 0
    """Tokens of a prompt, which a group reads once."""


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
    older: float
    """Share of the tokens trained on that older weights sampled."""
    tokens: int
    """Trained on."""
    spans: tuple[Span, ...]

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on in a second."""
        return self.tokens / self.seconds


def simulate(
    limits: Limits,
    costs: Costs,
    work: Workload,
    *,
    overlap: bool,
    lockstep: int = 0,
    every: int = 1,
    drain: bool = False,
) -> Outcome:
    """A run of `limits.steps` steps in simulated time.

    Args:
      limits: of the schedule.
      costs: in seconds, on the devices of each.
      work: what is sampled.
      overlap: sampling continues during updates; else they take turns,
      lockstep: this number of chunks is sampled after a batch is whole and before its update.
      every: steps after which new weights are sent.
      drain: the sampler ends all that it has begun before it takes new weights, and begins nothing
        meanwhile; else it continues under them.

    Raises:
      ValueError: `limits.steps` is missing, or the schedule makes no progress.
    """
    if limits.steps is None:
        raise ValueError("limits.steps=None has no end; set the number of steps to simulate")
    run = _Run(limits, costs, work, overlap, lockstep, every, drain)
    run.tell(Joined(_WORKER, 0))
    run.wake()
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
        run.older / max(1, run.tokens),
        run.tokens,
        tuple(run.spans),
    )


@dataclasses.dataclass
class _Row:
    """A completion under way."""

    left: int
    """Tokens to decode."""
    done: int = 0
    reader: int = -1
    """The step whose sampler has read it; -1: none."""
    before: int = 0
    """Tokens that were decoded before that sampler read it."""


class _Run:
    """The state of a simulation: one sampler, one trainer, and scorers without limit."""

    def __init__(
        self,
        limits: Limits,
        costs: Costs,
        work: Workload,
        overlap: bool,
        lockstep: int,
        every: int,
        drain: bool,
    ) -> None:
        self.limits, self.costs, self.work = limits, costs, work
        self.overlap, self.lockstep, self.every, self.drain = overlap, lockstep, every, drain
        self.state, self.now = State(), 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.spans: list[Span] = []
        self.lags: list[int] = []
        self.decoding = self.training = 0.0
        self.tokens = self.older = self._pushed = self._arrived = 0
        self._live: dict[tuple[int, int], _Row] = {}  # by group and row
        self._unscored: dict[int, int] = {}  # rows without a score
        self._versions: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._ended: dict[int, list[_Row]] = {}
        self._busy = False
        self._due: tuple[int, float] | None = None  # chunks before an update, and its seconds

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
        self._live |= {(number, row): _Row(int(n)) for row, n in enumerate(lengths)}
        self._unscored[number], self._sizes[number] = len(lengths), int(np.sum(lengths))
        self._versions[number] = self.state.held[_WORKER]

    def train(self, numbers: Sequence[int]) -> None:
        """Take a step, at once, or after some chunks more of what may be begun by then."""
        tokens = sum(self._sizes.pop(number) for number in numbers)
        step = self.state.step
        ended = [row for number in numbers for row in self._ended.pop(number)]
        self.older += sum(row.done if row.reader < step else row.before for row in ended)
        self.lags += [step - self._versions.pop(number) for number in numbers]
        self.tokens += tokens
        # the chunk under way, during which the last score came, is not one of them
        wait = self.lockstep + self._busy
        self._due = (wait, self.costs.update + self.costs.update_token * tokens)
        if not self.lockstep:
            self.update()

    def update(self) -> None:
        """Begin the update that is due."""
        assert self._due is not None
        seconds, self._due, step = self._due[1], None, self.state.step
        self.training += seconds
        self.spans.append(Span("train", self.now, self.now + seconds, step))
        self.at(self.now + seconds, self.trained)

    def trained(self) -> None:
        """A step is done; its weights are under way."""
        self.tell(Trained())
        version = self.state.step
        if version % self.every == 0:
            self.at(self.now + self.costs.push, lambda: self.arrived(version))

    def arrived(self, version: int) -> None:
        """Weights lie ready, and what is in progress will be read again."""
        self._arrived = version
        self.tell(Arrived(_WORKER, version))
        self.wake()

    def wake(self) -> None:
        """Let the sampler look, if it is idle."""
        if not self._busy:
            self.between()

    def between(self) -> None:
        """The sampler is between two chunks."""
        self._busy = False
        if not self.overlap and (self.state.step > self._arrived or self._paused()):
            return
        draining = self.drain and self._live and self._arrived > self.state.held[_WORKER]
        if not draining:
            self.tell(Ended(_WORKER))
        if not self._live and self._due is not None:
            self.update()
        if not self._live or self._paused():
            return
        live = dict(list(self._live.items())[: self.work.sampler.slots])
        passes, positions = self.read(live)
        seconds = self.costs.chunk + self.costs.read_pass * passes
        seconds += self.costs.read_position * positions
        steps = self.steps([row.left for row in live.values()], len(self._live) > len(live))
        slots = width(self.work.sampler.slots, len(live))
        seconds += self.costs.decode_step * steps
        seconds += (self.costs.decode_slot * steps + self.costs.chunk_slot) * slots
        end = self.now + seconds
        self.decoding += seconds
        self.spans.append(Span("sample", self.now, end, self.state.held[_WORKER]))
        for name, row in live.items():
            row.left, row.done = row.left - steps, row.done + steps
            if row.left <= 0:
                row.done += row.left  # not beyond its end
                self._ended.setdefault(name[0], []).append(self._live.pop(name))
                after = max(self.costs.score, 1e-9 if self.lockstep else 0.0)
                self.at(end + after, lambda number=name[0]: self.scored(number))
        self._busy = True
        self.at(end, self.chunk_ended)

    def chunk_ended(self) -> None:
        """Of an update that waits for chunks, one less is missing."""
        if self._due is not None:
            self._due = (self._due[0] - 1, self._due[1])
            if self._due[0] <= 0 or not self._live:
                self._busy = False
                self.update()
                return
        self.between()

    def _paused(self) -> bool:
        """Whether the sampler waits for an update, where they take turns."""
        return not self.overlap and bool(self.state.training) and self._due is None

    def read(self, live: Mapping[tuple[int, int], _Row]) -> tuple[int, int]:
        """Passes, and positions in them, by which new prompts and what a new sampler finds begun
        are read before a chunk."""
        step, lengths, prompts = self.state.held[_WORKER], list[int](), set[int]()
        for (number, _), row in live.items():
            if row.reader == step:
                continue
            row.reader, row.before = step, row.done
            if row.done:
                lengths.append(self.work.prompt + row.done)
            elif number not in prompts and self.work.prompt:
                prompts.add(number)
                lengths.append(self.work.prompt)
        sampler = self.work.sampler
        return work_of(lengths, sampler.prefill_rows, sampler.prefill_piece)

    def steps(self, left: Sequence[int], queue: bool) -> int:
        """Decoding steps of a chunk, which ends early as the sampler's does: once an eighth of the
        slots could be filled anew, or where none wait, once the next smaller number would do."""
        ends = np.sort(left)
        slots, live = self.work.sampler.slots, len(left)
        total = width(slots, live)
        smaller = max((size for size in slot_counts(slots) if size < total), default=0)
        stay = max(1, live - total // 8 + 1) if queue else smaller + 1
        return int(min(self.work.sampler.chunk, ends[max(0, live - stay)]))

    def scored(self, number: int) -> None:
        """A completion has its score."""
        self._unscored[number] -= 1
        if not self._unscored[number]:
            del self._unscored[number]
            self.tell(Finished(_WORKER, number))
            self.wake()


def draw_lengths(groups: Sequence[np.ndarray], seed: int = 0) -> Callable[[int], np.ndarray]:
    """Lengths of groups, drawn whole from those that were seen; a group's are always the same."""
    return lambda number: groups[np.random.default_rng([seed, number]).integers(len(groups))]


def repeated(groups: Sequence[np.ndarray]) -> Callable[[int], np.ndarray]:
    """Lengths of groups in the order in which they were seen, again and again."""
    return lambda number: groups[number % len(groups)]


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
    lengths = np.random.default_rng(0).lognormal(5.5, 0.9, 4096).astype(int) + 1
    groups = np.minimum(lengths, 2048).reshape(-1, 8)
    work = Workload(draw_lengths(groups), SamplerConfig(slots=256, chunk=64))
    costs = Costs(decode_step=0.02, decode_slot=1e-5, update=1.0, update_token=2e-4, push=0.1)
    parts = []
    for staleness, overlap in ((0, False), (1, True), (2, True)):
        run_costs = costs.on(0.5) if overlap else costs
        out = simulate(Limits(32, staleness, steps=10), run_costs, work, overlap=overlap)
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
