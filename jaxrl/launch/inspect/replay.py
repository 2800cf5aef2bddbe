"""`jaxrl replay RUN --step N`: recompute a step of a run and compare its metrics bit for bit."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import json_file
from jaxrl.config import Config
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.settings import flags
from jaxrl.record import account, checkpoint, jsonl, metrics, storage
from jaxrl.run import course, guards, loop


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """A replay."""

    step: int = 1
    """Step to recompute; a checkpoint from before it must exist."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""


class Replay(NamedTuple):
    """A step computed again. Times and evaluations are left out of its metrics."""

    start: int
    """The step whose checkpoint it was computed from."""
    recorded: dict[str, Any]
    computed: dict[str, Any]

    @property
    def differs(self) -> dict[str, tuple[Any, Any]]:
        """Metrics by name as (recorded, computed), where they are not equal to the last bit."""
        names = self.recorded.keys() | self.computed.keys()
        pairs = {n: (self.recorded.get(n), self.computed.get(n)) for n in sorted(names)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class _Done(Exception):
    """The step to replay is computed."""


def main(argv: list[str]) -> int:
    """Replay a step and print its metrics; the exit status is 1 where any differs."""
    usage = "jaxrl replay RUN"
    try:
        run, settings = flags.name_and_settings(
            ReplayConfig(), argv, usage=usage, what="a run directory"
        )
        comparison = replay(storage.locate(run), settings.step, print, trust=settings.trust)
    except REFUSALS as error:
        return refused(error)
    for name, value in comparison.computed.items():
        print(f"{name:36} {value!r}")
    for name, (recorded, computed) in comparison.differs.items():
        print(f"DIFFERS {name}: {recorded!r} was recorded, {computed!r} is computed")
    if not comparison.differs:
        print(f"step {settings.step}, from step {comparison.start}: equal to the last bit")
    return bool(comparison.differs)


def replay(
    run: Path,
    step: int,
    note: Callable[[str], None] = lambda _: None,
    *,
    trust: bool = False,
) -> Replay:
    """Continue a run, in a scratch directory, from its newest checkpoint before `step` to `step`.

    Exact with the devices, the mesh and the versions of the run. A step that ended in a rollback or
    a stop is found by its record in `spikes`.

    Args:
      run: its directory, which is only read.
      step: in 1 to the run's last.
      note: called with each message of the continuation.
      trust: the run's config may name functions that are not of this package.

    Raises:
      ValueError: the run has not recorded the step, keeps no checkpoint before it, or names
        functions of others without `trust`.
    """
    original = course.resolved(account.config(run, None if trust else ()), storage.locate(run))
    recorded, spike = _recorded(run, step)
    saved_steps = checkpoint.steps(run)
    before = [saved for saved in saved_steps if saved < step]
    if not before:
        raise ValueError(
            f"{run} keeps no checkpoint before step {step}, only {saved_steps}; later steps can be "
            "replayed, and --checkpoint.keep-every keeps more"
        )
    computed: dict[str, float] = {}

    def take(at: int, row: Mapping[str, float]) -> None:
        if at == step:
            computed.update(row)
            raise _Done

    with tempfile.TemporaryDirectory() as scratch:
        config = _continuation(original, run, before[-1], Path(scratch), to_spike=spike)
        try:
            loop.train(config, loop.Callbacks(step=take, note=note))
        except _Done:
            pass
        except guards.Stopped:
            computed.update(_spike(Path(scratch), step) or {})
    return Replay(before[-1], _comparable(recorded), _comparable(computed))


def _recorded(run: Path, step: int) -> tuple[Mapping[str, float], bool]:
    """The metrics of a step, and whether they are those of a spike that was not kept."""
    rows = metrics.read(run)
    for row in rows:
        if row["step"] == step:
            return {name: value for name, value in row.items() if name != "step"}, False
    if spike := _spike(run, step):
        return spike, True
    last = rows[-1]["step"] if rows else 0
    raise ValueError(f"step={step}: {run} has recorded steps 1 to {last}; choose one of them")


def _spike(run: Path, step: int) -> dict[str, float] | None:
    path = run / "spikes" / f"{step:08d}" / "spike.json"
    if not path.exists():
        return None
    figures = json_file.field(path, "metrics")
    for name, value in figures.items():
        if not jsonl.is_number(value):
            raise ValueError(
                f"{path} is damaged: {name:.200}={value!r:.200}; restore it from a copy"
            )
    return figures


def _continuation(
    config: Config, run: Path, start: int, scratch: Path, *, to_spike: bool
) -> Config:
    """The run's config, forked from `start`, that writes next to nothing; or ends at a spike."""
    rollbacks = 0 if to_spike else config.guard.max_rollbacks
    asynchronous = config.asynchronous
    if asynchronous.staleness is not None and asynchronous.schedule == "live":
        asynchronous = dataclasses.replace(asynchronous, schedule=f"recorded:{run}")
    return dataclasses.replace(
        config,
        run_dir=str(scratch),
        wandb="",
        asynchronous=asynchronous,
        trackio="",
        mlflow="",
        otlp="",
        fork=f"{run}@{start}",
        checkpoint=dataclasses.replace(config.checkpoint, every=config.steps + 1),
        # the fork is measured; of a file, the number of rows decides which are trained on
        eval=dataclasses.replace(
            config.eval, every=0, problems=config.eval.problems if config.data.kinds else 1
        ),
        rollout_log=dataclasses.replace(config.rollout_log, every=0),
        guard=dataclasses.replace(config.guard, max_rollbacks=rollbacks),
    )


def _comparable(row: Mapping[str, float]) -> dict[str, float | None]:
    """Without times and evaluations; not-a-number as None, as in the log."""
    return {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in row.items()
        if not name.startswith(("time/", "eval/", "memory/", "compilations", "idle/"))
    }
