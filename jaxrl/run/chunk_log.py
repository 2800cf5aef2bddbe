"""What each chunk of decoding did: a log of a run, from which its costs can be told.

A synchronous run writes `RUN/chunks.jsonl`, an asynchronous one the same fields and what was
decided into `RUN/schedule.jsonl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxrl.mesh import distributed
from jaxrl.record import jsonl
from jaxrl.rollout.drive import Chunk

FILE = "chunks.jsonl"


class StepLog:
    """Rows of steps; a step that is done again replaces its rows and those after it."""

    def __init__(self, path: Path, note: Callable[[str], None], *, sync: bool = True) -> None:
        """Args: the file, a function that is called with failures to write, and see
        `jsonl.Log`."""
        self._path, self._note, self._sync, self._next = path, note, sync, -1
        self._log: jsonl.Log | None = None

    def begin(self, step: int) -> None:
        """Begin a step; rows of it and of later ones are dropped."""
        if distributed.first() and step != self._next:
            self._log = jsonl.Log(
                self._path, self._note, lambda row: row["step"] < step, sync=self._sync
            )
        self._next = step + 1

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows."""
        if self._log is not None:
            self._log.add(*rows)


class ChunkLog:
    """The chunks of a synchronous run."""

    def __init__(self, directory: Path, note: Callable[[str], None]) -> None:
        """Args: the run's directory, and a function that is called with failures to write."""
        self._log = StepLog(directory / FILE, note, sync=False)

    def write(self, step: int, chunks: Iterable[Chunk]) -> None:
        """Append the chunks of the step that follows `step` steps, all at once."""
        self._log.begin(step)
        rows = ({"step": step, "chunk": n, **c._asdict()} for n, c in enumerate(chunks))
        self._log.add(*rows)
