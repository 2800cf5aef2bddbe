"""Sweeps: numbers with commas train several runs, and one report compares them.

They are trained one after another, or with `--parallel N` so many at once, each in a process of its
own with a share of this machine's accelerators, see `jaxrl.launch.devices`. With `--together` those
of adapters take steps in turn in this process, over one base and with one program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from jaxrl import json_file
from jaxrl.config import Config, fields
from jaxrl.launch import devices, report
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.settings import configs, flags, short
from jaxrl.launch.streams import attempt, say
from jaxrl.mesh import distributed
from jaxrl.record import process, rundir
from jaxrl.run.context import Callbacks

_TIMES = ("before", "after")
_SHOWN = {True: ("pass@1", "reward"), False: ("loss", "accuracy", "margin", "likelihood")}
"""Figures of the table, by whether problems were answered or rows of a file learned."""

_TOGETHER = "--together"
_WAKE_S = 0.1
_VARIES = ("run_dir", "seed", "optimizer.learning_rate", "optimizer.weight_decay")
"""Fields in which runs may differ that share a program, see `placement.Numbers`."""


class Arm(NamedTuple):
    """One run of a sweep."""

    name: str
    """What is particular to it, such as `seed=0,learning_rate=1e-5`."""
    config: Config
    options: short.Options
    argv: tuple[str, ...] = ()
    """The command `jaxrl train` of this run alone."""


class TurnTaking(NamedTuple):
    """How a run takes turns with others in this process."""

    wrap: Callable[[Callbacks], Callbacks]
    """Callbacks after whose steps the next run has its turn."""
    end_all: Callable[[str], None]
    """Has the others end after the steps that they are in, given the reason, as a signal does."""


def arms(argv: Sequence[str]) -> list[Arm]:
    """The runs that a command asks for; none where it asks for a single one.

    A flag of a number is an axis if its value has commas: `--seed 0,1,2 --lr 1e-5,3e-5` are six
    runs. Each gets a directory of its own in that of the command.

    Raises:
      ValueError: see `configs.resolve`.
    """
    axes = [axis for axis in map(_axis, _tokens(argv)) if axis[1]]
    if not axes:
        return []
    plain = [token for token, values in map(_axis, _tokens(argv)) if not values for token in token]
    elsewhere = [
        word
        for token in _tokens(plain)
        if short.ALIASES.get(name := token[0].partition("=")[0].removeprefix("--"), name)
        not in ("run-dir", "run_dir")
        for word in token
    ]
    sweep_arms: list[Arm] = []
    for values in itertools.product(*(values for _, values in axes)):
        names = [flag[0].removeprefix("--") for flag, _ in axes]
        axis_flags = [f"--{name}={value}" for name, value in zip(names, values, strict=True)]
        config, options = configs.resolve([*plain, *axis_flags])
        short_names = [name.rpartition(".")[2].replace("-", "_") for name in names]
        name = ",".join(f"{n}={v}" for n, v in zip(short_names, values, strict=True))
        base = config.run_dir or f"runs/{config.recipe}-sweep"
        run_dir = f"{base}/{name}"
        arm_argv = (*elsewhere, *axis_flags, f"--run-dir={run_dir}")
        sweep_arms.append(
            Arm(name, dataclasses.replace(config, run_dir=run_dir), options, arm_argv)
        )
    return sweep_arms


def parallel(argv: Sequence[str]) -> tuple[int, list[str]]:
    """The number of runs at once that a command asks for, and its other arguments.

    Raises:
      ValueError: not a whole number of 1 or more.
    """
    parallel_flags = [
        token for token in _tokens(argv) if token[0].partition("=")[0] == "--parallel"
    ]
    rest = [word for token in _tokens(argv) if token not in parallel_flags for word in token]
    count = 1
    for token in parallel_flags:
        text = token[0].partition("=")[2] or " ".join(token[1:])
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"--parallel {text}: must be a whole number, 1 or more")
        count = int(text)
    return count, rest


def takes_turns(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a command asks for `--together`, and its other arguments."""
    rest = [word for word in argv if word != _TOGETHER]
    return len(rest) < len(argv), rest


