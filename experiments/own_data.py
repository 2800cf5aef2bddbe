"""`python -m experiments own_data --data FILE`: methods on a real model and a user's file.

Sixteen methods of different kinds train SmolLM2-135M-Instruct for a few steps on a file of
questions with worked solutions, such as the train split of GSM8K. What is shown is that the
mechanism of each works on data that the project does not contain; so few steps say nothing about
which method is better. `PLAN` was there before any result: it says which figure shows a mechanism,
and what it must be.

A method is a run in `--out`, which continues where it was stopped; one that is done is a line of
`RESULTS`, and is not run again. After each, docs/own-data-methods.md is written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.launch import recipes
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.record import jsonl, metrics

RESULTS = Path("experiments/results/own-data.jsonl")
PAGE = Path("docs/own-data-methods.md")
STEPS = 20
MODEL = "smollm2-135m"

SETTINGS = (
    "--rollout.prompts=1", "--rollout.group-size=4", "--rollout.max-prompt-tokens=96",
    "--rollout.long-prompts=drop", "--rollout.max-new-tokens=56", "--lr=1e-5",
    "--optimizer.warmup-steps=2", "--sampler.slots=4", "--sampler.prefill-rows=1",
    "--sampler.chunk=8", "--sampler.bucket=32", "--packing.micro-batch-tokens=384",
    "--packing.row-length=192", "--eval.problems=8", "--checkpoint.every=10", "--checkpoint.keep=1",
    "--rollout-log.every=1", "--rollout-log.groups=4",
)  # fmt: skip
"""Of every run: short answers and few of them, as a step is to be cheap."""
FOUR_UPDATES = ("--rollout.prompts=4", "--rollout.group-size=2", "--sampler.slots=8")
"""A prompt for each update of a batch."""
TWO_UPDATES = ("--rollout.prompts=2", "--rollout.group-size=2")
LONGEST = 90
"""Characters of a solution; rows with longer ones are left out, so that short answers hold them."""
BRIEF = ("--reward", "number", "brief=experiments.own_data:brief*0.2")
"""So that groups differ in reward where no answer is right."""
NUMBER = ("--reward", "number")
FOUR_PROMPTS = ("--rollout.prompts=4", "--rollout.group-size=2")
DOMAINS = ("--domain-column", "length")
"""A column that is made of the questions: `short`, `middle` or `long`."""

Rows = Sequence[Mapping[str, Any]]


class Plan(NamedTuple):
    """How a method is run, and what shows its mechanism."""

    method: str
    flags: tuple[str, ...]
    figure: str
    """What is looked at."""
    expected: str
    """What it is if the mechanism works, in words."""
    values: Callable[[Rows, Rows], list[float]]
    """`(metrics by step, logged completions) -> the figure`, by step or by what it tells apart."""
    holds: Callable[[list[float]], bool]
    """Whether the figure is what was expected."""


def brief(completion: str) -> float:
    """1 for an answer of no words, 0 for one of 64 words or more."""
    return max(0.0, 1.0 - len(completion.split()) / 64)


def by_step(name: str) -> Callable[[Rows, Rows], list[float]]:
    """A metric of each step that has it."""
    return lambda steps, completions: [float(row[name]) for row in steps if name in row]


def share(source: str) -> Callable[[Rows, Rows], list[float]]:
    """The share of completions of each step that have a token of a source."""

    def values(steps: Rows, completions: Rows) -> list[float]:
        by_number: dict[int, list[bool]] = {}
        for row in completions:
            by_number.setdefault(int(row["step"]), []).append(source in row["source"])
        return [statistics.fmean(marks) for _, marks in sorted(by_number.items())]

    return values


def greatest_shares(steps: Rows, completions: Rows) -> list[float]:
    """The share of the domain that most prompts of a step are of; 1 where a step logs no shares,
    as its prompts are of one domain."""
    shares = re.compile("domain/.*/share")
    return [
        max((float(row[name]) for name in row if shares.fullmatch(name)), default=1.0)
        for row in steps
    ]


def control_errors(steps: Rows, completions: Rows) -> list[float]:
    """What each reward differs by from its parts under the weights that its prompt states."""
    out = []
    for row in completions:
        head, _, text = row["prompt"].rpartition("Weights: ")
        pairs = [pair.split(" ")[:2] for pair in text.splitlines()[0].split(", ")] if head else []
        total = sum(float(weight.split("<")[0]) * row["parts"][name] for name, weight in pairs)
        out.append(abs(row["reward"] - total) if pairs else float("inf"))
    return out


def _positive(values: list[float]) -> bool:
    return max(values) > 0


def _varies(values: list[float]) -> bool:
    return max(values) > min(values)


def _falls(values: list[float]) -> bool:
    half = len(values) // 2
    return statistics.fmean(values[half:]) < statistics.fmean(values[:half])


PLAN = (
    Plan("chord", BRIEF, "share of completions that an expert wrote", "1/4: one of each group",
         share("expert"), lambda v: set(v) == {0.25}),
    Plan("ghpo", NUMBER, "share of completions that begin with a hint",
         "above 0, as some groups have no right answer", share("forced"), _positive),
    Plan("cure", BRIEF, "share of completions that branch from another",
         "from 1/4 to 1/2: the second half of each group, but for branches before its first token",
         share("forced"), lambda v: 0.25 <= statistics.fmean(v) <= 0.5),
    Plan("sasr", (*BRIEF, "--imitation.warmup-steps=6"), "probability of a step of imitation",
         "in (0, 1], and no constant", by_step("imitation_probability"), _varies),
    Plan("tram", BRIEF, "radius of the ascent step", "above 0", by_step("ascent_radius"),
         _positive),
    Plan("rlcr", NUMBER, "share of completions with a confidence",
         "above 0: some are scored by Brier's rule", by_step("reward/format"), _positive),
    Plan("dynamic_control", BRIEF, "reward less the parts under the prompt's weights",
         "0 for all", control_errors, lambda v: max(v) < 1e-6),
    Plan("areal", (*BRIEF, *FOUR_UPDATES), "lag of the tokens, in steps", "above 0",
         by_step("lag/mean"), _positive),
    Plan("vcpo", (*BRIEF, *FOUR_UPDATES), "factor of the learning rate",
         "in (0, 1), as updates after the first are off-policy", by_step("lr_scale"),
         lambda v: 0 < min(v) < 1),
    Plan("remix", (*BRIEF, *TWO_UPDATES), "convex KL term", "above 0 once stored groups are used",
         by_step("kl_convex"), _positive),
    Plan("april", BRIEF, "lag of the tokens, in steps", "above 0: some answers are continued",
         by_step("lag/mean"), _positive),
    Plan("dump", (*BRIEF, *DOMAINS, *FOUR_PROMPTS), "greatest share of a domain",
         "above 1/2 in some step: even shares of 4 prompts are 1/4 or 1/2", greatest_shares,
         lambda v: max(v) > 0.5),
    Plan("codev_r1", NUMBER, "rounds of sampling a step",
         "above 1, as few groups have both right and wrong answers", by_step("rounds"),
         lambda v: max(v) > 1),
    Plan("nlpo", BRIEF, "loss of the critic", "lower in the second half", by_step("value_loss"),
         _falls),
    Plan("hl_gauss_critic", BRIEF, "cross-entropy of the critic", "lower in the second half",
         by_step("value_loss"), _falls),
    Plan("dph_rl", NUMBER, "factor of the learning rate", "0 while pi_0 is sampled, then 1",
         by_step("lr_scale"), lambda v: v[0] == 0 and v[-1] == 1),
)  # fmt: skip
"""Sixteen methods: with demonstrations, of exploration, imitation, rewards, off-policy, systems,
data selection, critics and objectives."""

HEAD = """# Methods on a real model and real data

