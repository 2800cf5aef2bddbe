"""Trackers beside a run's own metrics: Weights & Biases, trackio, MLflow and OpenTelemetry.

A tracker is imported only where it is asked for. A continued run is recorded in the tracker's
run, whose id is kept in `RUN/TRACKER/id`.
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import json_file
from jaxrl.config import Config, TrackConfig
from jaxrl.printable import printable

_LONGEST_ID = 4096
"""Bytes of the id of a run in a tracker."""

_LONGEST_METRIC = 249
"""Characters of a metric's name in MLflow, and after a prefix in OpenTelemetry."""

_DURATIONS = {
    "time/step": "rl.loop.duration",
    "time/sample": "rl.sample.duration",
    "time/score": "rl.reward.duration",
    "time/train": "rl.train.duration",
    "time/sync": "rl.sync.duration",
}
_GAUGES = {
    "loss": "rl.train.loss",
    "reward/mean": "rl.environment.reward.mean",
    "completion_length": "rl.environment.episode.length.mean",
}

Row = Mapping[str, str | float | None]
"""A line of a table, by column."""


class Tracker(NamedTuple):
    """The functions by which a run reports to its tracker."""

    log: Callable[[int, Mapping[str, float]], object]
    """`(step, metrics)`: those of a step that are finite."""
    table: Callable[[int, Sequence[Row]], object]
    """`(step, rows)`: completions of a step, at least one, all with the same columns."""
    close: Callable[[], object]


def openers(config: Config) -> dict[str, Callable[[Path], Tracker]]:
    """What opens each tracker that a config asks for, given the run directory."""
    makers = {"wandb": wandb, "trackio": trackio, "mlflow": mlflow, "otlp": otlp}
    return {
        name: functools.partial(make, project=project, settings=config.track)
        for name, make in makers.items()
        if (project := getattr(config, name))
    }


def wandb(directory: Path, project: str, settings: TrackConfig) -> Tracker:
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it in `RUN/wandb`."""
    import wandb as client

    run = client.init(
        project=project,
        entity=settings.entity or None,
        name=_name(directory, settings),
        tags=_tags(settings) or None,
        id=_kept_id(directory / "wandb", lambda: uuid.uuid4().hex),
        dir=directory,
        config=_config(directory),
        resume="allow",
        reinit="create_new",  # beside those of other runs that this process trains
    )
    run.define_metric("*", step_metric="step")  # its own count cannot go back, as ours can

    def table(step: int, rows: Sequence[Row]) -> None:
        completions = client.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        run.log({"step": step, "completions": completions})

    return Tracker(lambda step, values: run.log({"step": step, **values}), table, run.finish)


def trackio(directory: Path, project: str, settings: TrackConfig) -> Tracker:
    """A run of trackio, which keeps its runs on this machine; `trackio show` draws them."""
    import trackio as client

    run = client.init(
        project=project,
        name=_kept_id(directory / "trackio", lambda: _as_id(_name(directory, settings))),
        config=_config(directory) | {"tags": _tags(settings)},
        resume="allow",
        embed=False,
    )

    def table(step: int, rows: Sequence[Row]) -> None:
        completions = client.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        run.log({"completions": completions}, step=step)

    return Tracker(lambda step, values: run.log(dict(values), step=step), table, run.finish)


def mlflow(directory: Path, project: str, settings: TrackConfig) -> Tracker:
    """A run of an MLflow experiment, at `MLFLOW_TRACKING_URI`."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient()

    def create() -> str:
        existing_experiment = client.get_experiment_by_name(project)
        experiment = (
            existing_experiment.experiment_id
            if existing_experiment
            else client.create_experiment(project)
        )
        tags = dict.fromkeys(_tags(settings), "true")
        name = _name(directory, settings)
        return client.create_run(experiment, run_name=name, tags=tags).info.run_id

    run = _kept_id(directory / "mlflow", create)
    client.update_run(run, status="RUNNING")
    client.log_dict(run, _config(directory), "config.json")

    def log(step: int, values: Mapping[str, float]) -> None:
        timestamp = int(time.time() * 1000)
        client.log_batch(
            run, metrics=[Metric(_spelled(k), v, timestamp, step) for k, v in values.items()]
        )

    def table(step: int, rows: Sequence[Row]) -> None:
        columns = list(rows[0])
        completions = {
            "columns": columns,
            "data": [[row[name] for name in columns] for row in rows],
        }
        client.log_dict(run, completions, f"completions/{step:06d}.json")

    return Tracker(log, table, lambda: client.set_terminated(run))


