"""Sampling that continues while the policy is trained, as `jaxrl.rollout.schedule` decides.

A `Flight` is sampled in steps and, within a step, in chunks of decoding. A step starts with new
weights: every sequence in progress continues under them, and its KV cache is recomputed. The only
traces of older weights are the tokens, each with the version and the log-probability that it was
sampled with. Between two chunks, answers of scorers and environments take effect, groups start, and
a batch may become complete. Training then takes the batch, and sampling continues under the same
weights until the update is done.

The samples of a step depend on its weights and on two things that are recorded: which answers took
effect before which chunk, and the number of chunks. There are three sources of these: `lockstep`
fixes them in advance, `Live` takes them from the clock, and `recorded` repeats a record bit for
bit. A step in which nothing is sampled during the update is `collect.in_turns`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Collection, Sequence
from time import perf_counter

import jax
from jax.sharding import Mesh

from jaxrl.rollout.flight import Batch, Flight, Row, Weights


def due(flight: Flight, answered: Collection[int]) -> list[int]:
    """Answers that take effect now, of those that may, see `Flight`."""
    requests, sampled = flight.drive.pending, not flight.drive.work
    if flight.together:
        return list(requests) if sampled and len(answered) == len(requests) else []
    return [n for n in requests if n in answered]


def lockstep(flight: Flight, weights: Weights, chunks: int) -> Batch:
    """A step whose update takes a given number of chunks, so that its samples are deterministic.

    Answers take effect one chunk after they were requested; the step waits for them.

    Args:
      flight: changed in place.
      weights: of the step.
      chunks: sampled after the batch is complete.

    Raises:
      RuntimeError: there is nothing left to wait for, and no batch.
    """
    flight.start(weights)
    before: set[int] = set()
    left = chunks
    while True:
        answered = before if flight.drive.work else set(flight.drive.pending)
        row = flight.between(due(flight, answered))
        before = set(flight.drive.pending)
        going = bool(flight.drive.work or before)
        if flight.batch is None:
            if not going:
                raise RuntimeError(
                    f"step {weights.step + 1}: nothing is being sampled and no batch is complete; "
                    f"the schedule makes no progress at {row}"
                )
            flight.chunk()
            continue
        flight.chunk(decode=going and left > 0)
        if not going or left <= 0:
            flight.stop()
            return flight.batch
        left -= 1


def recorded(flight: Flight, weights: Weights, rows: Sequence[Row]) -> Batch:
    """A step as it was recorded.

    Args:
      flight: changed in place.
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
    flight.start(weights)
    for row in rows:
        done = flight.between(row["answers"])
        for name in ("drop", "admit", "train"):
            if done.get(name) != row.get(name):
                raise RuntimeError(
                    f"step {weights.step + 1}, chunk {row['chunk']}: {name} was {row.get(name)} "
                    f"and is {done.get(name)}; was the run recorded with another config?"
                )
        flight.chunk(decode=row["decoded"])
    flight.stop()
    if flight.batch is None:
        raise RuntimeError(f"step {weights.step + 1}: its record ends before its batch is complete")
    return flight.batch


_POLL_S = 1.0


class Live:
    """A step on its own thread, which samples until `halt` is called."""

    def __init__(self, flight: Flight, mesh: Mesh, patience_s: float) -> None:
        """Args: what to run, on which devices, and after how many seconds without a chunk to give
        up; 0: never.
        """
        self._flight, self._mesh, self._patience = flight, mesh, patience_s
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
            waits = self._flight.unanswered()
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
        flight = self._flight
        flight.start(weights)
        waits = False
        while not self._halted.is_set():
            answers = due(flight, flight.drive.ready())
            if waits and not answers:
                self._wait()
                continue
            row = flight.between(answers)
            if "train" in row and flight.batch is not None:
                out.put(flight.batch)
            decoded = flight.chunk()
            waits = not (decoded or answers or "train" in row or "admit" in row)
            self._moved = perf_counter()
        flight.stop()

    def _wait(self) -> None:
        """For an answer, or a short while."""
        if len(self._flight.drive.ready()) < len(self._flight.drive.pending):
            self._flight.drive.wait(_POLL_S / 20)
        else:
            self._halted.wait(_POLL_S / 20)
