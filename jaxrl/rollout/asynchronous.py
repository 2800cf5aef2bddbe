"""Sampling that continues while the policy is trained, as `jaxrl.rollout.schedule` decides.

A `Sampling` works in steps and, within a step, in chunks of decoding. A step starts with new
weights: every sequence in progress continues under them, and its KV cache is recomputed. The only
traces of older weights are the tokens, each with the version and the log-probability that it was
sampled with. Between two chunks, answers of scorers and environments take effect, groups start, and
a batch may become complete. Training then takes the batch, and sampling continues under the same
weights until the update is done.

The samples of a step depend on its weights and on two things that are recorded: which answers took
effect before which chunk, and the number of chunks. There are three sources of these: `lockstep`
fixes them in advance, `Live` takes them from the clock, and `recorded` repeats a record bit for
bit.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl.data.selection import curriculum
from jaxrl.rollout import programs
from jaxrl.rollout.collect import Weights
from jaxrl.rollout.drive import Chunk, Drive, Group, Pending, RequestId
from jaxrl.rollout.flight import WORKER, Flight
from jaxrl.rollout.schedule import (
    Action,
    Admit,
    Arrived,
    Finished,
    Limits,
    Train,
    Trained,
)
from jaxrl.rollout.selection import Source


class Batch(NamedTuple):
    """What a step trains on."""

    groups: list[Group]
    """Groups whose rewards differ come first, as in a synchronous step."""
    admitted: int
    """Groups that were started in this step until the batch was complete."""
    length_bias: float
    """See `Flight.length_bias`."""


Open = Callable[[Weights, Mapping[RequestId, Pending | None]], Drive]
"""Makes the sampler of a step from its weights and from what is being answered already."""
Row = dict[str, Any]


class Sampling:
    """The groups in progress and the state of the schedule."""

    def __init__(
        self,
        limits: Limits,
        size: int,
        source: Source,
        open_drive: Open,
        log: Callable[[Row], None],
        *,
        together: bool,
        spare: int = 0,
    ) -> None:
        """Args: limits of the schedule, the group size, and where problems come from.

        `log` is given a row for each chunk, see docs/asynchronous.md. `together`: answers take
        effect together, once nothing is left to sample, as in a synchronous run. `spare`: groups of
        equal rewards that are replaced between two batches, at most.
        """
        self.limits, self._size, self._source, self.together = limits, size, source, together
        self._spare, self._dropped = spare, 0
        self._open_drive, self._log = open_drive, log
        self._flight = Flight(limits, size)
        self._drive: Drive | None = None
        self._weights: Weights | None = None
        self._row: Row = {}
        self._chunks = self._admitted = 0
        self.batch: Batch | None = None
        """Of the current step, once it is complete."""
        self.busy_s = 0.0
        """Seconds of decoding, in all."""

    @property
    def drive(self) -> Drive:
        """The sampler of the current step."""
        assert self._drive is not None
        return self._drive

    def start(self, weights: Weights) -> None:
        """Start a step; everything in progress continues under its weights."""
        futures = dict(self._drive.pending.values()) if self._drive is not None else {}
        self._weights, self.batch, self._row, self._chunks, self._admitted = weights, None, {}, 0, 0
        if not self._flight.state.held:
            self._do(self._flight.join(weights.step))
        else:
            self._do(self._flight.tell(Trained()))
            self._do(self._flight.tell(Arrived(WORKER, weights.step)))
        self._drive = self._open_drive(weights, futures)
        self._drive.begin(self._flight.open.groups)

    def between(self, answered: Collection[int]) -> Row:
        """What takes effect between two chunks.

        Args:
          answered: numbers of the answers that take effect.

        Returns:
          What was done, for the record.
        """
        assert self._weights is not None
        numbers, early = sorted(answered), self._row if not self._chunks else {}
        self._row = {"step": self._weights.step, "chunk": self._chunks, "answers": numbers, **early}
        self.drive.receive(self.drive.answers(numbers))
        self._finish()
        self._do(self._flight.between_chunks())
        self._finish()
        return self._row

    def chunk(self, *, decode: bool = True) -> bool:
        """Decode a chunk, if there is anything to decode, and record the row either way.

        Returns:
          Whether anything was decoded.
        """
        assert self._weights is not None
        decode = decode and bool(self.drive.work)
        if decode:
            done = self.drive.chunk(self._weights.version)
        else:
            done = Chunk(self.drive.sequences, self.drive.context, 0, 0, 0, 0, 0, 0.0)
        self.busy_s += done.seconds
        self._chunks += 1
        columns = {"version": self._weights.version, "decoded": decode, **done._asdict()}
        self._log({**self._row, **columns})
        return decode

    def stop(self) -> None:
        """End the step: what is in progress is kept as far as it has come."""
        self.drive.save_partial()
        self._finish()

    def abandon(self) -> None:
        """Give up what has been sampled; its problems are the next to be begun."""
        rows = self._flight.abandon()
        if self._drive is not None:
            self._drive.close_episodes(rows)
        self._drive, self._dropped = None, 0

    def get_state(self) -> dict[str, Any]:
        """The position between two steps and what is in flight, for a checkpoint."""
        dropped_state = {"dropped": self._dropped} if self._spare else {}
        return {"source": self._source.get_state(), **dropped_state, **self._flight.get_state()}

    def set_state(self, saved: dict[str, Any]) -> None:
        """Go on from a position."""
        self._source.set_state(saved["source"])
        self._flight.set_state(saved)
        self._drive, self._dropped = None, saved.get("dropped", 0)

    def _finish(self) -> None:
        """Tell the schedule of newly finished groups, some of which are replaced."""
        for number in self._flight.done():
            if self._replaced(number):
                self._do(self._flight.drop(number))
            else:
                self._do(self._flight.tell(Finished(WORKER, number)))

    def _replaced(self, number: int) -> bool:
        """Whether a group teaches nothing and is replaced; its source learns of it here."""
        group = self._flight.group(number)
        if self._dropped == self._spare or curriculum.informative(self._rewards([group]))[0]:
            return False
        self._dropped += 1
        self._row.setdefault("drop", []).append(number)
        self._source.learn([group.drawn], self._rewards([group]))
        return True

    def _rewards(self, groups: Sequence[Group]) -> np.ndarray:
        """[P, G] of P groups; nan: a failed score."""
        return np.array(
            [[programs.reward(row) for row in g.finished_rows[: self._size]] for g in groups]
        )

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Admit(_, numbers):
                    self._admit(numbers)
                case Train(numbers):
                    self._take(numbers)

    def _admit(self, numbers: tuple[int, ...]) -> None:
        assert self._weights is not None
        flight, count = self._flight, self.limits.groups_per_step
        while len(flight.open.waiting) < len(numbers):
            flight.open.waiting += self._source.draw(count, self._weights.params, flight.drawn())
        self._admitted += len(numbers)
        self._row["admit"] = list(numbers)
        self.drive.begin(flight.admit(numbers))

    def _take(self, numbers: tuple[int, ...]) -> None:
        bias = self._flight.length_bias(numbers)
        groups = self._flight.take(numbers)
        rewards = self._rewards(groups)
        self._dropped = 0
        self._source.learn([group.drawn for group in groups], rewards)
        uninformative = ~curriculum.informative(rewards)
        order = np.argsort(uninformative, kind="stable")
        self.batch = Batch([groups[i] for i in order], self._admitted, bias)
        self._row["train"] = list(numbers)


def due(sampling: Sampling, answered: Collection[int]) -> list[int]:
    """Answers that take effect now, of those that may, see `Sampling.together`."""
    requests, sampled = sampling.drive.pending, not sampling.drive.work
    if sampling.together:
        return list(requests) if sampled and len(answered) == len(requests) else []
    return [n for n in requests if n in answered]


def lockstep(sampling: Sampling, weights: Weights, chunks: int) -> Batch:
    """A step whose update takes a given number of chunks, so that its samples are deterministic.

    Answers take effect one chunk after they were requested; the step waits for them.

    Args:
      sampling: changed in place.
      weights: of the step.
      chunks: sampled after the batch is complete.

    Raises:
      RuntimeError: there is nothing left to wait for, and no batch.
    """
    sampling.start(weights)
    before: set[int] = set()
    left = chunks
    while True:
        answered = before if sampling.drive.work else set(sampling.drive.pending)
        row = sampling.between(due(sampling, answered))
        before = set(sampling.drive.pending)
        going = bool(sampling.drive.work or before)
        if sampling.batch is None:
            if not going:
                raise RuntimeError(
                    f"step {weights.step + 1}: nothing is being sampled and no batch is complete; "
                    f"the schedule makes no progress at {row}"
                )
            sampling.chunk()
            continue
        sampling.chunk(decode=going and left > 0)
        if not going or left <= 0:
            sampling.stop()
            return sampling.batch
        left -= 1


def recorded(sampling: Sampling, weights: Weights, rows: Sequence[Row]) -> Batch:
    """A step as it was recorded.

    Args:
      sampling: changed in place.
      weights: of the step.
      rows: of the step, in order.

    Raises:
      ValueError: the record does not have the step.
      RuntimeError: other groups begin, are replaced or are trained on than were recorded.
    """
    if not rows:
        raise ValueError(
            f"asynchronous.schedule: the recorded run has no schedule of step {weights.step + 1}; "
            "lower steps, or continue with live or lockstep:K"
        )
    sampling.start(weights)
    for row in rows:
        done = sampling.between(row["answers"])
        for name in ("drop", "admit", "train"):
            if done.get(name) != row.get(name):
                raise RuntimeError(
                    f"step {weights.step + 1}, chunk {row['chunk']}: {name} was {row.get(name)} "
                    f"and is {done.get(name)}; was the run recorded with another config?"
                )
        sampling.chunk(decode=row["decoded"])
    sampling.stop()
    if sampling.batch is None:
        raise RuntimeError(f"step {weights.step + 1}: its record ends before its batch is complete")
    return sampling.batch


_POLL_S = 1.0


class Live:
    """A step on its own thread, which samples until `halt` is called."""

    def __init__(self, sampling: Sampling, mesh: Mesh, patience_s: float) -> None:
        """Args: what to run, on which devices, and after how many seconds without a chunk to give
        up; 0: never.
        """
        self._sampling, self._mesh, self._patience = sampling, mesh, patience_s
        self._halted = threading.Event()
        self._thread: threading.Thread | None = None
        self._out: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._moved = perf_counter()

    def step(self, weights: Weights) -> Batch:
        """Start a step and wait for its batch; sampling continues on the thread.

        Raises:
          RuntimeError: no chunk has ended and no answer has arrived for too long.
        """
        self.halt()
        self._halted.clear()
        self._out, self._moved = queue.SimpleQueue(), perf_counter()
        self._thread = threading.Thread(
            target=self._run, args=(weights, self._out), name="sampling", daemon=True
        )
        self._thread.start()
        while True:
            with contextlib.suppress(queue.Empty):
                got = self._out.get(timeout=_POLL_S)
                if isinstance(got, BaseException):
                    raise got
                return got
            self._check_moving(f"step {weights.step + 1}")

    def halt(self) -> None:
        """Stop sampling at the end of the current chunk, and return once it has stopped.

        Raises:
          BaseException: what ended the thread, if the batch was there before.
          RuntimeError: the chunk does not end; it is not waited for again.
        """
        if self._thread is None:
            return
        self._halted.set()
        thread, self._thread, self._moved = self._thread, None, perf_counter()
        while thread.is_alive():
            self._check_moving("waiting for the chunk under way")
            thread.join(_POLL_S)
        with contextlib.suppress(queue.Empty):
            got = self._out.get_nowait()
            if isinstance(got, BaseException):
                raise got

    def _check_moving(self, what: str) -> None:
        """Raise if the sampling thread has stood still for too long."""
        quiet = perf_counter() - self._moved
        if self._patience and quiet > self._patience:
            waits = sorted(name for name, _ in self._sampling.drive.pending.values())
            raise RuntimeError(
                f"{what}: the sampling thread has ended no chunk for {quiet:.0f} s, and answers "
                f"are missing to {waits[:5]}; see stacks.txt, or raise "
                f"guard.stall_seconds={self._patience:g}"
            )

    def _run(self, weights: Weights, out: queue.SimpleQueue[Batch | BaseException]) -> None:
        try:
            with jax.set_mesh(self._mesh):
                self._sample(weights, out)
        except BaseException as error:  # the thread that waits for the batch raises it
            out.put(error)

    def _sample(self, weights: Weights, out: queue.SimpleQueue[Batch | BaseException]) -> None:
        sampling = self._sampling
        sampling.start(weights)
        waits = False
        while not self._halted.is_set():
            answers = due(sampling, sampling.drive.ready())
            if waits and not answers:
                self._wait()
                continue
            row = sampling.between(answers)
            if "train" in row and sampling.batch is not None:
                out.put(sampling.batch)
            decoded = sampling.chunk()
            waits = not (decoded or answers or "train" in row or "admit" in row)
            self._moved = perf_counter()
        sampling.stop()

    def _wait(self) -> None:
        """For an answer, or a short while."""
        if len(self._sampling.drive.ready()) < len(self._sampling.drive.pending):
            self._sampling.drive.wait(_POLL_S / 20)
        else:
            self._halted.wait(_POLL_S / 20)
