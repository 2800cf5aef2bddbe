"""Disturb runs of every mode at random moments, continue them, and compare with undisturbed ones.

`python -m tests.acceptance.soak --minutes 60 --out soak.json` goes round the modes of a run and the
kinds of disturbance until the time is over. A trial is a run of `tests.jaxrl.tiny`, or of
`jaxrl control`, that is disturbed up to `--times` times, then continued to its end:

- kill: SIGKILL after a random part of the time that the run takes;
- signal: SIGTERM, SIGHUP, SIGINT or SIGUSR1, likewise;
- storage: files may not grow beyond a random size (RLIMIT_FSIZE) in one life of the run;
- damage: a kill, after which a file of the run is cut, zeroed, changed or removed.

It must end with 0 and equal the undisturbed run in every array, metric and sampled token. Rows and
files that storage has refused, or that were damaged, may be missing: they are counted as lost, and
rows of `metrics.jsonl` must then have been named in a warning. The counts are printed and written
as JSON; the exit status is 1 if anything differs. `tests.soak` looks at fewer kinds more closely.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl import config as configs
from jaxrl.launch.control import run as control_run
from jaxrl.record import checkpoint
from tests import FEWER_FUSIONS
from tests.jaxrl import tiny

COMMON = {"steps": 6, "checkpoint.every": 1, "checkpoint.keep": 3, "eval.every": 3}
ROWS = {
    "task": "", "data.kinds": ["completion"], "data.eval_share": 0.2, "data.batch_size": 4,
    "objective.policy": "sft", "objective.advantage_args": {"baseline": "none", "scale": "none"},
    "warm_start.steps": 0, "optimizer.learning_rate": 1e-2,
}  # fmt: skip
EPISODES = {
    "task": "keydoor", "task_args": {"level": 1, "turns": 3}, "warm_start.steps": 0,
    "rollout.turn_tokens": 2, "rollout.max_new_tokens": 40, "eval.problems": 4,
}  # fmt: skip
TOOLS = {
    "task": "ledger", "task_args": {"names": 2, "calls": 6}, "warm_start.steps": 0,
    "rollout.turn_tokens": 3, "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 60,
    "packing.row_length": 128, "eval.problems": 4,
}  # fmt: skip
MECHANISMS = {
    "replay.groups": 2, "replay.size": 3, "updates_per_batch": 2, "critic": {},
    "average.decay": 0.9, "objective.kl_coef": 0.05,
    "curriculum.choose": "difficulty_targeted", "curriculum.prompts": 16,
}  # fmt: skip
GENERATORS = {
    "generators": 1, "steps": 3, "warm_start.steps": 0, "eval.problems": 2, "sampler.chunk": 1,
    "guard.stall_seconds": 600.0,
}  # fmt: skip
CONTROL = (
    "sac", "--seeds", "2", "--points", "6", "--episodes", "2", "--algorithm.steps", "24",
    "--algorithm.warmup", "16", "--algorithm.hidden", "8", "--algorithm.batch-size", "16",
)  # fmt: skip
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)
RECORDS = ("metrics.jsonl", "history.jsonl", "heartbeat.json", "chunks.jsonl", "schedule.jsonl")
LIMIT_S = 300  # that a life may take, beyond which it hangs


class Trial(NamedTuple):
    """A run that is disturbed."""

    directory: Path
    changes: Mapping[str, Any]
    chance: random.Random
    seconds: float
    """That the undisturbed run took."""


class Plan(NamedTuple):
    """What all trials share, and what they have found."""

    folder: Path
    seed: int
    times: int
    changes: Mapping[str, Mapping[str, Any]]
    seconds: dict[str, float]
    """Of each mode's undisturbed run."""
    counts: dict[str, Counter[str]]
    faults: list[dict[str, Any]]


def modes(folder: Path) -> dict[str, dict[str, Any]]:
    """Changes of `tiny.config` by mode; `fork` and `distillation` need the undisturbed
    runs of `sync` and `SFT`."""
    answers, pairs = folder / "answers.jsonl", folder / "pairs.jsonl"
    # with every digit, as a tokenizer of these rows is used for sums of others too
    sums = [*itertools.product(range(5), range(5)), (9, 9)]
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums]
    answers.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "9"} for a, b in sums]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows_of = ROWS | {"data.path": str(answers)}
    first = tiny.config("", **COMMON | rows_of | {"steps": 3})
    lag = {"sampler.chunk": 1, "asynchronous.schedule": "lockstep:1"}
    return {
        "sync": {},
        "asynchronous, staleness 0": {"asynchronous.staleness": 0, **lag},
        "asynchronous, staleness 1": {"asynchronous.staleness": 1, **lag},
        "critic, average, curriculum, replay": MECHANISMS,
        "partial rollouts": {"rollout.in_flight": 1.5},
        "episodes": EPISODES,
        "tools": TOOLS,
        "tools, asynchronous": TOOLS | lag | {"asynchronous.staleness": 1},
        "SFT": rows_of,
        "preferences": rows_of
        | {
            "data.path": str(pairs),
            "data.kinds": ["preference"],
            "objective.policy": "pair_dpo",
            "objective.aggregation": "seq-mean-token-mean",
        },
        "distillation": rows_of | {"teacher.model": str(folder / "SFT")},
        "course of two stages": {
            "course": {0: json.loads(json.dumps(configs.to_dict(first)))},
            "steps": 3,
            "warm_start.steps": 0,
        },
        "fork": {"fork": f"{folder / 'sync'}@4", "steps": 8},
        "control": {"control": CONTROL},
        "generators": GENERATORS,
    }


