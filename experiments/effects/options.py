"""Options of `python -m experiments effects`, and which of them make sense together."""

from __future__ import annotations

import dataclasses

import tyro

from experiments.lab.effect import MARKS


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the measurements."""

    methods: tyro.conf.Positional[tuple[str, ...]] = ()
    """Methods; empty: all that have an experiment."""
    steps: int = 0
    """Train method and ablation for this many steps on two development seeds and record nothing; 0
    measures the rows that are missing."""
    plan: bool = False
    """Tune the arms on development seeds and write the plans, to be committed before measuring."""
    queue: bool = False
    """Plan and measure one method after another, the cheapest first, at low priority, and commit
    each file as it is made; stopped, it continues where it was."""
    check: bool = False
    """Compare each arm with its recipe and its plan, and look for held-out problems in the train
    split; exits with 1 where something differs or overlaps. Where the regime differs, such as the
    staleness, it says so."""
    rerun: bool = False
    """Run the arms of the methods' plans again at their seeds and compare the digests of their
    figures with those recorded; exits with 1 where one differs, on another type of machine beyond
    the noise of the seeds, or none is kept. With --real: that of runs named `METHOD.SEED`."""
    fair: bool = False
    """Run the fair baselines that were run on development seeds alone on the measured seeds, those
    of the methods' own regimes first, at low priority; stopped, it continues where it was. The
    plans that are committed say which they are, and the pages are written again."""
    task: str = ""
    """Of `--rerun`: this task alone, such as `regime`."""
    arms: tuple[str, ...] = ()
    """Of `--rerun`: these arms alone, such as `method` and `"ablation: all"`."""
    history: bool = False
    """Record which plans name a commit that is not in the history, and write the pages again."""
    json: bool = False
    """Print the rows as JSON."""
    html: str = ""
    """Write forest plots and learning curves of the methods to this file."""
    table: bool = False
    """Write the table, the page of the answer, its picture and the lines of `jaxrl recipes NAME`
    again from the recorded results."""
    real: bool = False
    """Do the runs of SmolLM2-135M that are planned and not done, without names those of all
    planned methods, and compare them with a shared GRPO baseline; at low priority, each committed
    as it comes. With --plan: write their plan, to be committed first."""


MODES = (
    "steps", "plan", "queue", "check", "rerun", "fair", "history", "json", "html", "table", "real",
)  # fmt: skip
"""Options that say what is done; without them, what is missing is measured."""
TOGETHER = (("plan", "real"), ("rerun", "real"))
"""Those that can be given with one another."""
OF_ALL = (("history",), ("table",), ("plan", "real"))
"""Those that take no names."""


def require_sense(options: Options) -> None:
    """Refuse options that would have no effect."""
    given = tuple(name for name in MODES if getattr(options, name))
    if options.steps and options.steps < MARKS:
        raise ValueError(
            f"steps={options.steps}: give {MARKS} or more, as arms are measured {MARKS} times over "
            "a run; leave it out to measure"
        )
    words = " ".join(f"--{name}" for name in given)
    if len(given) > 1 and given not in TOGETHER:
        raise ValueError(f"{words}: give one of them at a time")
    for name in ("task", "arms"):
        if getattr(options, name) and given != ("rerun",):
            value = getattr(options, name)
            raise ValueError(f"{name}={value!r} is read by `--rerun` alone; leave out `--{name}`")
    if options.methods and given in OF_ALL:
        raise ValueError(f"{words} is of all methods; leave out {' '.join(options.methods)}")
