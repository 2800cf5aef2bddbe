"""What a report shows, gathered from run directories as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl import json_file, masks
from jaxrl.data.offline import statistics
from jaxrl.launch.report import panels
from jaxrl.printable import printable
from jaxrl.record import rundir, runs, storage
from jaxrl.record.runs import Run, Table

POINTS = 1000
"""Points of a curve; more steps than this are averaged in equal runs."""
ROLLOUT_BYTES = 48_000_000
"""Of embedded rollouts, as JSON; of more than this, evenly spread groups are kept."""
_INCIDENTAL = ("seed", "run_dir")  # what runs of one experiment may differ in
_TOKEN_LISTS = ("logp", "entropy", "advantage", "log_ratio", "version", "source", "turn")

Json = dict[str, Any]


def gather(directories: Sequence[Path]) -> Json:
    """Everything that the page needs, JSON-able.

    Raises:
      FileNotFoundError: a directory that holds no run.
      ValueError: no directory.
    """
    if not directories:
        raise ValueError("a report needs a run; name one or more run directories")
    loaded = [runs.load_run(directory, texts=False) for directory in directories]
    configs = [runs.flatten(masks.values(run.config), ".") for run in loaded]
    groups = group([{k: v for k, v in c.items() if k not in _INCIDENTAL} for c in configs])
    described = [
        describe(run, config, number, name)
        for run, config, number, name in zip(loaded, configs, groups, names(loaded), strict=True)
    ]
    columns = [column for run in described for column in run["series"]]
    rollouts, left_out = completions(loaded)
    return {
        "runs": described,
        "groups": labels(described),
        "panels": [
            panel._asdict() | {"columns": mine, "main": panels.is_main(panel)}
            for panel, mine in panels.choose(columns)
        ],
        "rollouts": rollouts,
        "left_out": left_out,
    }


def names(loaded: Sequence[Run]) -> list[str]:
    """A short name a run: its directory's, with as many parents as tell it from the others."""
    paths = [storage.absolute(run.directory).parts for run in loaded]
    for depth in range(1, max(map(len, paths))):
        short = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(short)) == len(set(paths)):
            return short
    return ["/".join(parts) for parts in paths]


def group(configs: Sequence[Json]) -> list[int]:
    """Numbers that equal configs share, in order of first appearance."""
    keys = [json.dumps(config, sort_keys=True) for config in configs]
    order = list(dict.fromkeys(keys))
    return [order.index(key) for key in keys]


def labels(described: Sequence[Json]) -> list[str]:
    """A name for each group of seeds: what its config has that other groups' have not."""
    first = {run["group"]: run for run in reversed(described)}
    ordered = [first[g] for g in sorted(first)]
    if len(ordered) == 1:
        return [str(ordered[0]["config"].get("recipe", ordered[0]["name"]))]
    differing = differences([run["config"] for run in ordered])
    if not 1 <= len(differing) <= 2:
        return [run["name"] for run in ordered]
    return [
        ", ".join(f"{key.split('.')[-1]} {run['config'].get(key)}" for key in differing)
        for run in ordered
    ]


def differences(configs: Sequence[Json]) -> list[str]:
    """Keys whose values are not the same in all configs, incidental ones aside."""
    keys = dict.fromkeys(key for config in configs for key in config)
    absent = object()
    return [
        key
        for key in keys
        if key not in _INCIDENTAL
        and any(c.get(key, absent) != configs[0].get(key) for c in configs)
    ]


def describe(run: Run, config: Json, number: int, name: str) -> Json:
    """One run: config, lineage, environment, curves, where its time went."""
    series = curves(run)
    return {
        "name": name,
        "directory": str(run.directory),
        "group": number,
        "seed": config.get("seed"),
        "config": config,
        "extensions": extensions(run.config),
        "environment": runs.flatten(_without_secrets(run.environment)),
        "lineage": [masks.text(line) for line in lineage(run.config)],
        "clock": clock(run.metrics),
        "series": series,
        "time": time_spent(run.metrics, run.summary.get("seconds")),
        "facts": facts(run, series),
    }