Sixteen methods of different kinds train SmolLM2-135M-Instruct for {steps} steps on the train
split of GSM8K (Cobbe et al. 2021), which is read by path. The question is whether the mechanism
of each works on data that the project does not contain; so few steps say nothing about which
method is better. The plan names the figure that shows a mechanism and what it must be, and was
committed before any result. A figure is given at the first and the last step, and as its mean. A
row without figures has not been run. Seconds a step are medians beside other work. The plan was
changed twice after a run: the first of sasr spent its 20 steps in the method's warm-up of 20
(probability 1 in each), so that the warm-up now is of 6; and the first of dump had one prompt a
step, of which there are no shares, so that it now has four, and the figure is the greatest share.

`python -m experiments own_data --data FILE` runs it, continues where it was stopped, and writes
this page. A step has one prompt with 4 answers of 56 tokens, and with several updates a batch a
prompt with 2 answers for each of them, beside what the method sets; of the data, questions whose
solutions have at most 90 characters.

| method | figure | expected | first | last | mean | holds | seconds a step |
|---|---|---|---|---|---|---|---|
"""


def main(argv: list[str]) -> int:
    """Run what is not done yet; returns the exit status."""
    parser = argparse.ArgumentParser("python -m experiments own_data", description=__doc__)
    parser.add_argument("--data", help="rows with the columns question and answer")
    parser.add_argument("--out", default="runs/own-data", help="of runs that are not done")
    parser.add_argument("--results", default=str(RESULTS), help="a line for each method")
    parser.add_argument("--page", default=str(PAGE))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", default="", help="names of methods, with commas")
    options = parser.parse_args(argv)
    results, page = Path(options.results), Path(options.page)
    names = options.only.split(",") if options.only else [plan.method for plan in PLAN]
    done = {row["method"] for row in _lines(results)}
    try:
        for plan in PLAN if options.data else ():
            if plan.method in names and plan.method not in done:
                row = measure(plan, Path(options.data), Path(options.out), options.steps)
                with results.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(json.dumps(row))
                page.write_text(render(_lines(results)))
    except REFUSALS as error:
        return refused(error)
    page.write_text(render(_lines(results)))
    return 0


def measure(plan: Plan, data: Path, out: Path, steps: int) -> dict[str, Any]:
    """Run a method to its end; its line.

    Args:
      plan: of the method.
      data: the user's file.
      out: where runs are.
      steps: of the run.

    Raises:
      ValueError: the run failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows_file = add_lengths(data, out / "rows.jsonl")
    directory = out / plan.method
    if (directory / "config.json").exists():
        argv = [str(directory), f"--steps={steps}"]
    else:
        argv = [
            plan.method, f"--model={MODEL}", f"--data={rows_file}", *SETTINGS, f"--steps={steps}",
            f"--run-dir={directory}", *plan.flags,
        ]  # fmt: skip
    command = [sys.executable, "-m", "jaxrl.launch.cli", "train", *argv, "--strict"]
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    status = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
    if status:
        raise ValueError(f"{plan.method}: exit status {status}; see {directory}")
    step_rows = metrics.read(directory)
    logged = [
        row for path in sorted((directory / "rollouts").glob("*.jsonl")) for row in jsonl.read(path)
    ]
    values = plan.values(step_rows, logged)
    row = {
        "method": plan.method,
        "family": recipes.family(plan.method),
        "flags": [*SETTINGS, *plan.flags],
        "steps": len(step_rows),
        "figure": plan.figure,
        "values": [round(value, 6) for value in values],
        "holds": bool(values) and plan.holds(values),
        "reward": [round(row["reward/mean"], 6) for row in step_rows],
        "entropy": [round(row["entropy"], 6) for row in step_rows],
        "grad_norm": [round(row["grad_norm"], 6) for row in step_rows],
        "seconds": statistics.median(row["time/step"] for row in step_rows),
    }
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)  # two gigabytes
    return row


