"""What a part of the measurement is told, and the report that it writes as it goes."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

END = "JAXRL_ACCELERATOR_END"
"""Variable of a part's process: the time, in seconds since 1970, at which it is stopped."""
TOTAL = "accelerator.json"
"""All parts in one file, of which the table is made."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of one part."""

    rehearse: bool
    """Small shapes, on the CPU."""
    work: Path
    """Folder for models, runs and compiled programs, shared by all parts."""
    out: Path
    """Folder of the JSON files."""

    def sized(self, real: Any, small: Any) -> Any:
        """`real`, or `small` in a rehearsal."""
        return small if self.rehearse else real

    def other(self, part: str) -> dict[str, Any]:
        """The results of a part that ran before; empty where there are none."""
        path = self.out / f"{part}.json"
        return json.loads(path.read_text()).get("results", {}) if path.exists() else {}


def remaining() -> float:
    """Seconds until the process of this part is stopped; infinite outside such a process."""
    end = os.environ.get(END)
    return float("inf") if end is None else float(end) - time.time()


class Report:
    """Results of a part, on disk after each addition, so that a part that is stopped leaves some.

    `results` is by name; what failed beside what worked is in `failures`, and what was not tried is
    in `skipped`, each with the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self.skipped: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Keep a result."""
        self.results[name] = value
        print(f"{name}: {json.dumps(plain(value))}"[:600], flush=True)
        self.write()

    def skip(self, name: str, why: str) -> None:
        """Say that something is not measured."""
        self.skipped[name] = why
        print(f"{name}: skipped: {why}", flush=True)
        self.write()

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Keep an exception of the body as the failure of `name`, and go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.failures[name] = f"{type(error).__name__}: {error}"[:1500]
            print(f"{name}: failed: {self.failures[name]}", flush=True)
            self.write()

    def write(self) -> None:
        """The file as of now; a reader sees it whole."""
        value = {
            "results": self.results,
            "failures": self.failures,
            "skipped": self.skipped,
        }
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(plain(value), indent=1) + "\n")
        partial.replace(self.path)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: NumPy's numbers as Python's, not-a-number as text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        finite = value == value and abs(value) != float("inf")
        return float(f"{value:.6g}") if finite else str(value)
    return value