def extensions(config: Json) -> list[str]:
    """Each extension with its settings in force, in the order in which they work."""
    described = []
    for reference, settings in masks.values(config.get("extensions", {})).items():
        fields = runs.flatten(settings, ".").items()
        described_fields = ", ".join(f"{name} {_setting(value)}" for name, value in fields)
        described.append(f"{reference}: {described_fields}" if described_fields else reference)
    return described


def _setting(value: Any) -> str:
    return value or "(empty)" if isinstance(value, str) else json.dumps(value)


def _without_secrets(environment: Json) -> Json:
    """Runs of earlier versions have saved their command as it was given."""
    command = environment.get("command")
    if isinstance(command, list):
        environment = environment | {"command": masks.command([str(word) for word in command])}
    return masks.values(environment)


def curves(run: Run) -> dict[str, Json]:
    """By metric: steps and values, with `low` and `high` where the metric has an interval."""
    metrics = dict(run.metrics)
    if "time/step" in metrics:
        seconds = metrics["time/step"].astype(float).copy()
        seconds[metrics["step"] == 1] = np.nan  # it compiles
        metrics["time/step"] = seconds
        if "tokens" in metrics:
            metrics["throughput"] = metrics.pop("tokens") / seconds
    steps = metrics.pop("step", np.zeros(0))
    for name in metrics:
        if name.startswith("memory"):  # in bytes
            metrics[name] = metrics[name] / 2**30
    named_curves = {
        name: _curve(steps, values)
        for name, values in metrics.items()
        if values.dtype.kind in "fib" and not name.startswith("eval/")
    }
    named_curves |= held_out(run) | over_seeds(steps, metrics)
    return {name: curve for name, curve in named_curves.items() if curve["step"]}


def over_seeds(steps: np.ndarray, metrics: Table) -> dict[str, Json]:
    """The curve of the interquartile mean of a run that trains several seeds at once."""
    columns = [values for name, values in metrics.items() if name.startswith("return/seed")]
    if len(columns) < 2:
        return {}
    returns = np.stack(columns, axis=1).astype(float)
    rows = np.isfinite(returns).all(axis=1)
    steps, returns = steps[rows], returns[rows]
    curve = _curve(steps, statistics.interquartile_mean(returns))
    intervals = [statistics.bootstrap_interval(row) for row in returns] if len(rows) < 200 else []
    bounds = zip(("low", "high"), zip(*intervals, strict=True), strict=False)
    at = [str(int(step)) for step in steps]
    band = {name: dict(zip(at, values, strict=True)) for name, values in bounds}
    return {"return/iqm": curve | band}


def _curve(steps: np.ndarray, values: np.ndarray) -> Json:
    mask = np.isfinite(values)
    steps, values = steps[mask], values[mask].astype(float)
    return {"step": _thin(steps), "value": _thin(values)}


def _thin(values: np.ndarray) -> list[float]:
    """At most `POINTS` means of equal runs, to six digits."""
    if len(values) > POINTS:
        starts = np.linspace(0, len(values), POINTS, endpoint=False).astype(int)
        values = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
    return [float(f"{value:.6g}") for value in values.tolist()]


