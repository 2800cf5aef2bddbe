"""Disturb runs of every mode at random moments, continue them, and compare with undisturbed ones.

`python -m tests.acceptance.soak --minutes 60 --out soak.json` goes round the modes of a run and the
kinds of disturbance until the time is over. A trial is a run of `tests.jaxrl.tiny`, or of
`jaxrl control`, that is disturbed, then continued to its end:

- kill: a copy of the directory that was made while all threads of the process stood still, which
  is what SIGKILL leaves; a run with generators in other processes gets SIGKILL itself. Each life
  to the end gives one more copy, so that some were killed several times;
- signal: SIGTERM, SIGHUP, SIGINT or SIGUSR1;
- storage: files may not grow beyond a random size (RLIMIT_FSIZE) in one life of the run;
- damage: a kill, after which a file of the run is cut, zeroed, changed or removed.

A moment is one of those between two lines that an undisturbed run prints, and a random time after
the line. The continued run must end with 0 and equal the undisturbed run in every array, metric and
sampled token. Rows and files that storage has refused, or that were damaged, may be missing: they
are counted as lost, and rows of `metrics.jsonl` must then have been named in a warning. Modes
take turns, so that all get as many trials. The counts are printed and written as JSON;
the exit status is 1 if anything differs. `tests.soak` looks at fewer kinds more closely.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import config as configs
from jaxrl.record import checkpoint
from jaxrl.record.process import SAVED, STOPPING
from tests import FEWER_FUSIONS
from tests.acceptance import lives
from tests.jaxrl import tiny

COMMON = {
    "steps": 4, "checkpoint.every": 1, "checkpoint.keep": 3, "eval.every": 2, "eval.problems": 4,
    "warm_start.steps": 2, "fresh.num_layers": 1,
}  # fmt: skip
ROWS = {
    "task": "", "data.kinds": ["completion"], "data.eval_share": 0.2, "data.batch_size": 4,
    "objective.policy": "sft", "objective.advantage_args": {"baseline": "none", "scale": "none"},
    "warm_start.steps": 0, "optimizer.learning_rate": 1e-2,
}  # fmt: skip
EPISODES = {
    "task": "keydoor", "task_args": {"level": 1, "turns": 3}, "warm_start.steps": 0,
    "rollout.turn_tokens": 2, "rollout.max_new_tokens": 40,
}  # fmt: skip
TOOLS = {
    "task": "ledger", "task_args": {"names": 2, "calls": 6}, "warm_start.steps": 0,
    "rollout.turn_tokens": 3, "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 60,
    "packing.row_length": 128,
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
RECORDS = ("metrics.jsonl", "history.jsonl", "heartbeat.json", "chunks.jsonl", "schedule.jsonl")
COPIED = 0.3
"""Share of the lines of an undisturbed run after which its directory is copied."""
NEEDED = {"fork": "sync", "distillation": "SFT"}
"""Modes that start from the undisturbed run of another."""


class Plan(NamedTuple):
    """What all trials share, and what they have seen."""

    folder: Path
    host: lives.Host
    changes: Mapping[str, Mapping[str, Any]]
    """Of `tiny.config`, by mode."""
    seconds: dict[str, float]
    """Of each mode's undisturbed run."""
    lines: dict[str, int]
    """That it prints."""
    copies: dict[str, list[tuple[Path, int]]]
    """Directories of runs as kills leave them, and how often each was killed, by mode."""
    counts: dict[str, Counter[str]]
    faults: list[dict[str, Any]]


