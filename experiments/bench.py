"""`python -m experiments control [EXPERIMENT ...]`: learning curves over seeds, their table and
figures. With `--draw` alone, figures and table are drawn anew from the records."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from scipy import stats

from experiments import control_claims
from experiments.control_claims import Arm, Claim, Experiment, Setting
from experiments.control_code import code_of
from jaxrl.control import algorithms, train
from jaxrl.data.offline import statistics
from jaxrl.data.offline.statistics import normalised_score
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.record.rundir import environment
from jaxrl.record.storage import write_json

OUT = Path("docs/control")
"""Where records, figures and the table go, from the root of the source tree."""
SEEDS = range(5)

Record = dict[str, Any]


def main(argv: list[str]) -> int:
    """Run the named experiments, all of them when none is named, and write the table anew."""
    if argv and argv[0] in ("-h", "--help"):
        print("usage: python -m experiments control [--draw | EXPERIMENT ...]\n")
        print("\n".join(control_claims.names()))
        return 0
    console = Console()
    OUT.mkdir(parents=True, exist_ok=True)
    if argv == ["--draw"]:
        for path in sorted(OUT.glob("*.json")):
            draw(json.loads(path.read_text()), path.with_suffix(".png"))
    try:
        for name in [] if argv == ["--draw"] else argv or control_claims.names():
            record = run(control_claims.load(name), console, OUT / f"{name}.unfinished")
            write_json(OUT / f"{name}.json", record)
            draw(record, OUT / f"{name}.png")
    except REFUSALS as error:
        return refused(error)
    (OUT / "results.md").write_text(table(OUT))
    console.print(f"the table is {OUT / 'results.md'}")
    return 0


def run(experiment: Experiment, console: Console, unfinished: Path) -> Record:
    """All arms of an experiment, as plain values; `unfinished` keeps them until all are there.

    An experiment that was cut short continues with the arm it had come to.
    """
    arms = json.loads(unfinished.read_text()) if unfinished.exists() else []
    for kept, arm in zip(arms, experiment.arms, strict=False):
        if (kept["label"], kept["config"]) != (arm.label, json.loads(json.dumps(arm.config))):
            raise ValueError(
                f"{unfinished} holds arm {kept['label']!r} with {kept['config']}, where "
                f"{experiment.title!r} has {arm.label!r} with {arm.config}; remove the file"
            )
    setting = experiment.make()
    for arm in experiment.arms[len(arms) :]:
        arms.append(curve(arm, setting, experiment))
        write_json(unfinished, arms)
        score = np.array(arms[-1]["scores"])[:, -1]
        said = f"{score.mean():.1f} ± {_error(score):.1f} in {arms[-1]['seconds']:.0f} s"
        console.print(f"{experiment.title}: {arm.label} {said}", highlight=False)
    unfinished.unlink(missing_ok=True)
    found = {arm["label"]: np.array(arm["scores"])[:, -1] for arm in arms}
    return {
        "title": experiment.title,
        "note": experiment.note,
        "episodes": experiment.episodes,
        "arms": arms,
        "claims": [verdict_of(claim, found) for claim in experiment.claims],
        "host": environment()["host"],
    }


def curve(arm: Arm, setting: Setting, experiment: Experiment) -> Record:
    """One arm over the seeds: score by seed and point. Steps are updates, or of the environment."""
    start = time.perf_counter()
    module = algorithms.load(arm.algorithm)
    programs = module.programs(setting.env, replace(module.config(), **arm.config))
    data = setting.sets[arm.data] if arm.data else None
    steps, scores = [], []
    given = {"points": experiment.points, "episodes": experiment.episodes}
    for point in train.train(programs, setting.env, seeds=SEEDS, data=data, **given):
        done = sum(p.steps * max(p.env_steps, 1) for p in programs[: point.phase])
        steps.append(done + point.step * max(programs[point.phase].env_steps, 1))
        scores.append(normalised_score(point.returns, setting.bounds))
    return {
        "label": arm.label,
        "algorithm": arm.algorithm,
        "code": code_of(arm.algorithm),
        "config": dict(arm.config),
        "steps": steps,
        "switches": [p.name for p in programs],
        "scores": np.round(np.stack(scores, axis=1), 2).tolist(),
        "seconds": time.perf_counter() - start,
    }


def verdict_of(claim: Claim, scores: Mapping[str, np.ndarray]) -> Record:
    """A claim against the final scores [seeds] of its two arms, by Welch's 95% interval."""
    first, second = scores[claim.first], scores[claim.second]
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    needed = -claim.margin if claim.kind == "matches" else 0.0
    verdict = "shown" if low > needed else "reversed" if high < needed else "not shown"
    gap = float(first.mean() - second.mean())
    arms = [claim.first, claim.second]
    return {
        "text": claim.text, "arms": arms, "gap": gap, "low": low, "high": high, "verdict": verdict,
    }  # fmt: skip


