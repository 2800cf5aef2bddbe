"""`jaxrl watch RUN`: show the progress of a run in another terminal, from its files."""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.streams import say
from jaxrl.record import jsonl, runs, storage

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_FIGURES = (
    ("reward/mean", "reward"),
    ("eval/pass@1", "held-out pass@1"),
    ("eval/loss", "held-out loss"),
    ("eval/accuracy", "held-out accuracy"),
    ("completion_length", "completion length"),
    ("entropy", "entropy"),
    ("kl", "KL to reference"),
    ("grad_norm", "gradient norm"),
    ("logp_gap_max", "sampler/trainer gap"),
    ("reward/errors", "scoring errors"),
)
_RECENT = 20  # steps that say how fast the run is now
_GREATEST = 1e100  # sums and differences of such numbers are finite


def main(argv: list[str]) -> int:
    """Show a run until it is finished or the watcher leaves with Ctrl-C."""
    parser = argparse.ArgumentParser(prog="jaxrl watch", description="Follow a run.")
    parser.add_argument("run", type=storage.locate, metavar="RUN", help="its directory")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between looks")
    parser.add_argument("--once", action="store_true", help="show how it stands now, and end")
    flags = parser.parse_args(argv)
    try:
        watch(flags.run, PlainConsole(), every=flags.every, once=flags.once)
    except (OSError, ValueError) as error:
        say(f"jaxrl: {error}", error=True)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def watch(run: Path, console: Console, *, every: float = 1.0, once: bool = False) -> None:
    """Draw the run again at each look until its summary is there.

    Args:
      run: its directory.
      console: where to draw.
      every: seconds between looks.
      once: look once.

    Raises:
      FileNotFoundError: `run` holds no run, and one look is asked for; else it waits for one.
    """
    if not once and not (run / "config.json").exists():
        console.print(as_text(f"waiting for {run} to begin; Ctrl-C leaves"))
        while not (run / "config.json").exists():
            time.sleep(every)
    config = runs.load_config(run)
    look = follow(run / "metrics.jsonl")
    steps: list[dict[str, Any]] = []
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            done = (run / "summary.json").exists()  # before the metrics, so that none is missed
            steps = look(steps)
            live.update(view(run, config, steps, done), refresh=True)
            if once or done:
                return
            time.sleep(every)


def follow(path: Path) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """A function that returns the rows it is given and those that a JSON-lines file has gained.

    A file that was replaced, as when a run is continued from a checkpoint, is read again; a line
    that is still being written is left for the next look.
    """
    position = (None, 0)  # which file, and how much of it

    def look(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal position
        if not path.is_file():  # a pipe or a device would be waited for
            return rows
        if storage.remote(path):  # written anew at each step
            return list(jsonl.read(path))
        with path.open("rb") as file:
            stat = path.stat()
            which, start = position
            if which != stat.st_ino or stat.st_size < start:
                rows, start = [], 0
            file.seek(start)
            fresh, end = jsonl.read_on(file)
            position = (stat.st_ino, end)
        return rows + fresh

    return look


def view(
    run: Path, config: dict[str, Any], steps: list[dict[str, Any]], done: bool
) -> RenderableType:
    """How a run stands: progress, figures with their course so far, where the time goes."""
    steps = [row for row in map(_numbers, steps) if "step" in row]
    total = int(_numbers(config).get("steps", 0))
    step = int(steps[-1]["step"]) if steps else 0
    head = Table.grid(padding=(0, 2))
    head.add_row(
        ProgressBar(total=max(total, 1), completed=step, width=_WIDTH),
        Text(f"step {step} of {total}"),
        Text("finished" if done else remaining(steps, total)),
        Text(speed(steps)),
    )
    title = as_text(f"{run}  ({config.get('recipe')}, seed {config.get('seed')})")
    parts = [head, Text(), figures(steps)] if steps else [head, Text("no step is finished yet")]
    if steps:
        parts += [Text(), phases(steps)]
    return Panel(Group(*parts), title=title, title_align="left", expand=False)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a row: a file may hold anything."""
    return {name: value for name, value in row.items() if is_number(value)}


def is_number(value: Any) -> bool:
    """Whether a value of a file is a number that can be drawn."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and abs(value) < _GREATEST


def remaining(steps: list[dict[str, Any]], total: int) -> str:
    """The time that the steps to come will take at the recent pace."""
    recent = [row["time/step"] for row in steps[1:][-_RECENT:] if row.get("time/step")]
    if not recent:
        return "time left unknown"
    left = round((total - steps[-1]["step"]) * sum(recent) / len(recent))
    hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
    return f"{hours}:{minutes:02}:{seconds:02} left"


def speed(steps: list[dict[str, Any]]) -> str:
    """Sampled tokens a second of late, all phases counted."""
    recent = steps[1:][-_RECENT:]
    seconds = sum(row.get("time/step") or 0.0 for row in recent)
    tokens = sum(row.get("tokens") or 0.0 for row in recent)
    return f"{tokens / seconds:,.0f} tokens/s" if seconds else ""


def figures(steps: list[dict[str, Any]]) -> Table:
    """The figures that matter: latest value, course, least and greatest."""
    table = Table.grid(padding=(0, 2))
    for name, label in _FIGURES:
        values = [row[name] for row in steps if row.get(name) is not None]
        if values and (any(values) or name != "reward/errors"):
            low, high = min(values), max(values)
            table.add_row(
                Text(label),
                Text(f"{values[-1]:.4g}", justify="right"),
                Text(course(values)),
                Text(f"{low:.3g} to {high:.3g}", style="dim"),
            )
    return table


def course(values: list[float]) -> str:
    """Up to `_WIDTH` blocks from least to greatest, each the mean of equally many values."""
    width = min(_WIDTH, len(values))
    edges = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if not math.isfinite(high - low) or high == low:
        return _BLOCKS[3] * width
    return "".join(_BLOCKS[round((m - low) / (high - low) * (len(_BLOCKS) - 1))] for m in means)


def phases(steps: list[dict[str, Any]]) -> Table:
    """What recent steps spent their time on."""
    recent = (steps[1:] or steps)[-_RECENT:]
    total = sum(row.get("time/step") or 0.0 for row in recent)
    table = Table.grid(padding=(0, 2))
    for name, seconds in sorted(_phases(recent), key=lambda item: -item[1]):
        share = seconds / total if total else 0.0
        if share >= 0.005:
            bar = ProgressBar(total=1.0, completed=min(share, 1.0), width=_WIDTH)
            table.add_row(as_text(name), Text(f"{share:.0%}", justify="right"), bar)
    return table


def _phases(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    names = {name for row in rows for name in row if name.startswith("time/")} - {"time/step"}
    for name in names:
        yield name.removeprefix("time/"), sum(row.get(name) or 0.0 for row in rows)