class Trial(NamedTuple):
    """A run that is disturbed."""

    mode: str
    directory: Path
    chance: random.Random
    plan: Plan

    def begin(self, limit: int | None = None) -> int:
        """A life; how many bytes the ones before have printed."""
        text = self.directory.with_suffix(".txt")
        before = text.stat().st_size if text.exists() else 0
        self.plan.host.begin(self.directory, self.plan.changes[self.mode], limit)
        return before

    def comes_to_a_moment(self, before: int) -> bool:
        """Return at a random moment of the life; False if it is over before."""
        count = self.plan.lines[self.mode]
        line, pause = self.chance.randint(0, count), self.plan.seconds[self.mode] / (count + 1)
        text = self.directory.with_suffix(".txt")
        while not self.plan.host.over():
            if text.exists() and text.read_bytes()[before:].count(b"\n") >= line:
                break
            time.sleep(0.005)
        time.sleep(self.chance.uniform(0.0, pause))
        return not self.plan.host.over()

    def start_from_a_copy(self) -> int:
        """Begin as a kill has left a run; how often it was killed, 0 if no kill came in time."""
        copies = self.plan.copies[self.mode]
        if not copies:
            self.directory.mkdir()
            return int(self._killed())
        source, times = self.chance.choice(copies)
        shutil.copytree(source, self.directory, symlinks=True)
        return times

    def _killed(self) -> bool:
        """SIGKILL to a life from its start."""
        early = self.comes_to_a_moment(self.begin())
        if early:
            self.plan.host.kill()
        self.plan.host.status()
        return early

    def finish(self, times: int) -> None:
        """A life to the end, of a run killed so often, of which a further copy is taken.

        Raises:
          RuntimeError: its exit status is not 0.
        """
        before = self.begin()
        if self.mode != "generators" and self.comes_to_a_moment(before):
            copy(self.mode, self.directory, times + 1, self.plan)
        if status := self.plan.host.status():
            raise RuntimeError(f"it does not continue: exit status {status}")


def modes(folder: Path) -> dict[str, dict[str, Any]]:
    """Changes of `tiny.config` by mode; those in `NEEDED` start from runs in the folder."""
    answers, pairs = folder / "answers.jsonl", folder / "pairs.jsonl"
    # with every digit, as a tokenizer of these rows is used for sums of others too
    sums = [*itertools.product(range(5), range(5)), (9, 9)]
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums]
    answers.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "9"} for a, b in sums]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows_of = ROWS | {"data.path": str(answers)}
    first = tiny.config("", **COMMON | rows_of | {"steps": 2})
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
            "steps": 2,
            "warm_start.steps": 0,
        },
        "fork": {"fork": f"{folder / 'sync'}@3", "steps": 5},
        "control": {"control": CONTROL},
        "generators": GENERATORS,
    }


def kill(trial: Trial) -> int:
    """SIGKILL; how often."""
    return trial.start_from_a_copy()


def ask(trial: Trial) -> int:
    """A signal that saves; 1 if the run has taken it."""
    trial.directory.mkdir()
    if trial.comes_to_a_moment(trial.begin()):
        trial.plan.host.signal(trial.chance.choice(STOPPING))
    return int(trial.plan.host.status() == SAVED)


def starve(trial: Trial) -> int:
    """A life in which no file grows beyond a random size."""
    trial.directory.mkdir()
    trial.begin(int(2 ** trial.chance.uniform(8, 18)))
    return int(trial.plan.host.status() != 0)


def damage(trial: Trial) -> int:
    """A kill, then a file that is not as it was: of the records, or of the newest checkpoint."""
    early = trial.start_from_a_copy()
    files = [trial.directory / name for name in RECORDS]
    saved = checkpoint.steps(trial.directory)
    if len(saved) > 1:  # there is another one to go back to
        newest = checkpoint.path(trial.directory, saved[-1])
        files += sorted(newest.rglob("*"))
    files = [path for path in files if path.is_file()]
    if not early or not files:
        return 0
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
    return 1


