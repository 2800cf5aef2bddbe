"""Kill runs at random moments, continue each to its end, and compare it with an uninterrupted one.

`python -m tests.soak --minutes 60` goes round every way to train and every layout of devices. A
trial is a run of `tests.jaxrl.tiny` that is ended `--kills` times: SIGKILL (of two processes, to
either) or now and then SIGTERM, each at a random moment: in a random step, in a random stage of it,
after a random part of the stage's time. Then it continues to its end, and must equal the
uninterrupted run in every byte of parameters, optimizer state, metrics and sampled tokens; a live
asynchronous run must have trained on the same prompts in the same order, with bounded lags. The
stage at the time of a signal is read from the files that the run has left, and counted in a
table. The exit status is 1 at the first difference, whose two runs are kept.

Processes are forked from one that has imported everything, as imports would else take most of the
time; one that is killed leaves nothing else behind.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl.record import metrics
from tests.jaxrl import tiny

WAYS = {
    "GRPO": {},
    "PPO with a critic": {"critic": {}, "objective.kl_coef": 0.01},
    "replay": {"replay.groups": 2, "replay.size": 3, "updates_per_batch": 2},
    "partial rollouts": {"rollout.in_flight": 1.5},
    "lockstep": {
        "asynchronous.staleness": 2,
        "asynchronous.schedule": "lockstep:2",
        "sampler.chunk": 1,
    },
    "live": {"asynchronous.staleness": 2, "sampler.chunk": 1},
    "curriculum, average, controlled KL": {
        "curriculum.choose": "difficulty_targeted",
        "curriculum.prompts": 16,
        "average.decay": 0.9,
        "objective.kl_coef": 0.05,
        "kl_control.rule": "proportional_kl_coefficient",
        "kl_control.args": {"target": 0.001},
        "reference_refresh.every": 2,
        "checkpoint.keep_best": 1,
    },
}


class Layout(NamedTuple):
    """Of the devices of a run."""

    processes: int
    devices: int
    """Of each process."""
    changes: Mapping[str, Any]


LAYOUTS = {
    "1 device": Layout(1, 1, {}),
    "8 devices": Layout(1, 8, {"mesh.fsdp": 4, "mesh.tensor": 2}),
    "2 processes": Layout(2, 1, {"mesh.fsdp": 2}),
}
STAGES = ("start", "warm start", "evaluate", "sample", "train", "save")
"""What may be under way; `start` is all before the first sign of life, with compilation."""


class Moment(NamedTuple):
    """When a run is ended."""

    step: int
    place: int
    """In the order of a step, of its stage."""
    signal: signal.Signals

    @property
    def stage(self) -> str:
        """One of `STAGES`."""
        return STAGES[self.place]


def moments(chance: random.Random, kills: int) -> list[Moment]:
    """So many SIGKILLs and a SIGTERM for every ten, in the order of the run's steps."""
    early = [Moment(0, place, signal.SIGKILL) for place in range(min(3, kills // 6))]
    numbers = [signal.SIGKILL] * (kills - len(early)) + [signal.SIGTERM] * (kills // 10)
    drawn = chance.choices(range(2, len(STAGES)), (1, 3, 3, 3), k=len(numbers))
    later = (Moment(chance.randint(1, 2 * kills), *m) for m in zip(drawn, numbers, strict=True))
    return early + sorted(later)


class Run:
    """Processes that run in a directory."""

    def __init__(self, directory: Path, layout: Layout, changes: Mapping[str, Any]) -> None:
        """Begin them."""
        self.directory = directory
        directory.mkdir(exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        variables_of_each = tiny.pair_variables() if layout.processes == 2 else [{}]
        self.processes: list[BaseProcess] = []
        for variables in variables_of_each:
            given = (directory, layout.devices, variables, {**layout.changes, **changes})
            self.processes.append(context.Process(target=_train, args=given))
            self.processes[-1].start()
        self.first_step: int | None = None

    @property
    def over(self) -> bool:
        """Whether one of them has ended."""
        return any(process.exitcode is not None for process in self.processes)

    def beat(self) -> tuple[str, int] | None:
        """Stage and step of the last sign of life, if these processes have given one."""
        try:
            heartbeat = json.loads((self.directory / "heartbeat.json").read_text())
        except FileNotFoundError:
            return None
        return (
            (heartbeat["stage"], heartbeat["step"])
            if heartbeat["pid"] == self.processes[0].pid
            else None
        )

    def saving(self) -> bool:
        """Whether a checkpoint is half written, or half removed."""
        return any(
            saved.is_dir() and not (saved / "manifest.json").exists()
            for saved in self.directory.glob("checkpoints/*")
        )

    def comes_to(self, moment: Moment) -> None:
        """Return once it is in this stage of this step, or of a later one, or over.

        The first step compiles, and does not count but for the stages before it.
        """
        while not self.over:
            stage, step = self.beat() or ("start", 0)
            if self.first_step is None and stage in ("sample", "train"):
                self.first_step = step
            here = self.saving() if moment.stage == "save" else stage == moment.stage
            compiled = self.first_step is not None and step > self.first_step
            if here and step >= moment.step and (compiled or not moment.step):
                return
            time.sleep(0.002)

    def stage(self) -> str:
        """What was under way when it ended, saving aside, which continues in the background."""
        beat = self.beat()
        if beat is None or (beat[0] in ("sample", "train") and beat[1] == self.first_step):
            return "start"
        return beat[0]

    def end(self, moment: Moment, chance: random.Random) -> bool:
        """Send the signal to one process and wait for all; whether it has struck."""
        victim = chance.choice(self.processes)
        os.kill(victim.pid, moment.signal)
        self.wait(60.0)  # for the other one, which may not have found this one yet
        for process in self.processes:
            process.kill()
        self.wait(None)
        return victim.exitcode in (-moment.signal, 75)

    def wait(self, seconds: float | None) -> None:
        """For all of them, each so long."""
        for process in self.processes:
            process.join(seconds)


def _train(directory: Path, devices: int, variables: Mapping[str, str], changes: dict) -> None:
    """In a process of its own: the run, which says what it says to `said.txt`."""
    said = os.open(directory / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ |= variables
    jax.config.update("jax_num_cpu_devices", devices)
    try:
        tiny.run(directory, **changes)
    finally:
        if variables:
            jax.distributed.shutdown()


def trial(directory: Path, way: str, layout: str, seed: int, kills: int) -> Counter[str]:
    """One uninterrupted run and one that is killed; by which signals, and where.

    Raises:
      SystemExit: they differ, or one fails by itself.
    """
    chance = random.Random(f"{seed} {way} {layout}")
    changes = {"seed": seed, "steps": 2 * kills + 8, "eval.every": 6, **WAYS[way]}
    named = f"{way}, {layout}, seed {seed}"

    def begin(name: str, **more: Any) -> Run:
        return Run(directory / name, LAYOUTS[layout], {**changes, **more})

    def finish(run: Run) -> None:
        run.wait(None)
        if any(process.exitcode for process in run.processes):
            raise SystemExit(f"{named}: it failed by itself; see {run.directory}/said.txt")

    finish(begin("straight"))
    lasts = durations(directory / "straight")
    count: Counter[str] = Counter(runs=1)
    for moment in moments(chance, kills):
        every = 1 if moment.stage == "save" else chance.choice([1, 2, 5])
        run = begin("killed", **{"checkpoint.every": every})
        run.comes_to(moment)
        time.sleep(chance.uniform(0.0, lasts[moment.stage]))
        if run.over:  # by itself
            finish(run)
        elif run.end(moment, chance):
            count[moment.signal.name] += 1
            if moment.signal == signal.SIGKILL:
                count[run.stage()] += 1
                count["save"] += run.saving()
    finish(begin("killed"))
    left, right = (tiny.artefacts(directory / name) for name in ("straight", "killed"))
    if (
        way == "live"
    ):  # which depends on timing: no prompt is lost or repeated, and lags are bounded
        left, right = ({"problems": problems(found["history"])} for found in (left, right))
        lag = max(row["lag/max"] for row in metrics.read(directory / "killed"))
        if lag > WAYS[way]["asynchronous.staleness"]:
            raise SystemExit(f"{named}: a token is {lag:g} steps old; see {directory}")
    if differs := [name for name in left if left[name] != right[name]]:
        raise SystemExit(f"{named}: {differs} differ; see {directory}")
    return count


def problems(history: list[dict[str, Any]]) -> list[list[str]]:
    """Problems in the order in which they were trained on, step by step."""
    return [row["problems"] for row in history]


def durations(run: Path) -> dict[str, float]:
    """Seconds that a moment may lie within each stage, by the uninterrupted run."""
    rows = metrics.read(run)[1:]

    def typical(name: str) -> float:
        return statistics.median(row[f"time/{name}"] for row in rows if f"time/{name}" in row)

    step = typical("step")
    timed = {"sample": typical("sample"), "train": typical("train"), "evaluate": typical("eval")}
    return {"start": 2.0, "warm start": step, "save": step, **timed}


def table(counts: Mapping[tuple[str, str], Counter[str]]) -> str:
    """What was done to the runs of each way and layout, in Markdown."""
    shown = ("runs", "SIGTERM", "SIGKILL", *STAGES)
    head = ["way to train", "on", *shown[:-1], "of them during a save", "differences"]
    rows = [head, ["---"] * len(head)]
    for (way, layout), count in sorted(counts.items()):
        rows.append([way, layout, *(str(count[name]) for name in shown), "0"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Trials until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which none begins")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs of a run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ |= tiny.environment()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.jaxrl.tiny"])
    end = time.monotonic() + 60 * given.minutes
    counts: dict[tuple[str, str], Counter[str]] = {}

    def one(seed: int, layout: str, way: str) -> None:
        if time.monotonic() < end:
            directory = Path(tempfile.mkdtemp(prefix="soak-"))
            done = trial(directory, way, layout, seed, given.kills)
            counts[way, layout] = counts.get((way, layout), Counter()) + done
            shutil.rmtree(directory)
            print(table(counts) + "\n", flush=True)

    for seed in itertools.count(given.seed):
        with ThreadPoolExecutor(given.jobs) as pool:
            futures = [pool.submit(one, seed, x, way) for x in given.layouts for way in given.ways]
            for each in as_completed(futures):
                if error := each.exception():
                    pool.shutdown(cancel_futures=True)
                    raise error
        if time.monotonic() > end:
            return


if __name__ == "__main__":
    sys.exit(main())
