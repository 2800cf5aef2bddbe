"""`jaxrl train [RECIPE | FILE | RUN] [flags]`."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from pathlib import Path

from rich.console import Console

from jaxrl.config import Config
from jaxrl.launch import progress
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.settings import configs, short, sweep, trust
from jaxrl.mesh import distributed
from jaxrl.record import rundir, storage
from jaxrl.run import loop, profile
from jaxrl.run.context import Callbacks
from jaxrl.run.guards import Stopped
from jaxrl.run.signals import Stop

INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """Train with a recipe (default: quickstart), a config file, or continue a run directory.

    The same command again continues the run. `--with NAME` adds an extension, such as `critic` or
    `my_file:function`; its fields become flags `--NAME.FIELD`. `--profile` traces steps 3 to 5 into
    RUN/profile and prints the operations with the highest cost. Numbers with commas, as in
    `--seed 0,1,2`, train one run after another and compare them; `--parallel N` trains N at once.
    """
    try:
        count, argv = sweep.parallel(argv)
        arms = sweep.arms(argv)
        if arms:
            return sweep.run(arms, sweep.side_by_side(count) if count > 1 else sweep.in_turn(one))
        if count > 1:
            raise ValueError(f"--parallel {count} is for several runs, as in --seed 0,1,2")
        config, options = configs.resolve(argv)
        return one(config, options)
    except REFUSALS as error:
        return refused(error)
    except KeyboardInterrupt:
        print("jaxrl: interrupted before anything was trained; nothing is kept", file=sys.stderr)
        return INTERRUPTED


def one(config: Config, options: short.Options) -> int:
    """Train one run, with progress on the console; the exit status."""
    try:
        short.check_named(config)
        distributed.start()
    except ValueError as error:
        return refused(error)
    console = Console()
    directory = loop.run_directory(config)
    fresh = not directory.exists()
    started = False

    def begin() -> None:
        nonlocal started
        if not started:
            trust.remember(directory, config)
        started = True

    shown = {"every": options.show_every, "dtype": config.compute_dtype}
    try:
        with progress.shown(console, begin, **shown) as watch:
            watch = _stopping_when_full(watch)
            if options.profile:
                watch = profile.profiled(watch, directory / "profile")
            summary = loop.train(config, watch)
    except REFUSALS as error:
        if started:  # a fault of ours, not of the request: show where
            raise
        _discard(directory, fresh)
        return refused(error)
    except Stopped as error:
        print(f"jaxrl: {error}", file=sys.stderr)
        return 1
    except Stop:
        _tell_kept(console, directory, fresh)
        raise
    except KeyboardInterrupt:
        _tell_kept(console, directory, fresh)
        return INTERRUPTED
    except storage.errors() as error:
        return _storage_failed(error, directory)
    if distributed.first():
        progress.close(console, directory, summary)
    return 0


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


def _discard(directory: Path, fresh: bool) -> None:
    """Remove the directory that a refused run has made."""
    if fresh and distributed.first() and not rundir.has_progress(directory):
        storage.remove(directory)


def _tell_kept(console: Console, directory: Path, fresh: bool) -> None:
    """Say after an interruption what there is to continue from."""
    if not distributed.first():
        return
    if rundir.has_progress(directory):
        console.print(f"continue with: jaxrl train {directory}", soft_wrap=True, highlight=False)
        return
    _discard(directory, fresh)
    console.print("stopped before the first checkpoint; nothing is kept")


def _storage_failed(error: BaseException, directory: Path) -> int:
    """One line about a failure of storage, and the end: threads may still wait for the disk."""
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
    why = "the disk is full" if full else str(error).splitlines()[0]
    print(
        f"jaxrl: {directory}: {why}; the run has stopped. Free some space, then continue with: "
        f"jaxrl train {directory}",
        file=sys.stderr,
        flush=True,
    )
    if full:
        os._exit(1)
    return 1