def draw(record: Record, path: Path) -> None:
    """Mean and standard error of each arm over steps, and the profile of its last scores.

    Arms that were measured with other code of their algorithm are grey.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, profiles) = pyplot.subplots(1, 2, figsize=(9.6, 3.8), dpi=110)
    old = [arm["label"] for arm in stale(record)]
    last = np.concatenate([np.array(arm["scores"])[:, -1] for arm in record["arms"]])
    thresholds = np.linspace(min(0.0, last.min()), max(100.0, last.max()), 101)
    for arm in record["arms"]:
        scores, steps = np.array(arm["scores"]), arm["steps"]
        mean, error = scores.mean(axis=0), scores.std(axis=0, ddof=1) / len(scores) ** 0.5
        grey = {"color": "0.7"} if arm["label"] in old else {}
        (line,) = curves.plot(steps, mean, label=arm["label"], linewidth=1.4, **grey)
        curves.fill_between(steps, mean - error, mean + error, color=line.get_color(), alpha=0.2)
        profile = statistics.performance_profile(scores[:, -1], thresholds)
        profiles.step(thresholds, profile, color=line.get_color(), linewidth=1.4)
    curves.set(title=record["title"], xlabel="steps", ylabel="normalised score")
    profiles.set(title="at the end", xlabel="normalised score", ylabel="share of seeds above it")
    for axes in (curves, profiles):
        axes.grid(alpha=0.3)
    curves.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


def table(out: Path) -> str:
    """The page of all records in `out`."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    old = sum(len(stale(record)) for record in records.values())
    parts = [_HEADER.format(old=old, rows=sum(len(r["arms"]) for r in records.values()))]
    for name, record in records.items():
        parts += _section(name, record)
    return "\n".join(parts) + "\n"


_HEADER = """# Results of control

Generated by `python -m experiments control`; do not edit. Scores are 0 for the random policy and
100 for the expert of the task; mean and standard error over 5 seeds, trained side by side, and the
mean of the middle half of them (IQM) with its 95% interval by the bootstrap over seeds. Steps
are updates, or of the environment in a phase that plays; seconds are of two cores that had other
work too. A gap stands with Welch's 95% interval: a claim is *shown* where all of it is above 0
(above minus 5 for "matches"), *reversed* where all of it is below, and otherwise *not shown*. Rows
in italics, grey in the figures, were measured with other code of their algorithm than there is now:
they are no results of it, and a claim that names one has no verdict. These are {old} of {rows}
rows. `python -m experiments control --draw` draws figures and table anew from the records.
"""


def stale(record: Record) -> list[Record]:
    """The arms of a record that were measured with other code than their algorithm has now."""
    known = set(algorithms.names())
    return [
        arm
        for arm in record["arms"]
        if arm["algorithm"] not in known or arm.get("code") != code_of(arm["algorithm"])
    ]


def _section(name: str, record: Record) -> Sequence[str]:
    lines = [f"\n## {record['title']}\n", f"![{record['title']}]({name}.png)\n"]
    episodes = f"Each seed plays {record['episodes']} episodes at a point."
    lines.append(f"{record['note']} {episodes}\n".lstrip())
    lines.append("| arm | steps | score | IQM | best point | seconds for 5 seeds |")
    lines.append("|---|---|---|---|---|---|")
    old = [arm["label"] for arm in stale(record)]
    for arm in record["arms"]:
        scores = np.array(arm["scores"])
        last, top = scores[:, -1], scores.mean(axis=0).max()
        low, high = statistics.bootstrap_interval(last)
        iqm = f"{statistics.interquartile_mean(last):.1f} [{low:.1f}, {high:.1f}]"
        mean = f"{last.mean():.1f} ± {_error(last):.1f}"
        cells = f"{mean} | {iqm} | {top:.1f} | {arm['seconds']:.0f}"
        row = f"{arm['label']} | {arm['steps'][-1]} | {cells}"
        if arm["label"] in old:
            row = " | ".join(f"*{cell}*" for cell in row.split(" | "))
        lines.append(f"| {row} |")
    corrected = [arm for arm in record["arms"] if "measured_before" in arm]
    if corrected:
        lines.append("\nMeasured before a correction:\n")
        lines += [f"- {arm['label']}: before {arm['measured_before']}" for arm in corrected]
    if record["claims"]:
        lines.append("\n| claim | gap | verdict |\n|---|---|---|")
    for claim in record["claims"]:
        gap = f"{claim['gap']:+.1f} [{claim['low']:+.1f}, {claim['high']:+.1f}]"
        names = claim.get("arms", [])
        verdict = "to be measured again" if set(names) & set(old) else claim["verdict"]
        lines.append(f"| {claim['text']} | {gap} | {verdict} |")
    return lines


def _error(scores: np.ndarray) -> float:
    return float(scores.std(ddof=1) / len(scores) ** 0.5)