def add_lengths(data: Path, target: Path) -> Path:
    """A copy of the rows with short solutions, with a column `length`: thirds of the questions."""
    if target.exists():
        return target
    rows = [json.loads(line) for line in data.read_text().splitlines() if line.strip()]
    rows = [row for row in rows if len(row["answer"]) <= LONGEST]
    sizes = sorted(len(row["question"]) for row in rows)
    low, high = (sizes[len(sizes) * part // 3] for part in (1, 2))
    for row in rows:
        size = len(row["question"])
        row["length"] = "short" if size < low else "long" if size > high else "middle"
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return target


def render(lines: Rows) -> str:
    """The page, of the methods that are done and of those that are still to come."""
    by_method = {row["method"]: row for row in lines}
    out = [HEAD.format(steps=STEPS)]
    for plan in PLAN:
        row = by_method.get(plan.method)
        cells = [plan.method, plan.figure, plan.expected, *(_cells(row) if row else [""] * 5)]
        out.append(f"| {' | '.join(cells)} |\n")
    return "".join(out)


def _cells(row: Mapping[str, Any]) -> list[str]:
    values = row["values"] or [float("nan")]
    figures = (values[0], values[-1], statistics.fmean(values))
    holds = "yes" if row["holds"] else "no"
    return [*(f"{figure:.4g}" for figure in figures), holds, f"{row['seconds']:.0f}"]


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(jsonl.read(path)) if path.exists() else []
