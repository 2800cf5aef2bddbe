"""Metrics to disk: one JSON object a line, and TensorBoard beside it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from tensorboardX import SummaryWriter


class MetricsLog:
    """`metrics.jsonl` and TensorBoard events of a run, appended step by step."""

    def __init__(self, directory: Path, resume_step: int) -> None:
        """Open for appending; lines of steps after `resume_step` are dropped, as they run again."""
        path = directory / "metrics.jsonl"
        kept = [line for line in _lines(path) if json.loads(line)["step"] <= resume_step]
        fresh = path.with_suffix(".tmp")
        fresh.write_text("".join(line + "\n" for line in kept))
        os.replace(fresh, path)
        self._file = path.open("a")
        self._board = SummaryWriter(
            str(directory / "tensorboard"), purge_step=resume_step + 1, write_to_disk=True
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one step; not-a-number is written as null, which JSON can hold."""
        row = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._file.write(json.dumps({"step": step} | row) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._board.close()


def _lines(path: Path) -> list[str]:
    """Complete lines; a last one torn by a crash is left out."""
    if not path.exists():
        return []
    return [line[:-1] for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]


def read(directory: Path) -> list[dict[str, float]]:
    """The rows of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in _lines(directory / "metrics.jsonl")]


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