def held_out(run: Run) -> dict[str, Json]:
    """Curves of the evaluations: before and after from the summary, the others from the metrics.

    Where neither has a step that an evaluation was saved of (the run is not finished), pass@1 comes
    from the saved completions.
    """
    points: dict[int, Json] = {}
    ends = run.summary.get("eval", {})
    if ends:
        points |= zip(rundir.span(run.summary), (ends["before"], ends["after"]), strict=True)
    prefix = "eval/"
    columns = [name for name in run.metrics if name.startswith(prefix)]
    for i, step in enumerate(run.metrics.get("step", ())):
        row = {name.removeprefix(prefix): float(run.metrics[name][i]) for name in columns}
        if any(map(math.isfinite, row.values())):
            points[int(step)] = row
    for step, rewards in _saved_rewards(run, points.keys()).items():
        points[step] = {"pass@1": float((np.array(rewards) >= 1).mean())}
    named_curves: dict[str, Json] = {}
    for step in sorted(points):
        for name, value in points[step].items():
            base, _, bound = name.rpartition("/")
            if bound not in ("low", "high"):
                base, bound = name, ""
            if name != "problems" and math.isfinite(value):
                curve = named_curves.setdefault(prefix + base, {"step": [], "value": []})
                if bound:
                    curve.setdefault(bound, {})[str(step)] = value
                else:
                    curve["step"].append(step)
                    curve["value"].append(value)
    return named_curves


def _saved_rewards(run: Run, logged_steps: Collection[int]) -> dict[int, list[float]]:
    """By step: the rewards of the saved completions of evaluations, but for logged steps."""
    rewards: dict[int, list[float]] = {}
    for row in runs.completions(run.directory, "evals"):
        if row["step"] not in logged_steps:
            rewards.setdefault(row["step"], []).append(row["reward"] or 0.0)
    return rewards


def clock(metrics: Table) -> Json:
    """By step: seconds and sampled tokens since the start, to lay curves over either."""
    steps = metrics.get("step", np.zeros(0))
    zero = np.zeros(len(steps))
    totals = {
        "seconds": np.cumsum(np.nan_to_num(metrics.get("time/step", zero))),
        "tokens": np.cumsum(np.nan_to_num(metrics.get("tokens", zero))),
    }
    return {"step": _thin(steps)} | {name: _thin(values) for name, values in totals.items()}


def time_spent(metrics: Table, wall: float | None) -> dict[str, float]:
    """Seconds by phase, which add up to the wall time of a finished run.

    The first step, which compiles, is a phase of its own.
    """
    if "time/step" not in metrics or not len(metrics["step"]):
        return {}
    first = metrics["step"] == 1
    phases = {
        name.removeprefix("time/"): float(np.nansum(values[~first]))
        for name, values in metrics.items()
        if name.startswith("time/")
    }
    total = phases.pop("step")
    first_seconds = float(np.nansum(metrics["time/step"][first]))
    return {
        **phases,
        "other": max(0.0, total - sum(phases.values())),
        "first step": first_seconds,
        "outside the steps": max(0.0, (wall or 0.0) - total - first_seconds),
    }


def facts(run: Run, series: dict[str, Json]) -> Json:
    """The row of a run in the table that opens the report."""
    metrics, ends = run.metrics, run.summary.get("eval", {})
    steps = metrics.get("step", np.zeros(0))
    reward = metrics.get("reward/mean", metrics.get("return", np.zeros(0)))[-10:]
    speed = series.get("throughput", {}).get("value", [])
    return {
        "steps": int(steps[-1]) if len(steps) else 0,
        "planned": run.config.get("steps"),
        "figure": "loss" if _path(run.config) else "pass@1",
        "before": ends.get("before"),
        "after": ends.get("after"),
        "reward": float(np.nanmean(reward)) if np.isfinite(reward).any() else None,
        "throughput": float(np.median(speed)) if speed else None,
        "seconds": run.summary.get("seconds"),
        "device": run.environment.get("device"),
    }


def _path(config: Json) -> str:
    """The file that a run learns from; empty: it samples."""
    data = config.get("data", {})
    if isinstance(data, str):  # a control run's: a file, a data set or a tier
        return data
    return str(data.get("path")) if data.get("kinds") else ""