def live(directory: Path, changes: Mapping[str, Any], limit: int | None = None) -> BaseProcess:
    """Begin a life of a run; what it says goes to `DIRECTORY.txt`."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_train, args=(directory, dict(changes), limit))
    process.start()
    return process


def _train(directory: Path, changes: dict[str, Any], limit: int | None) -> None:
    """In a process of its own."""
    said = os.open(directory.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if limit is not None:  # programs that are kept for all runs must not be cut short
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if words := changes.get("control"):
        sys.exit(control_run.main([*words, "--run-dir", str(directory)]))
    tiny.run(directory, **changes)


def ended(process: BaseProcess) -> int:
    """The exit status of a life.

    Raises:
      RuntimeError: it hangs, and is killed.
    """
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise RuntimeError(f"it hangs for {LIMIT_S} s")
    return process.exitcode


def strike(trial: Trial, number: signal.Signals) -> bool:
    """Send a signal after a random time; whether it came before the end of the run."""
    process = live(trial.directory, trial.changes)
    process.join(trial.seconds * trial.chance.uniform(0.1, 0.9))
    early = process.exitcode is None
    if early:
        os.kill(process.pid, number)
    ended(process)
    return early


def kill(trial: Trial) -> bool:
    """SIGKILL."""
    return strike(trial, signal.SIGKILL)


def ask(trial: Trial) -> bool:
    """A signal that saves, once the run can take it."""
    return strike(trial, trial.chance.choice(SIGNALS))


def starve(trial: Trial) -> bool:
    """A life in which no file grows beyond a random size."""
    ended(live(trial.directory, trial.changes, int(2 ** trial.chance.uniform(8, 18))))
    return True


def damage(trial: Trial) -> bool:
    """A kill, then a file that is not as it was: of the records, or of the newest checkpoint."""
    early = strike(trial, signal.SIGKILL)
    files = [trial.directory / name for name in RECORDS]
    saved = checkpoint.steps(trial.directory)
    if len(saved) > 1:  # there is another one to go back to
        newest = checkpoint.path(trial.directory, saved[-1])
        files += sorted(newest.rglob("*"))
    files = [path for path in files if path.is_file()]
    if not early or not files:
        return False
    path = trial.chance.choice(files)
    content = path.read_bytes()
    middle = len(content) // 2
    changed = (
        content[:middle],
        bytes(len(content)),
        content[:middle] + b"\xff" + content[middle + 1 :],
        None,
    )
    chosen = trial.chance.choice(changed)
    if chosen is None:
        path.unlink()
    else:
        path.write_bytes(chosen)
    return True


KINDS: dict[str, Callable[[Trial], bool]] = {
    "kill": kill, "signal": ask, "storage": starve, "damage": damage
}  # fmt: skip


def differences(straight: Path, other: Path) -> tuple[list[str], Counter[str]]:
    """What differs between two finished runs, and how much the other one lacks."""
    faults, lost = list[str](), Counter[str]()
    for part in ("", *(str(p.relative_to(straight)) for p in straight.glob("stages/*"))):
        one, two = tiny.artefacts(straight / part), tiny.artefacts(other / part)
        faults += [f"{part} {name}" for name in ("arrays", "host") if one[name] != two[name]]
        for name, key in (("rows", "step"), ("history", "batch")):
            rows = {row[key]: row for row in one[name]}
            faults += [f"{part} {name} {r[key]}" for r in two[name] if rows.get(r[key]) != r]
            lost[name] += len(rows) - len({row[key] for row in two[name]})
        same = two["texts"].keys() & one["texts"].keys()
        faults += [f"{part} {name}" for name in same if one["texts"][name] != two["texts"][name]]
        lost["files"] += len(one["texts"]) - len(same)
    said = other.with_suffix(".txt").read_text(errors="replace")
    if lost["rows"] and "lacks the rows of steps" not in said:
        faults.append("rows of metrics.jsonl are lost without a word")
    return faults, lost


def attempt(mode: str, kind: str, number: int, plan: Plan) -> None:
    """One trial, which adds to the counts of the plan."""
    chance = random.Random(f"{plan.seed} {mode} {kind} {number}")
    directory = plan.folder / f"{folder_of(mode)}-{kind}-{number}"
    directory.mkdir()
    made = Trial(directory, plan.changes[mode], chance, plan.seconds[mode])
    count, faults = plan.counts[mode], list[str]()
    try:
        for _ in range(chance.randint(1, plan.times)):
            count[kind] += KINDS[kind](made)
        if status := ended(live(directory, made.changes)):
            raise RuntimeError(f"it does not continue: exit status {status}")
        faults, lost = differences(plan.folder / folder_of(mode), directory)
        count.update({f"lost {name}": n for name, n in lost.items()})
        if kind in ("kill", "signal") and lost.total():
            faults.append(f"lost without a fault of storage: {dict(lost)}")
    except RuntimeError as error:
        faults = [str(error)]
    count["trials"] += 1
    count["differences"] += bool(faults)
    if faults:
        plan.faults.append({"mode": mode, "kind": kind, "run": str(directory), "what": faults})
        return
    shutil.rmtree(directory)
    directory.with_suffix(".txt").unlink()


def folder_of(mode: str) -> str:
    """The name of the directory of the undisturbed run of a mode."""
    return mode.replace(" ", "-").replace(",", "")


def undisturbed(mode: str, plan: Plan) -> None:
    """The run that the others of a mode are compared with, and the time that one takes.

    Raises:
      RuntimeError: it fails, or a second one differs.
    """
    first, second = (plan.folder / f"{folder_of(mode)}{end}" for end in ("", "-again"))
    for directory in (first, second):  # the second compiles nothing
        directory.mkdir()
        start = time.monotonic()
        if status := ended(live(directory, plan.changes[mode])):
            said = directory.with_suffix(".txt").read_text()
            raise RuntimeError(f"{mode}: exit status {status}: {said[-2000:]}")
        plan.seconds[mode] = time.monotonic() - start
    faults, lost = differences(first, second)
    if faults or lost.total():
        raise RuntimeError(f"{mode}: two undisturbed runs differ: {faults}, {dict(lost)}")
    shutil.rmtree(second)


def table(counts: Mapping[str, Counter[str]]) -> str:
    """The counts in Markdown."""
    columns = ("trials", *KINDS, "lost rows", "lost history", "lost files", "differences")
    rows = [["mode", *columns], ["---"] * (len(columns) + 1)]
    rows += [[mode, *(str(count[name]) for name in columns)] for mode, count in counts.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def shown(values: Mapping[str, Any]) -> str:
    """The counts of a file of results, in Markdown, as `docs/checkpointing.md` has them."""
    counts = {mode: Counter(count) for mode, count in values["modes"].items()}
    total = Counter(values["total"])
    struck = ", ".join(f"{total[kind]} of {kind}" for kind in KINDS)
    return (
        f"{table(counts)}\n\n{total['trials']} trials, {struck}, {total['differences']} "
        f"differences, in {values['seconds'] / 60:.0f} minutes of processes."
    )


def write(out: Path, plan: Plan, seconds: float) -> None:
    """The counts so far."""
    total = sum(plan.counts.values(), Counter())
    counts = {mode: dict(count) for mode, count in plan.counts.items()}
    values = {"seconds": round(seconds), "total": dict(total), "modes": counts}
    out.write_text(json.dumps(values | {"differences": plan.faults}, indent=1) + "\n")


def main() -> int:
    """Trials until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which none begins")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the counts")
    parser.add_argument("--times", type=int, default=2, help="disturbances of a run, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="+", help="of `modes`; else all of them")
    flags = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ |= tiny.environment()
    # As in the tests: compiling would take most of the time.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("XLA_FLAGS", FEWER_FUSIONS)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.jaxrl.tiny"])
    known = modes(folder)
    changes = {mode: COMMON | known[mode] for mode in flags.modes or known}
    plan = Plan(folder, flags.seed, flags.times, changes, {}, {m: Counter() for m in changes}, [])
    for number in itertools.count():
        for place, mode in enumerate(changes):
            kind = list(KINDS)[(number + place) % len(KINDS)]
            if time.monotonic() > began + 60 * flags.minutes:
                return over(plan)
            if mode not in plan.seconds:
                undisturbed(mode, plan)
            attempt(mode, kind, number, plan)
            write(flags.out, plan, time.monotonic() - began)
            print(table(plan.counts) + "\n", flush=True)
    raise AssertionError("unreachable")


def over(plan: Plan) -> int:
    """Print what differs, whose runs are kept; the exit status."""
    for fault in plan.faults:
        print(f"DIFFERS {fault}", flush=True)
    if not plan.faults:
        shutil.rmtree(plan.folder)
    return int(bool(plan.faults))


if __name__ == "__main__":
    sys.exit(main())