KINDS: dict[str, Callable[[Trial], int]] = {
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
    text = other.with_suffix(".txt").read_text(errors="replace")
    if lost["rows"] and "lacks the rows of steps" not in text:
        faults.append("rows of metrics.jsonl are lost without a word")
    return faults, lost


def attempt(mode: str, kind: str, number: int, seed: int, plan: Plan) -> None:
    """One trial, which adds to the counts of the plan."""
    directory = plan.folder / f"{folder_of(mode)}-{kind}-{number}"
    trial = Trial(mode, directory, random.Random(f"{seed} {mode} {kind} {number}"), plan)
    count, faults = plan.counts[mode], list[str]()
    try:
        struck = KINDS[kind](trial)
        count[kind] += struck
        trial.finish(struck if kind == "kill" else 0)
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


def compared(mode: str, plan: Plan) -> bool:
    """Whether there is an undisturbed run of a mode to compare with."""
    if mode not in plan.seconds:
        try:
            undisturbed(mode, plan)
        except RuntimeError as error:
            plan.seconds[mode] = math.nan
            plan.counts.setdefault(mode, Counter())["differences"] += 1
            plan.faults.append({"mode": mode, "kind": "none", "what": [str(error)]})
    return not math.isnan(plan.seconds[mode])


def undisturbed(mode: str, plan: Plan) -> None:
    """The run that the others of a mode are compared with, which takes its time.

    It is copied at random moments.

    Raises:
      RuntimeError: it fails.
    """
    directory, chance = plan.folder / folder_of(mode), random.Random(mode)
    directory.mkdir()
    text = directory.with_suffix(".txt")
    start = line_time = time.monotonic()
    plan.host.begin(directory, plan.changes[mode])
    count = 0
    while not plan.host.over():
        time.sleep(0.005)
        if text.exists() and (now := text.read_bytes().count(b"\n")) > count:
            pause, line_time, count = time.monotonic() - line_time, time.monotonic(), now
            if mode != "generators" and chance.random() < COPIED:
                time.sleep(chance.uniform(0.0, pause))
                copy(mode, directory, 1, plan)
    if status := plan.host.status():
        raise RuntimeError(f"{mode}: exit status {status}: {text.read_text()[-2000:]}")
    plan.seconds[mode], plan.lines[mode] = time.monotonic() - start, count


def copy(mode: str, directory: Path, times: int, plan: Plan) -> None:
    """Keep what a kill would leave of a run, unless it is over; it is the one of so many."""
    copies = plan.copies[mode]
    to = plan.folder / f"{folder_of(mode)}-copy-{len(copies)}"
    if not plan.host.over():
        plan.host.copy(directory, to)
        copies.append((to, times))


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
    where = f"in {values['seconds'] / 60:.0f} minutes on {values['machine']}, {values['date']}"
    least = min(count["trials"] for count in counts.values())
    return (
        f"{table(counts)}\n\n{total['trials']} trials, at least {least} a mode, {struck}, "
        f"{total['differences']} differences, {where}."
    )


def write(out: Path, plan: Plan, seconds: float) -> None:
    """The counts so far."""
    total = Counter({"differences": 0})
    for count in plan.counts.values():
        total.update(count)
    counts = {mode: dict(count) for mode, count in plan.counts.items()}
    busy = f"load of {os.getloadavg()[2]:.0f} in the last quarter of an hour"
    values = {
        "date": time.strftime("%Y-%m-%d"), "machine": f"{os.cpu_count()} cores with a {busy}",
        "seconds": round(seconds),
        "total": dict(total), "modes": counts, "differences": plan.faults,
    }  # fmt: skip
    out.write_text(json.dumps(values, indent=1) + "\n")


def main() -> int:
    """Trials until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which none begins")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="+", help="of `modes`; else all of them")
    flags = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ |= tiny.environment()
    # As in the tests: compiling would take most of the time.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("XLA_FLAGS", FEWER_FUSIONS)
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(lives.PRELOADED))
    known = modes(folder)
    changes = {mode: COMMON | fields for mode, fields in known.items()}
    counts = {mode: Counter() for mode in flags.modes or known}
    plan = Plan(folder, lives.Host(), changes, {}, {}, {mode: [] for mode in known}, counts, [])
    for number in itertools.count():
        for place, mode in enumerate(counts):
            if time.monotonic() > began + 60 * flags.minutes:
                return over(plan)
            kind = list(KINDS)[(number + place) % len(KINDS)]
            if all(compared(m, plan) for m in (NEEDED.get(mode), mode) if m):
                attempt(mode, kind, number, flags.seed, plan)
            write(flags.out, plan, time.monotonic() - began)
            print(table(plan.counts) + "\n", flush=True)
    raise AssertionError("unreachable")


def over(plan: Plan) -> int:
    """Print what differs, whose runs are kept; the exit status."""
    plan.host.close()
    for fault in plan.faults:
        print(f"DIFFERS {fault}", flush=True)
    if not plan.faults:
        shutil.rmtree(plan.folder)
    return int(bool(plan.faults))


if __name__ == "__main__":
    sys.exit(main())