def check_together(members: Sequence[Arm]) -> None:
    """Refuse runs that cannot hold one base and one program.

    Raises:
      ValueError: naming the field, its values and the remedy.
    """
    first, *rest = (arm.config for arm in members)
    options, hosts = members[0].options, distributed.announced(os.environ)
    seeds = sorted({arm.config.seed for arm in members})
    why = {
        f"lora.rank={first.lora.rank} trains the base itself": not first.lora.rank,
        f"generators={first.generators} hold weights of one run": first.generators,
        "asynchronous.staleness is set, and a run would sample while another trains": (
            first.asynchronous.staleness is not None
        ),
        "course has runs in a row": first.course,
        f"extensions {list(first.extensions)} may hold a state or models of their own": (
            first.extensions
        ),
        f"model='fresh' with seeds {seeds}: each seed has a base of its own": (
            first.model == "fresh" and len(seeds) > 1
        ),
        f"warm_start.steps={first.warm_start.steps} with seeds {seeds} trains a base for each": (
            first.warm_start.steps and len(seeds) > 1
        ),
        f"this is one of {hosts} processes, whose runs would have to take the same turns": hosts
        > 1,
        "--profile traces one run at a time": options.profile,
        f"--memory {options.memory} would fit a program for each run": options.memory,
    }
    for config in rest:
        for name, (value, other) in fields.changed(first, config).items():
            text = f"{name} is {value!r} and {other!r}, and runs may differ in "
            why[text + ", ".join(_VARIES[1:])] = name not in _VARIES
    for reason, wrong in why.items():
        if wrong:
            raise ValueError(
                f"{_TOGETHER}: {reason}; leave {_TOGETHER} out, which trains them one after another"
            )


def together(
    train_run: Callable[[Arm, Console, TurnTaking], int], grace_s: float
) -> Callable[[Sequence[Arm]], list[int]]:
    """What trains runs step by step in turn, in threads of this process; gives exit statuses.

    One thread works at a time, so that no more is in memory than one run and the small state of the
    others. While a run loads and evaluates before its first step, its own base lies beside the
    shared one. What each prints is in `RUN.log` beside its directory. A signal ends each after the
    step that it is in, which is saved.

    Args:
      train_run: trains one run, prints on the console, and takes turns.
      grace_s: see `process.stoppable`.
    """

    def train(members: Sequence[Arm]) -> list[int]:
        turns = [threading.Semaphore(0) for _ in members]
        waiting, statuses, reasons = deque(turns), [process.SAVED] * len(members), list[str]()

        def train_arm(place: int) -> None:
            turns[place].acquire()
            try:
                if not reasons:
                    turn = TurnTaking(taking_turns(turns[place]), reasons.append)
                    statuses[place] = _logged(train_run, members[place], turn)
            except process.Stop as stop:
                statuses[place] = int(stop.code or 0)
            except BaseException:
                statuses[place] = 1
                say(f"jaxrl: {members[place].name}: {traceback.format_exc()}", error=True)
            finally:
                if waiting:
                    waiting.popleft().release()

        def taking_turns(turn: threading.Semaphore) -> Callable[[Callbacks], Callbacks]:
            def wrap(watch: Callbacks) -> Callbacks:
                def step(number: int, metrics: dict[str, float]) -> None:
                    watch.step(number, metrics)
                    waiting.append(turn)
                    waiting.popleft().release()
                    turn.acquire()
                    if reasons:
                        raise process.Stop(reasons[0])

                return watch._replace(step=step)

            return wrap

        threads = [threading.Thread(target=train_arm, args=(i,)) for i in range(len(members))]
        with process.stoppable(grace_s, lambda text: print(text, flush=True)) as gate:
            try:
                with gate.closed():  # else a signal could leave threads that wait for good
                    _begin(threads, waiting, reasons)
                _wait(threads, gate.closed)
            except process.Stop as stop:
                reasons.append(stop.name)
                _wait(threads)
                stop.code = max(statuses, default=process.SAVED)
                raise
        _tell(members, statuses)
        return statuses

    return train


def _begin(
    threads: Sequence[threading.Thread], waiting: deque[threading.Semaphore], reasons: list[str]
) -> None:
    """Start the threads and give the first its turn; all end if one of them cannot be started."""
    try:
        for thread in threads:
            thread.start()
    except BaseException as error:
        reasons.append(str(error))
        waiting.popleft().release()  # each that has started ends, and passes the turn on
        _wait(threads)
        raise
    waiting.popleft().release()


