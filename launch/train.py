"""`jaxrl train [RECIPE] [--profile] [flags]`."""

from __future__ import annotations

import sys

from rich.console import Console

from jaxrl import distributed, loop, profile
from jaxrl.guards import Stopped
from launch import flags, progress, recipes
from launch.cli import REFUSALS, refused


def main(argv: list[str]) -> int:
    """Run a recipe, `quickstart` unless one is named; the same command again continues it.

    `--profile` traces steps 3 to 5 into RUN/profile and prints the costliest operations.
    """
    profiling, argv = "--profile" in argv, [a for a in argv if a != "--profile"]
    name, rest = flags.recipe(argv)
    try:
        config = recipes.load(name)
    except REFUSALS as error:
        return refused(error)
    config = flags.parse(config, rest, prog=f"jaxrl train {name}")
    try:
        distributed.start()
    except ValueError as error:
        return refused(error)
    console = Console()
    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    try:
        with progress.shown(console, begin) as watch:
            if profiling:
                watch = profile.profiled(watch, loop.run_directory(config) / "profile")
            summary = loop.train(config, watch)
    except REFUSALS as error:
        if begun:  # a fault of ours, not of the request: show where
            raise
        return refused(error)
    except Stopped as error:
        print(f"jaxrl: {error}", file=sys.stderr)
        return 1
    if distributed.first():
        progress.close(console, loop.run_directory(config), summary)
    return 0
