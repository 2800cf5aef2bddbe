"""The console output of a training run: progress bars, main metrics, and a closing table."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from jaxrl.data.types import Problem, Score
from jaxrl.launch.console import as_text
from jaxrl.launch.report import alerts
from jaxrl.launch.streams import attempt
from jaxrl.printable import printable
from jaxrl.record import jsonl, rundir
from jaxrl.rollout.experience import Experience
from jaxrl.run.loop import Callbacks

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN = {
    True: {"pass@1": "pass@1", "reward": "reward", "completion_length": "tokens"},
    False: {"loss": "loss", "accuracy": "accuracy", "margin": "margin", "likelihood": "likelihood"},
}
"""Figures of the closing table and their names there, by whether problems were answered."""
_FIRST = 3  # completions shown as soon as they are scored
Shown = tuple[Problem, str, Score]
_LINES = 20  # progress lines of a whole run where there is no terminal to redraw


@contextmanager
def on_console(
    console: Console,
    begin: Callable[[], None],
    *,
    every: int = 0,
    dtype: alerts.Dtype = "float32",
) -> Iterator[Callbacks]:
    """`Callbacks` that draws on the console; `begin` is called once something has been done.

    Args:
      console: where to draw.
      begin: see above.
      every: steps between completions shown, with prompt, answer and reward; 0: ten in a run.
      dtype: of the run, see `alerts.alerts`.
    """
    rewards: list[float] = []
    rows: list[dict[str, float]] = []
    noted: set[str] = set()
    due = every
    bars: dict[str, TaskID] = {}
    latest = ""
    early: list[Shown] | None = []  # None once the first completions have been shown
    lock = threading.Lock()
    live = Progress(
        TextColumn("{task.description:>10}", markup=False),
        BarColumn(bar_width=24, table_column=Column(min_width=10)),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn(
            "{task.fields[figures]}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    )

    def imitated(number: int, loss: float) -> None:
        nonlocal latest
        latest = f"loss {loss:.4f}"

    def step(number: int, metrics: dict[str, float]) -> None:
        nonlocal latest
        rewards.append(metrics["reward/mean"])
        rows.append(metrics)
        latest = figures(metrics, rewards)
        messages = alerts.alerts(rows, dtype)
        for name in messages.keys() - noted:
            console.print(
                as_text(f"ALERT at step {number}, {name}: {messages[name]}"), soft_wrap=True
            )
        noted.clear()
        noted.update(messages)

    def scored(problem: Problem, text: str, score: Score) -> None:
        nonlocal early
        with lock:
            if early is None:
                return
            early.append((problem, text, score))
            if len(early) == _FIRST:
                console.print(_scored(early, "first scored completions"))
                early = None

    def sampled(number: int, experience: Experience) -> None:
        nonlocal early
        begin()
        with lock:
            unseen, early = early is not None, None
        if number == 0 and unseen:
            console.print(samples(experience, "first scored completions", _FIRST))
        elif due and number % due == 0:
            console.print(samples(experience, f"step {number}", 1))

    def stage(name: str, done: int, total: int) -> None:
        nonlocal due
        begin()
        due = due or (max(1, total // 10) if name == "train" else 0)
        if name not in bars:
            bars[name] = live.add_task(name, total=total, figures="")
        live.update(bars[name], completed=done, total=total, figures=latest)
        lines = _LINES if name == "train" else 4
        if not console.is_terminal and (done % -(-total // lines) == 0 or done == total):
            console.print(as_text(f"{name} {done}/{total}  {latest}"), soft_wrap=True)

    def note(text: str) -> None:
        console.print(as_text(text, lines=True), soft_wrap=True)

    with live:
        yield Callbacks(stage, imitated, step, sampled, note, scored)


def samples(experience: Experience, title: str, count: int) -> Table:
    """So many completions, evenly spread, as they were scored."""
    group = max(1, len(experience.texts) // max(1, len(experience.problems)))
    chosen = range(0, len(experience.texts), max(1, len(experience.texts) // count))[:count]
    rows = [(experience.problems[n // group], experience.texts[n], experience.scores[n])
            for n in chosen]  # fmt: skip
    return _scored(rows, title)


def _scored(rows: Sequence[Shown], title: str) -> Table:
    """Completions: prompt, completion, answer, reward with its parts."""
    table = Table("prompt", "completion", "answer", "reward", title=title, title_justify="left")
    for problem, text, score in rows:
        parts = "  ".join(f"{name} {value:.3g}" for name, value in score.parts.items())
        reward = f"{score.value:.3g}" if score.value is not None else f"failed: {score.error}"
        table.add_row(
            *(Text(_short(cell, 240)) for cell in (problem.prompt, text)),
            Text(_short("" if problem.answer is None else str(problem.answer), 60)),
            Text(_short(f"{reward}  {parts}".strip(), 200)),
        )
    return table


def figures(metrics: dict[str, float], rewards: list[float]) -> str:
    """The line of a step."""
    seconds = metrics["time/step"]
    spent = {
        name: metrics.get(f"time/{name}", 0.0) / seconds for name in ("sample", "train") if seconds
    }
    shares = " ".join(f"{name} {share:.0%}" for name, share in spent.items())
    if "epoch" in metrics:  # rows of a file, which were neither sampled nor scored
        right = f"accuracy {metrics['accuracy']:.3f}  " if "accuracy" in metrics else ""
        return (
            f"epoch {metrics['epoch']:.2f}  loss {metrics['loss']:.4f}  {right}"
            f"tokens {metrics['tokens']:.0f}  {seconds:.2f} s"
        )
    return (
        f"reward {metrics['reward/mean']:.3f} {sparkline(rewards)}  "
        f"loss {metrics['loss']:+.4f}  entropy {metrics['entropy']:.3f}  "
        f"length {metrics['completion_length']:.1f}  gap {metrics['logp_gap_max']:.0e}  "
        f"{seconds:.2f} s ({shares})"
    )


def sparkline(values: list[float], width: int = 12) -> str:
    """Up to `width` blocks, each the mean of an equal run of the values, 0 low and 1 high.

    Values that are not finite are left out.
    """
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    width = min(width, len(values))
    edges = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(0.0, *means), max(1.0, *means)
    return "".join(_BLOCKS[int((m - low) / (high - low) * (len(_BLOCKS) - 1))] for m in means)


def close(console: Console, directory: Path, summary: dict[str, Any], samples: int = 4) -> None:
    """The before/after table, and held-out problems as they were answered before and after.

    The run is complete, whatever of this can be shown: what fails is said in a line.
    """
    attempt("the table of figures", lambda: console.print(_figures(summary)))
    if "pass@1" in summary["eval"]["before"]:
        attempt(
            "the table of held-out problems",
            lambda: console.print(_samples(directory, rundir.span(summary), samples)),
        )
    minutes, seconds = divmod(round(summary["seconds"]), 60)
    ended = (
        f"{summary['steps']} steps in {minutes} min {seconds} s on {summary['device']}; "
        f"everything is in {directory}"
    )
    attempt("the closing line", lambda: console.print(as_text(ended), soft_wrap=True))


def _figures(summary: dict[str, Any]) -> Table:
    """Held-out figures before and after."""
    before, after = summary["eval"]["before"], summary["eval"]["after"]
    answered = "pass@1" in before
    heads = ("held out, greedy", "before RL", "after RL") if answered else (
        "held out", "before", "after"
    )  # fmt: skip
    table = Table(*heads, "change")
    for name, label in _SHOWN[answered].items():
        if name in before:
            change = after[name] - before[name]
            table.add_row(label, _value(before, name), _value(after, name), f"{change:+.3f}")
    return table


def _value(figures: dict[str, float], name: str) -> str:
    low, high = figures.get(f"{name}/low"), figures.get(f"{name}/high")
    interval = f" [{low:.3f}, {high:.3f}]" if low is not None else ""
    return f"{figures[name]:.3f}{interval}"


def _samples(directory: Path, steps: tuple[int, int], count: int) -> Table:
    paths = [directory / "evals" / f"{step:06d}.jsonl" for step in steps]
    first, final = map(jsonl.read_whole, paths)
    # Problems whose verdict changed say most; the others fill up.
    pairs = sorted(
        zip(first, final, strict=True), key=lambda pair: pair[0]["reward"] == pair[1]["reward"]
    )
    table = Table("prompt", "before RL", "after RL", "answer", title="some held-out problems")
    for old, new in pairs[:count]:
        prompt, answer = (Text(_short(str(old[name]))) for name in ("prompt", "answer"))
        table.add_row(prompt, _verdict(old), _verdict(new), answer)
    return table


def _verdict(row: dict[str, Any]) -> Text:
    reward = row["reward"]
    mark = "failed" if reward is None else f"{reward:g}"
    return Text(f"{_short(row['completion'])}  ({mark})", style="green" if reward else "red")


def _short(text: str, width: int = 160) -> str:
    clean = printable(text)
    return clean if len(clean) <= width else clean[: width // 2] + " ... " + clean[-width // 2 :]