def _wait(
    threads: Sequence[threading.Thread],
    hold: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Wait for the end of threads; signals are held back within `hold`.

    A thread in whose `join` or `is_alive` a signal raises counts as ended from then on, although
    it runs (Python 3.12 and before). So the raising is left to the sleep.
    """
    while True:
        with hold():
            alive = any(thread.is_alive() for thread in threads)
        if not alive:
            return
        time.sleep(_WAKE_S)


def _logged(
    train_run: Callable[[Arm, Console, TurnTaking], int], arm: Arm, turn: TurnTaking
) -> int:
    log = Path(f"{arm.config.run_dir}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        return train_run(arm, PlainConsole(file=out), turn)


def _tell(members: Sequence[Arm], statuses: Sequence[int]) -> None:
    for arm, status in zip(members, statuses, strict=True):
        outcome = "done" if not status else f"exit status {status}"
        print(f"{arm.name}: {outcome}, output in {arm.config.run_dir}.log", flush=True)


def side_by_side(count: int) -> Callable[[Sequence[Arm]], list[int]]:
    """What trains runs in processes of their own, so many at once; it gives their exit statuses.

    What each prints is in `RUN.log` beside its directory.

    Raises:
      ValueError: there are fewer accelerators than that, or this is one of several hosts.
    """
    if (hosts := distributed.announced(os.environ)) > 1:
        raise ValueError(
            f"--parallel {count}: this is one of {hosts} processes, and only a machine alone is "
            "shared out; leave --parallel out, and each run takes them all"
        )
    free = queue.SimpleQueue[dict[str, str]]()
    for share in devices.shares(count, devices.find_accelerators()):
        free.put(share)

    def train_arm(arm: Arm) -> int:
        share = free.get()
        log = Path(f"{arm.config.run_dir}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "jaxrl.launch.cli", "train", *arm.argv]
        try:
            with log.open("w") as out:
                return subprocess.run(
                    command, env=os.environ | share, stdout=out, stderr=subprocess.STDOUT
                ).returncode
        finally:
            free.put(share)

    def train(members: Sequence[Arm]) -> list[int]:
        with ThreadPoolExecutor(count) as pool:
            statuses = []
            for arm, status in zip(members, pool.map(train_arm, members), strict=True):
                _tell([arm], [status])
                statuses.append(status)
        return statuses

    return train


def in_turn(
    train_run: Callable[[Config, short.Options], int],
) -> Callable[[Sequence[Arm]], list[int]]:
    """What trains runs one after another in this process; it gives their exit statuses."""

    def train(members: Sequence[Arm]) -> list[int]:
        statuses = []
        for place, arm in enumerate(members, 1):
            PlainConsole().rule(as_text(f"run {place} of {len(members)}: {arm.name}"))
            statuses.append(train_run(arm.config, arm.options))
        return statuses

    return train


def run(members: Sequence[Arm], train: Callable[[Sequence[Arm]], list[int]]) -> int:
    """Train the runs, write one report, and print what they reached.

    Args:
      members: see `arms`.
      train: `in_turn`, `side_by_side` or `together`.

    Returns:
      0, or the status of the first run that failed; the others are trained all the same.
    """
    worst = next(filter(None, train(members)), 0)
    console = PlainConsole()
    directories = [rundir.run_directory(arm.config) for arm in members]
    done = [d for d in directories if (d / "summary.json").exists()]
    attempt("the table", lambda: console.print(table([arm.name for arm in members], directories)))
    if done:
        attempt("the report", lambda: _report(done, console))
    return worst


def _report(done: Sequence[Path], console: Console) -> None:
    """Write the report of the runs beside them."""
    out = done[0].parent / "report.html"
    report.write(done, out)
    console.print(as_text(f"compared in {out}"), soft_wrap=True)


def table(names: Sequence[str], directories: Sequence[Path]) -> Table:
    """Held-out figures of runs, before and after training, as far as they have them."""
    outcomes = [
        json_file.read(path) if path.exists() else None
        for path in (directory / "summary.json" for directory in directories)
    ]
    held_out = [outcome["eval"]["before"] for outcome in outcomes if outcome]
    answered = any("pass@1" in figures for figures in held_out)
    figure_names = [
        name for name in _SHOWN[answered] if any(name in figures for figures in held_out)
    ]
    outcome_table = Table(
        "run", *(f"{name} {when}" for name in figure_names for when in _TIMES), "seconds"
    )
    for name, outcome in zip(names, outcomes, strict=True):
        if not outcome:
            outcome_table.add_row(name, *["-"] * 2 * len(figure_names), "unfinished")
            continue
        cells = [outcome["eval"][when].get(figure) for figure in figure_names for when in _TIMES]
        texts = ["-" if cell is None else f"{cell:.3f}" for cell in cells]
        outcome_table.add_row(name, *texts, f"{outcome['seconds']:.0f}")
    return outcome_table


def _tokens(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Arguments with their values: a flag and what follows it, or a word alone."""
    tokens: list[tuple[str, ...]] = []
    for token in argv:
        if token.startswith("--") or not tokens or not tokens[-1][0].startswith("--"):
            tokens.append((token,))
        else:
            tokens[-1] = (*tokens[-1], token)
    return tokens


def _axis(token: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """An argument, and its values if it is an axis: a numeric flag with commas."""
    flag, has_value, value = token[0].partition("=")
    if not flag.startswith("--") or len(token) != (1 if has_value else 2):
        return token, []
    values = (value if has_value else token[1]).split(",")
    if len(values) < 2 or not all(map(_is_number, values)):
        return token, []
    name = flag.removeprefix("--")
    field = short.ALIASES.get(name.replace("_", "-"), name)
    if type(flags.at(Config(), field.replace("-", "_"))) not in (int, float):
        return token, []
    return (flag,), values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