def lineage(config: Json, ancestors: int = 50) -> list[str]:
    """The runs that the policy comes from, from its first weights; at most `ancestors`."""
    if str(config.get("recipe", "")).startswith("control/"):
        data = f" with {_path(config)}" if _path(config) else ""
        return [f"{config['recipe']} in {config.get('env')}{data}, {config.get('seeds')} seeds"]
    model, fork = str(config.get("model", "")), str(config.get("fork", ""))
    where = (fork.rpartition("@")[0] or fork) if fork else model
    is_path = "://" not in where or where.startswith("gs://")
    parent = storage.locate(where) if is_path else Path()
    is_run = is_path and ancestors and (parent / "config.json").exists()
    # a model of another library has a config.json too
    saved = json_file.read(parent / "config.json").get("config") if is_run else None
    if saved is not None:
        path = lineage(saved, ancestors - 1)
        path.append(f"forked from {fork}" if fork else f"saved in {parent}")
    else:
        path = [fork or ("fresh weights" if model == "fresh" else model)]
    task = ", ".join(config.get("domains", {})) or config.get("task")
    warm = config.get("warm_start", {})
    if warm.get("steps") and not fork:
        path.append(f"warm start: {warm['steps']} steps on solutions of {task}")
    stages = config.get("stages", {})
    path.append(
        f"{config.get('recipe')}: {config.get('steps')} steps "
        + (f"on {_path(config)}" if _path(config) else f"of RL on {task}")
        + (f" in {len(stages) + 1} stages" if stages else "")
        + f", seed {config.get('seed')}"
    )
    return path


def completions(loaded: Sequence[Run]) -> tuple[list[Json], int]:
    """Kept completions, those of training first, and how many were left out for their size.

    Files are read twice, a row at a time, so that memory holds what is kept and no more.
    """
    sizes: dict[tuple, int] = {}
    for key, row in _rows(loaded):
        sizes[key] = sizes.get(key, 0) + _size(row)
    chosen = _chosen(sizes)
    kept_rows, left_out = list[Json](), 0
    for key, row in _rows(loaded):
        if key in chosen:
            kept_rows.append(row)
        else:
            left_out += 1
    return kept_rows, left_out


def _rows(loaded: Sequence[Run]) -> Iterator[tuple[tuple, Json]]:
    """Every row, with what its group has in common."""
    for kind in ("rollouts", "evals"):
        for i, run in enumerate(loaded):
            for row in runs.completions(run.directory, kind):
                key = (i, kind, row["step"], row["problem"])
                yield key, _compact(row) | {"run": i, "kind": kind}


def _size(row: Json) -> int:
    """Bytes of a row in the page."""
    return len(embed_text(row).encode("utf-8", "replace")) + 1


def _chosen(sizes: Mapping[tuple, int]) -> set[tuple]:
    """Groups of at most `ROLLOUT_BYTES` in all, evenly spread.

    Whole groups go together: what a completion earned means little without its siblings.
    """
    order = list(sizes)
    # The most groups whose even spread fits; larger ones lie anywhere, so it is tried.
    count = len(order)
    while count:
        places = np.linspace(0, len(order) - 1, count).round().astype(int)
        chosen = {order[i] for i in places}
        total = sum(sizes[key] for key in chosen)
        if total <= ROLLOUT_BYTES:
            return chosen
        count = min(count - 1, int(count * ROLLOUT_BYTES / total))
    return set()


def embed_text(value: Any) -> str:
    """JSON that cannot end the script element that holds it, whatever text is in it."""
    text = json.dumps(_shown(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _shown(value: Any) -> Any:
    """Numbers that are finite and texts that are printable; what is no number is None."""
    if isinstance(value, dict):
        return {printable(k, lines=True): _shown(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_shown(v) for v in value]
    if isinstance(value, str):
        return printable(value, lines=True)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compact(row: Json) -> Json:
    """Lists whose entries are all equal as one value."""
    out = dict(row)
    for name in _TOKEN_LISTS:
        values = out.get(name)
        if values and all(v == values[0] for v in values):
            out[name] = values[0]
    return out
