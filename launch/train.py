"""`jaxrl train [RECIPE] [--profile] [flags]`."""

from __future__ import annotations

import sys

from rich.console import Console

from jaxrl.launch import flags, progress, recipes
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.mesh import distributed
from jaxrl.run import loop, profile
from jaxrl.run.guards import Stopped


def main(argv: list[str]) -> int:
    """Train with a recipe (default: quickstart); the same command again continues the run.

    `--with NAME` adds an extension, such as `critic` or `my_file:function`; its fields become flags
    `--NAME.FIELD`. `--profile` traces steps 3 to 5 into RUN/profile and prints the operations with
    the highest cost.
    """
    profiling, argv = "--profile" in argv, [a for a in argv if a != "--profile"]
    name, rest = flags.recipe(argv)
    try:
        config = flags.parse(recipes.load(name), rest, prog=f"jaxrl train {name}")
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
