"""Metrics to disk: one JSON object a line, TensorBoard beside it; and to trackers if asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import perf_counter, time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from jaxrl.mesh import distributed
from jaxrl.printable import printable, printable_values
from jaxrl.record import jsonl, storage
from jaxrl.record.storage import best_effort
from jaxrl.record.trackers import Row, Tracker

if TYPE_CHECKING:  # tensorboardX imports torch where it finds it: seconds, once the log is opened
    from tensorboardX.event_file_writer import EventsWriter

T = TypeVar("T")
_CLOSING_S = 300.0
"""Time that a tracker has at the end of a run to send what it still holds."""


class MetricsLog:
    """`metrics.jsonl` and TensorBoard events of a run, appended step by step.

    The former is a `jsonl.Log`, which waits for storage that fails; TensorBoard and trackers then
    go without. A bucket has neither. With several processes, the first alone writes.
    """

    def __init__(
        self,
        directory: Path,
        resume_step: int,
        note: Callable[[str], None],
        wanted: Mapping[str, Callable[[Path], Tracker]] = MappingProxyType({}),
        *,
        start: int | None = None,
    ) -> None:
        """Open for appending; lines of steps after `resume_step` are dropped, as they run again.

        Args:
          directory: of the run.
          resume_step: the last step whose lines stay.
          note: called with each failure.
          wanted: from `trackers.openers`.
          start: the step after which each should have a row, up to `resume_step`; None: unknown.
        """
        self._note = note
        self._board: EventsWriter | None = None
        self._trackers: dict[str, Tracker] = {}
        if not distributed.first():
            return
        path = directory / "metrics.jsonl"
        present: set[int] = set()

        def keep(row: dict[str, Any]) -> bool:
            if row["step"] <= resume_step:
                present.add(row["step"])
            return row["step"] <= resume_step

        self._log = jsonl.Log(path, note, keep)
        if start is not None:
            due = range(start + 1, resume_step + 1)
            jsonl.tell_missing(path, present, due, "steps", note)
        if storage.remote(path):
            return
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        # Not SummaryWriter: its thread dies of a full disk, and the run would wait for it forever.
        board = directory / "tensorboard"
        board.mkdir(exist_ok=True)
        self._board = EventsWriter(str(board / "events"), f".{os.getpid()}")
        again = SessionLog(status=SessionLog.START)  # steps from here on replace earlier ones
        self._board.write_event(Event(step=resume_step + 1, session_log=again, wall_time=time()))
        for name, opened in wanted.items():
            tracker = self._attempt(name, lambda opened=opened: opened(directory))
            if tracker is not None:
                self._trackers[name] = tracker

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one step; not-a-number is written as null, which JSON can hold."""
        if not distributed.first():
            return
        row = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._log.add({"step": step} | row)
        finite_values = {printable(k): v for k, v in row.items() if v is not None}
        self._tell(lambda tracker: tracker.log(step, finite_values))
        if self._board is None:
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        try:
            scalars = [Summary.Value(tag=printable(k), simple_value=v) for k, v in values.items()]
            self._board.write_event(
                Event(step=step, summary=Summary(value=scalars), wall_time=time())
            )
            self._board.flush()
        except OSError as error:
            self._note(f"WARNING: TensorBoard goes without further steps: {error}")
            self._board = None

    def table(self, step: int, rows: Sequence[Row]) -> None:
        """Send completions of a step to the trackers, if there are any."""
        printable_rows = printable_values(rows)
        if printable_rows:
            self._tell(lambda tracker: tracker.table(step, printable_rows))

    def _tell(self, act: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, lambda tracker=tracker: act(tracker))

    def _attempt(self, name: str, act: Callable[[], T]) -> T | None:
        """The result of `act`; if it fails, that is reported and the tracker no longer used."""
        try:
            return act()
        except (Exception, SystemExit) as error:  # whatever it is, it is no reason to end a run
            self._note(f"WARNING: {name} goes without further steps: {error}")
            self._trackers.pop(name, None)
            return None

    def close(self) -> None:
        """Close the TensorBoard file, and the runs of trackers."""
        self._tell(lambda tracker: _within(_CLOSING_S, tracker.close))
        if self._board is not None:
            with best_effort("the TensorBoard file", self._note):
                self._board.close()


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Call `act` in a thread that is left behind when the time is over, and raise its error.

    Raises:
      TimeoutError: it has not returned.
    """
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=attempt, name="tracker", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"it did not end within {seconds:g} s")
    if errors:
        raise errors[0]


def read(directory: Path) -> list[dict[str, float]]:
    """The rows of a run's `metrics.jsonl` that are of a step."""
    return list(jsonl.numbers(directory / "metrics.jsonl"))


class Timer:
    """Seconds by phase: `with timer("sample"): ...`; `take` returns and clears them."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of the body to `phase`."""
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + perf_counter() - start

    def take(self) -> dict[str, float]:
        """`time/PHASE` of all phases since the last call."""
        durations, self._seconds = self._seconds, {}
        return {f"time/{phase}": seconds for phase, seconds in durations.items()}
