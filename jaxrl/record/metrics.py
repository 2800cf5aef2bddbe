"""Metrics to disk: one JSON object a line, TensorBoard beside it; and to wandb where asked for."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Any, TypeVar

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from jaxrl.mesh import distributed
from jaxrl.record import jsonl, storage
from jaxrl.record.rundir import best_effort

T = TypeVar("T")


class MetricsLog:
    """`metrics.jsonl` and TensorBoard events of a run, appended step by step.

    The former is a `jsonl.Log`, which waits for storage that fails; TensorBoard and wandb then go
    without. A bucket has neither. With several processes, the first alone writes.
    """

    def __init__(
        self,
        directory: Path,
        resume_step: int,
        note: Callable[[str], None],
        wandb_project: str = "",
    ) -> None:
        """Open for appending; lines of steps after `resume_step` are dropped, as they run again."""
        self._note = note
        self._board: EventsWriter | None = None
        self._wandb: Any = None
        if not distributed.first():
            return
        path = directory / "metrics.jsonl"
        self._log = jsonl.Log(path, note, lambda row: row["step"] <= resume_step)
        if storage.remote(path):
            return
        # Not SummaryWriter: its thread dies of a full disk, and the run would wait for it forever.
        board = directory / "tensorboard"
        board.mkdir(exist_ok=True)
        self._board = EventsWriter(str(board / "events"), f".{os.getpid()}")
        again = SessionLog(status=SessionLog.START)  # steps from here on replace earlier ones
        self._board.write_event(Event(step=resume_step + 1, session_log=again, wall_time=time()))
        if wandb_project:
            self._wandb = self._attempt(lambda: _wandb_run(directory, wandb_project))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one step; not-a-number is written as null, which JSON can hold."""
        if not distributed.first():
            return
        row = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._log.add({"step": step} | row)
        if self._wandb is not None:
            shown = {k: v for k, v in row.items() if v is not None}
            self._attempt(lambda: self._wandb.log({"step": step} | shown))
        if self._board is None:
            return
        try:
            scalars = [Summary.Value(tag=k, simple_value=v) for k, v in values.items()]
            self._board.write_event(
                Event(step=step, summary=Summary(value=scalars), wall_time=time())
            )
            self._board.flush()
        except OSError as error:
            self._note(f"WARNING: TensorBoard goes without further steps: {error}")
            self._board = None

    def _attempt(self, act: Callable[[], T]) -> T | None:
        """The result of `act`; if it fails, the error is reported and wandb is no longer used."""
        try:
            return act()
        except Exception as error:  # whatever it is, it is no reason to end a run
            self._note(f"WARNING: wandb goes without further steps: {error}")
            self._wandb = None
            return None

    def close(self) -> None:
        """Close the TensorBoard file, and the run of wandb."""
        if self._wandb is not None:
            self._attempt(self._wandb.finish)
        if self._board is not None:
            with best_effort("the TensorBoard file", self._note):
                self._board.close()


def _wandb_run(directory: Path, project: str) -> Any:
    """The wandb run of a run directory, started or resumed."""
    import wandb

    mark = directory / "wandb" / "id"
    mark.parent.mkdir(exist_ok=True)
    if not mark.exists():
        mark.write_text(uuid.uuid4().hex)
    saved = json.loads((directory / "config.json").read_text())
    run = wandb.init(
        project=project,
        id=mark.read_text(),
        name=directory.name,
        dir=directory,
        config=saved["config"],
        resume="allow",
    )
    run.define_metric("*", step_metric="step")  # its own count cannot go back, as ours can
    return run


def read(directory: Path) -> list[dict[str, float]]:
    """The rows of a run's `metrics.jsonl`."""
    return list(jsonl.read(directory / "metrics.jsonl"))


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
        taken, self._seconds = self._seconds, {}
        return {f"time/{phase}": seconds for phase, seconds in taken.items()}
