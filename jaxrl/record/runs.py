"""A run directory as tables, for notebooks and reports. Needs NumPy alone.

run = jaxrl.load_run("runs/quickstart-seed0")
pandas.DataFrame(run.metrics).plot(x="step", y="reward/mean")
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl import json_file
from jaxrl.record import jsonl, storage

Table = dict[str, np.ndarray]
"""Columns of equal length; `pandas.DataFrame` takes it as it is."""


class Run(NamedTuple):
    """The tables of a run so far; a table that does not exist yet is empty."""

    directory: Path
    config: dict[str, Any]
    """Nested, as in `config.json`."""
    environment: dict[str, Any]
    """Command, device, host, package versions, git revision."""
    summary: dict[str, Any]
    """Empty until the run is finished."""
    metrics: Table
    """A row a training step."""
    evals: Table
    """A row a completion of a held-out problem."""
    rollouts: Table
    """A row a kept completion of a training step; see `jaxrl.rollout.rollout_log`."""


_SUMMARY = {"steps": int, "seconds": int | float, "eval": dict, "lineage": list}
"""Types of a summary's values, of those that a report reads."""


def load_run(directory: str | Path, *, texts: bool = True) -> Run:
    """The tables of a run, finished or not.

    Args:
      directory: of the run.
      texts: False leaves out the completions, `evals` and `rollouts`, which may be long.

    Raises:
      FileNotFoundError: `directory` holds no run.
      ValueError: its config or its summary is damaged.
    """
    directory = storage.locate(directory)
    saved = _saved(directory)
    rows = jsonl.numbers(directory / "metrics.jsonl")
    summary = directory / "summary.json"
    return Run(
        directory=directory,
        config=saved.pop("config"),
        environment=saved,
        summary=_summary(summary) if summary.exists() else {},
        metrics=table({k: v for k, v in row.items() if v is not None} for row in rows),
        evals=table(completions(directory, "evals")) if texts else {},
        rollouts=table(completions(directory, "rollouts")) if texts else {},
    )


def load_config(directory: str | Path) -> dict[str, Any]:
    """The config of a run, nested.

    Raises:
      FileNotFoundError: `directory` holds no run.
    """
    return _saved(storage.locate(directory))["config"]


def _summary(path: Path) -> dict[str, Any]:
    """The summary of a finished run, whose values are of the types that it was written with.

    Raises:
      ValueError: it is damaged.
    """
    summary = json_file.read(path)
    for name, kind in _SUMMARY.items():
        value = summary.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{path} is damaged: {name}={value!r:.200}; restore it from a copy")
    figures = summary.get("eval") or {"before": {}, "after": {}}
    ends = [figures.get(end) for end in ("before", "after")]
    sources = summary.get("lineage") or []
    if (
        not all(isinstance(end, dict) for end in ends)
        or (summary.get("eval") and type(summary.get("steps")) is not int)
        or not all(isinstance(x, dict) and type(x.get("step")) is int for x in sources)
    ):
        raise ValueError(f"{path} is damaged: its eval or lineage; restore it from a copy")
    return summary


def _saved(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{directory} holds no run: there is no config.json in it; name a run directory, "
            "such as runs/quickstart-seed0"
        )
    json_file.field(path, "config")
    return json_file.read(path)


def completions(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of all steps of `evals` or `rollouts`, each with its step."""
    for path in sorted((directory / kind).glob("*.jsonl")):
        step = storage.number(path.stem)
        if step is None:
            warnings.warn(f"{path} is named after no step, and none of it is read", stacklevel=2)
            continue
        for row in jsonl.read(path):
            yield {"step": step, **row}


def table(records: Iterable[Mapping[str, Any]]) -> Table:
    """Records as columns: floats where all values are numbers (missing ones NaN), else objects.

    A mapping within a record becomes one column an entry, as in `parts/correct`. Whole numbers
    without gaps stay whole.
    """
    flat = [flatten(record) for record in records]
    names = dict.fromkeys(name for record in flat for name in record)
    return {name: _column([record.get(name) for record in flat]) for name in names}


def flatten(record: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested mappings as one, with joined names; an empty one goes without trace."""
    out: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            inner = flatten(value, separator)
            out |= {f"{name}{separator}{key}": entry for key, entry in inner.items()}
        else:
            out[name] = value
    return out


def _column(values: list[Any]) -> np.ndarray:
    kinds = {type(value) for value in values}
    if kinds <= {int} or kinds <= {bool}:
        return np.array(values)
    if kinds <= {int, float, bool, type(None)} and kinds != {type(None)}:
        return np.array([np.nan if value is None else value for value in values], float)
    column = np.empty(len(values), object)
    for i, value in enumerate(values):  # lists stay lists, even where all are of one length
        column[i] = value
    return column
