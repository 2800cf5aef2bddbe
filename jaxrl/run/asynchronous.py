"""How an asynchronous run samples, and the schedule that it keeps, `RUN/schedule.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import AsynchronousConfig, Config
from jaxrl.data.selection import curriculum
from jaxrl.record import jsonl, storage
from jaxrl.record.metrics import Timer
from jaxrl.rollout import asynchronous, collect, schedule
from jaxrl.rollout.asynchronous import Live
from jaxrl.rollout.collect import Way
from jaxrl.rollout.drive import Group
from jaxrl.rollout.flight import Batch, Flight, Row, Weights
from jaxrl.run.context import RunContext

FILE = "schedule.jsonl"
_WAYS = "live, lockstep:K with K of 0 or more, or recorded:RUN"


def check(config: Config) -> None:
    """Refuse settings of sampling during updates that cannot work.

    Raises:
      ValueError: naming the field.
    """
    settings = config.asynchronous
    if settings.staleness is None:
        if settings != AsynchronousConfig():
            raise ValueError(
                f"asynchronous={settings} without asynchronous.staleness is a synchronous run; set "
                "it to 0 or more"
            )
        return
    try:
        schedule.check(collect.limits(config))
    except ValueError as error:
        raise ValueError(f"asynchronous.{error}") from error
    way, value = _way(settings)
    if way == "recorded" and not (storage.locate(value) / FILE).exists():
        raise ValueError(
            f"asynchronous.schedule={settings.schedule!r}: {value} has no {FILE}; name the "
            "directory of an asynchronous run"
        )
    if way != "live":
        return
    if jax.process_count() > 1:
        raise ValueError(
            "asynchronous.schedule='live' runs in one process; use lockstep:K with several"
        )
    if not (config.sampling.devices or config.generators) and jax.device_count() > 1:
        raise ValueError(
            f"asynchronous.schedule='live' with sampling.devices=0: two threads would share "
            f"{jax.device_count()} devices; give sampling some of them, or use lockstep:K"
        )


def _way(settings: AsynchronousConfig) -> tuple[str, str]:
    """The kind of a schedule, and what follows its colon.

    Raises:
      ValueError: neither is known.
    """
    way, _, value = settings.schedule.partition(":")
    fits = {"live": not value, "lockstep": value.isdigit(), "recorded": bool(value)}
    if not fits.get(way, False):
        raise ValueError(f"asynchronous.schedule={settings.schedule!r} is unknown; use {_WAYS}")
    return way, value


def sampled_meanwhile(
    run: RunContext, config: Config, record: jsonl.StepLog, flight: Flight
) -> Way:
    """Sampling while the policy is trained.

    Args:
      run: the run.
      config: of the stage.
      record: that the flight logs to.
      flight: of the stage.
    """
    sample, halt = _sampler(run, config, flight)
    run.closing.callback(halt)
    shared = not config.sampling.devices and not config.generators
    copied = shared and _way(config.asynchronous)[0] == "live"
    ended = busy = 0.0

    def timed(weights: Weights, timer: Timer) -> tuple[list[Group], dict[str, float]]:
        nonlocal ended, busy
        entered = perf_counter()
        if copied:  # the update donates its parameters, and some of these may be the same
            with timer("sync"):
                guide = weights.guide
                arrays = (weights.params, guide.params, guide.args)
                params, guide_params, args = jax.tree.map(jnp.copy, arrays)
                guide = guide._replace(params=guide_params, args=args)
                weights = weights._replace(params=params, guide=guide)
        record.begin(weights.step)
        with timer("sample"):
            batch = sample(weights)
        end_time = perf_counter()
        seconds = end_time - (ended or entered)
        metrics = {
            "prompts_sampled": float(batch.admitted),
            "idle/train": (end_time - entered) / seconds,
            "idle/sample": max(0.0, 1.0 - (flight.busy_s - busy) / seconds),
        }
        if config.asynchronous.order == "finished":
            metrics["length_bias"] = batch.length_bias
        ended, busy = end_time, flight.busy_s
        order = np.argsort(~curriculum.informative(batch.rewards), kind="stable")
        return [batch.groups[i] for i in order], metrics

    return Way(timed, halt)


def _sampler(
    run: RunContext, config: Config, flight: Flight
) -> tuple[Callable[[Weights], Batch], Callable[[], None]]:
    """A function that samples a step, and one that stops sampling after the step's update."""
    way, value = _way(config.asynchronous)
    if way == "lockstep":
        chunks = int(value)
        return lambda weights: asynchronous.lockstep(flight, weights, chunks), lambda: None
    if way == "recorded":
        rows = _by_step(storage.locate(value) / FILE)
        return (
            lambda weights: asynchronous.recorded(flight, weights, rows.get(weights.step, [])),
            lambda: None,
        )
    live = Live(flight, run.sampling_mesh, config.guard.stall_seconds)
    return live.step, live.halt


def _by_step(path: Path) -> dict[int, Sequence[Row]]:
    """The rows of a schedule, in order."""
    rows: dict[int, list[Row]] = {}
    for row in jsonl.read_whole(path):
        rows.setdefault(row["step"], []).append(row)
    return dict(rows)
