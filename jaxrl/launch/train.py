"""`jaxrl train [RECIPE | FILE | RUN] [flags]`."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxrl.config import Config
from jaxrl.launch import needs, progress, streams
from jaxrl.launch.cli import INTERRUPTED, REFUSALS, refused
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.planning import memory
from jaxrl.launch.settings import configs, short, sweep, trust
from jaxrl.launch.streams import say
from jaxrl.mesh import distributed
from jaxrl.record import rundir, storage
from jaxrl.record.process import Stop
from jaxrl.run import loop, placement, profile
from jaxrl.run.context import Callbacks
from jaxrl.run.guards import Stopped

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: list[str]) -> int:
    """Train with a recipe (default: quickstart), a config file, or continue a run directory.

    The same command again continues the run. `--with NAME` adds an extension, such as `critic` or
    `my_file:function`; its fields become flags `--NAME.FIELD`. `--profile` traces steps 3 to 5 into
    RUN/profile and prints the operations with the highest cost. `--memory 14GiB`, or `auto`,
    chooses what the backward pass computes again and the size of micro-batches, so that an update
    fits. Numbers with commas, as in `--seed 0,1,2`, train one run after another and compare them;
    `--parallel N` trains N at once, and `--together` steps those of LoRA adapters in turn over one
    base.
    """
    try:
        count, argv = sweep.parallel(argv)
        together, argv = sweep.takes_turns(argv)
        arms = sweep.arms(argv)
        if together and count > 1:
            raise ValueError(f"--together with --parallel {count}: leave one of them out")
        if together and arms:
            return _train_together(arms)
        if arms:
            return sweep.run(
                arms, sweep.side_by_side(count) if count > 1 else sweep.in_turn(train_run)
            )
        if together or count > 1:
            name = "--together" if together else f"--parallel {count}"
            raise ValueError(f"{name} is for several runs, as in --seed 0,1,2")
        config, options = configs.resolve(argv)
        return train_run(config, options)
    except REFUSALS as error:
        return refused(error)
    except KeyboardInterrupt:
        say("jaxrl: interrupted before anything was trained; nothing is kept", error=True)
        return INTERRUPTED


def train_run(config: Config, options: short.Options) -> int:
    """Train one run, with progress on the console, which cannot end it; the exit status."""
    with streams.lasting():
        return _one(config, options)


def _train_together(arms: Sequence[sweep.Arm]) -> int:
    """Train runs of adapters in turn over one base; the exit status."""
    sweep.check_together(arms)
    sharing, full_arms = placement.sharing(), list[str]()

    def train_arm(arm: sweep.Arm, console: Console, turn: sweep.TurnTaking) -> int:
        def leave() -> int:
            full_arms.append(arm.name)
            turn.end_all(f"the disk is full, as {arm.name} has found")
            return 1

        who = f"jaxrl: {arm.name}"
        return _one(arm.config, arm.options, console, turn.wrap, sharing, leave, who)

    with streams.lasting():
        status = sweep.run(arms, sweep.together(train_arm, arms[0].config.checkpoint.grace_seconds))
    return _leave() if full_arms else status


def _leave() -> int:
    """End the process at once, as threads may still wait for a disk that is full."""
    os._exit(1)


def _one(
    config: Config,
    options: short.Options,
    console: Console | None = None,
    wrap: Callable[[Callbacks], Callbacks] = lambda watch: watch,
    sharing: placement.Sharing | None = None,
    leave: Callable[[], int] = _leave,
    who: str = "jaxrl",
) -> int:
    """See `train_run`; the callbacks are wrapped, and the base is shared with other runs.

    A full disk ends it by `leave`, and lines to the standard streams begin with `who`.
    """
    try:
        # first, as the others wait for one that is refused before; alone, no device is opened yet
        several = distributed.start() > 1
        with distributed.exit_together() if several else contextlib.nullcontext():
            short.check_named(config)
            lines = needs.check(config, strict=options.strict)
            if options.memory:
                directory = loop.run_directory(config)
                config, line = memory.fit_run(config, options.memory, directory)
                options = options._replace(notes=(*options.notes, line))
    except ValueError as error:
        return refused(error, who)
    for line in lines:
        say(f"{who}: {line}", error=True)
    console = console or PlainConsole()
    if distributed.first():
        for note in options.notes:
            console.print(as_text(note), soft_wrap=True)
    directory = loop.run_directory(config)
    started = False

    def begin() -> None:
        nonlocal started
        if not started:
            trust.remember(directory, config)
        started = True

    display_options = {"every": options.show_every, "dtype": config.compute_dtype}
    try:
        with progress.on_console(console, begin, **display_options) as watch:
            if options.profile:
                watch = profile.profiled(watch, directory / "profile")
            watch = wrap(_stopping_when_full(_shielding(watch, who)))
            summary = loop.train(config, watch, trust=options.trust, sharing=sharing)
    except REFUSALS as error:
        if started:  # a fault of ours, not of the request: show where
            raise
        return refused(error, who)
    except Stopped as error:
        say(f"{who}: {error}", error=True)
        return 1
    except Stop:
        _tell_kept(console, directory)
        raise
    except KeyboardInterrupt:
        _tell_kept(console, directory)
        return INTERRUPTED
    except storage.errors() as error:
        return _storage_failed(error, directory, leave, who)
    if distributed.first():
        with contextlib.suppress(KeyboardInterrupt):
            progress.close(console, directory, summary)
    return 0


def _shielding(watch: Callbacks, who: str = "jaxrl") -> Callbacks:
    """`watch`, whose faults end no run: what cannot be shown is said once, and then left out."""
    faulty: set[str] = set()

    def shielded(name: str, show: Callable[..., object]) -> Callable[..., None]:
        def attempted(*args: Any) -> None:
            try:
                show(*args)
            except Exception as error:  # whatever it is, it is no fault of the training
                if name not in faulty:
                    faulty.add(name)
                    say(f"{who}: {name} cannot be shown: {error}; the run continues", error=True)

        return attempted

    return Callbacks(**{name: shielded(name, show) for name, show in watch._asdict().items()})


def _stopping_when_full(watch: Callbacks) -> Callbacks:
    """`watch`, which ends the run at the next step once a save has found the disk full.

    The libraries that save log each failed write with its traceback; the run's own note says all.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    full = threading.Event()

    def note(text: str) -> None:
        if os.strerror(errno.ENOSPC) not in text:
            watch.note(text)
            return
        full.set()

    def step(number: int, metrics: dict[str, float]) -> None:
        watch.step(number, metrics)
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return watch._replace(note=note, step=step)


def _failure(error: BaseException, directory: Path, full: bool) -> str:
    """What failed, and what to do about it."""
    why = "the disk is full" if full else " ".join(str(error).split()) or type(error).__name__
    first = "free some space, then " if full else ""
    if rundir.has_progress(directory):
        remedy = f"{first}continue with: jaxrl train {directory}"
    else:
        remedy = f"nothing is kept; {first}run the same command again"
    return f"{directory}: {why}; the run has stopped; {remedy}"


def _tell_kept(console: Console, directory: Path) -> None:
    """Say after an interruption what there is to continue from."""
    if not distributed.first():
        return
    if rundir.has_progress(directory):
        console.print(as_text(f"continue with: jaxrl train {directory}"), soft_wrap=True)
        return
    console.print("stopped before the first checkpoint; nothing is kept")


def _storage_failed(
    error: BaseException, directory: Path, leave: Callable[[], int], who: str
) -> int:
    """One line about a failure of storage, and the end, by `leave` where the disk is full."""
    full = getattr(error, "errno", None) in _FULL or "No space left" in str(error)
    say(f"{who}: {_failure(error, directory, full)}", error=True)
    return leave() if full else 1