def otlp(directory: Path, project: str, settings: TrackConfig) -> Tracker:
    """A collector of OpenTelemetry at the address `project`, which gets metrics every 10 seconds.

    Names are those of the proposed conventions for reinforcement learning (`rl.*`): histograms of
    seconds, counters, and gauges of a step. Other metrics are gauges `jaxrl.NAME`. It takes no
    tables.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    config = _config(directory)
    of_run = {
        "service.name": "jaxrl",
        "rl.system": "jaxrl",
        "rl.system.version": version("jaxrl"),
        "rl.run.id": _kept_id(directory / "otlp", lambda: uuid.uuid4().hex),
        "jaxrl.run.name": _name(directory, settings),
        "jaxrl.run.tags": _tags(settings),
        "rl.algorithm": printable(config["recipe"]),
        "rl.model.name": printable(config["model"]),
        "rl.environment.name": printable(config["task"]),
    }
    exporter = OTLPMetricExporter(endpoint=f"{project.rstrip('/')}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=10_000)
    provider = MeterProvider([reader], Resource.create(of_run), shutdown_on_exit=False)
    meter = provider.get_meter("jaxrl")
    durations = {k: meter.create_histogram(name, "s") for k, name in _DURATIONS.items()}
    gauge = functools.cache(meter.create_gauge)
    steps = meter.create_counter("rl.train.steps", "{step}")
    tokens = meter.create_counter("rl.train.tokens", "{token}")

    def log(step: int, values: Mapping[str, float]) -> None:
        steps.add(1)
        tokens.add(values.get("tokens", 0.0))
        for metric, value in {**values, "step": step}.items():
            if metric in durations:
                durations[metric].record(value)
            elif metric != "tokens":
                gauge(_GAUGES.get(metric) or f"jaxrl.{_spelled(metric, ' ')}").set(value)

    return Tracker(log, lambda step, rows: None, provider.shutdown)


def _spelled(metric: str, refused: str = "") -> str:
    """A metric's name as MLflow takes it, names that differ staying distinct; without the
    characters `refused` and those beyond ASCII where there are any.

    Characters that it lacks are spelled out. A name that is too long, or that has a part which a
    path skips, such as `..`, begins with a digest and has no slashes.
    """
    name, flags = metric.replace("@", "_at_"), re.ASCII if refused else re.NOFLAG
    odd = rf"[^/\w.\- ]|[{refused}]" if refused else r"[^/\w.\- ]"
    name = re.sub(odd, lambda match: f"_{ord(match[0]):x}_", name, flags=flags)
    is_path = all(part.strip(".") for part in name.split("/"))
    if is_path and len(name) <= _LONGEST_METRIC:
        return name
    digest = hashlib.sha256(metric.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{digest}_{name.replace('/', '_')}"[:_LONGEST_METRIC]


def _config(directory: Path) -> dict[str, Any]:
    return json_file.field(directory / "config.json", "config")


def _name(directory: Path, settings: TrackConfig) -> str:
    """The name of a run, which trackers print, and make names of files and addresses of."""
    return printable(settings.name or directory.name)


def _as_id(name: str) -> str:
    """The name of a run as one that is no path, as trackio names files by it."""
    return re.sub(r"[/\\]", "_", name).strip(".") or "run"


def _tags(settings: TrackConfig) -> list[str]:
    return [printable(tag) for tag in settings.tags]


def _kept_id(directory: Path, make: Callable[[], str]) -> str:
    """The id of a run in a tracker, made once; a run directory of others may hold any text there.

    Raises:
      ValueError: it is more than a name.
    """
    mark = directory / "id"
    if not mark.exists():
        directory.mkdir(exist_ok=True)
        mark.write_text(make())
    run_id = json_file.text(mark, _LONGEST_ID)
    if printable(run_id) != run_id or {"", ".", ".."} & {*run_id.split("/")}:
        raise ValueError(f"{mark} holds {run_id!r:.200}, which is no id of a run; remove the file")
    return run_id
