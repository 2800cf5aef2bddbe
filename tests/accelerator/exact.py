"""Whether a run on the device repeats itself bit for bit, and resumes bit for bit."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.config import Config, FreshModel
from jaxrl.run import loop
from jaxrl.run.context import Callbacks
from tests.accelerator import grpo
from tests.accelerator.settings import Report, Settings, remaining
from tests.jaxrl import tiny

_FLAG = "--xla_gpu_deterministic_ops=true"
_STEPS = 4


class _Interrupted(Exception):
    """The run is left here, as if the process had died."""


def config(run: Path, settings: Settings) -> Config:
    """Sums, by four layers with heads of 64, in bf16; attention of rows as cuDNN takes them."""
    shape = settings.sized(FreshModel(512, 1536, 4, 8, 4, 64), FreshModel(32, 64, 2, 2, 2, 16))
    base = tiny.config(
        run,
        steps=_STEPS,
        fresh=shape,
        compute_dtype="bfloat16",
        **{
            "warm_start.steps": 0, "eval.every": 0, "eval.problems": 1,
            "rollout.prompts": 8, "rollout.group_size": 8, "sampler.slots": 7,
            "packing.micro_batch_tokens": 512, "packing.row_length": 256,
            "objective.kl_coef": 0.01, "objective.entropy_coef": 0.01,
        },
    )  # fmt: skip
    return dataclasses.replace(base, recipe="exact")


def measure(settings: Settings, report: Report) -> None:
    """With XLA's default operations; where those do not repeat, with its deterministic ones."""
    compare(settings, report, "default operations")
    repeats = report.results.get("default operations, repeated", {}).get("equal")
    if repeats or settings.rehearse or remaining() < 25:
        return
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}"}
    out = settings.work / "deterministic"
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.accelerator.exact", str(out), str(settings.work)]
    command += ["--rehearse"] if settings.rehearse else []
    with report.attempt(_FLAG):
        subprocess.run(command, env=environment, check=True, timeout=remaining() - 5)
        again = dataclasses.replace(settings, out=out)
        for name, value in again.other("exact").items():
            report.add(f"{_FLAG}: {name}", value)


def compare(settings: Settings, report: Report, label: str) -> None:
    """A run, the same again, and one that is interrupted after its second step."""
    root = settings.work / "exact" / f"{time.time_ns()}"
    start = time.perf_counter()
    run(config(root / "one", settings))
    report.add(f"{label}, seconds of a run", time.perf_counter() - start)
    one = tiny.artefacts(root / "one")
    if settings.rehearse:
        report.skip(f"{label}, repeated", "rehearsal; the resumed run is compared likewise")
    else:
        run(config(root / "two", settings))
        report.add(f"{label}, repeated", differences(one, tiny.artefacts(root / "two")))
    resumed = config(root / "resumed", settings)
    try:
        run(resumed, stop=2)
    except _Interrupted:
        run(resumed)
    report.add(f"{label}, resumed", differences(one, tiny.artefacts(root / "resumed")))


def run(config: Config, stop: int = 0) -> None:
    """Train; with `stop`, leave the run in its step after that one."""

    def step(number: int, metrics: dict[str, float]) -> None:
        if number == stop + 1 and stop:
            raise _Interrupted

    with grpo.plain_steps(saved=True):
        loop.train(config, Callbacks(step=step, note=print))


def differences(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """Whether two runs are equal to the last bit, and what differs if they are not."""
    arrays = {
        name: _gap(one["arrays"][name], two["arrays"].get(name, b""))
        for name in one["arrays"]
        if one["arrays"][name] != two["arrays"].get(name)
    }
    others = [name for name in ("rows", "texts", "history", "host") if one[name] != two[name]]
    return {
        "equal": not arrays and not others,
        "arrays": len(one["arrays"]),
        "arrays_that_differ": len(arrays),
        "largest_gap": max(arrays.values(), default=0.0),
        "also_differ": others,
    }


def _gap(a: bytes, b: bytes) -> float:
    """The largest difference of two arrays of fp32; infinite where they are other arrays."""
    if len(a) != len(b) or len(a) % 4 or len(a) < 8:
        return float("inf")
    return float(np.max(np.abs(np.frombuffer(a, "f4") - np.frombuffer(b, "f4"))))


def main(out: str, work: str, *flags: str) -> None:
    """The comparison in this process, with the flags that XLA has been given."""
    given = Settings("--rehearse" in flags, Path(work), Path(out))
    compare(given, Report(given.out / "exact.json"), "deterministic operations")


if __name__ == "__main__":
    main(*sys.argv[1:])
