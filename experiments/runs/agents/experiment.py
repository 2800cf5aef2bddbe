"""Methods for agents against their ablations, see the PLAN.md of the folders that it writes to.

python experiments/runs/agents/experiment.py WORK NAME --seeds 0 1 2 3 4
python experiments/runs/agents/experiment.py WORK --report

The first command trains all arms of an experiment and adds to `results.json` of its folder, and
before that, where arms are tuned, to `tuning.json`. The second writes `tables.md` of the folder of
the agents, and prints the tables of the other experiments that have results.
"""

import argparse
import itertools
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import games
import numpy as np
from arms import DEVELOPMENT, EXPERIMENTS, RATES

from experiments.lab import statistics
from jaxrl.config import replaced
from jaxrl.data.offline.statistics import centred_score
from jaxrl.launch.inspect import evaluate
from jaxrl.launch.settings import configs
from jaxrl.record import jsonl, metrics
from jaxrl.run import loop

RUNS = Path(__file__).parents[1]
MINIMUM = 0.05
"""Effect of interest: arms are equivalent if they differ by less."""
TABLES = """\
# Methods for agents: every figure

Written by `python experiments/runs/agents/experiment.py WORK --report`; do not edit. [The
README](README.md) says what was found. Figures are of the greedy policy on held-out problems.
Brackets have the 95% t interval of the difference paired by seed, and parentheses the lowest and
the highest seed. `tokens` are those of the rows trained on; the turns that branches share count
for each of them."""
COMPARED = """\
## All comparisons

Those of the deciding figures, method less arm, with p values of paired t tests. The corrected
ones are Holm's over all rows; `above`, `below` and `equivalent` (within 0.05) are said by them
alone."""
AGAIN = """\
## Again, on fresh seeds

Seeds 5 to 16, each arm with the best of three learning rates, chosen on seeds 100 and 101
(`tuning.json`)."""


def measure(work: Path, name: str, arm: str, seed: int, rate: float = 1.0) -> dict[str, Any]:
    """Train an arm, and give its figures.

    Args:
      work: where its run is written.
      name: of the experiment.
      arm: one of its arms.
      seed: of the run.
      rate: factor of the arm's learning rate.
    """
    argv = EXPERIMENTS[name].arms[arm]
    if argv == games.ARM:
        first, given = next(iter(EXPERIMENTS[name].arms.items()))
        run = directory(work, name, first, seed)
        given = [*given, "--seed", str(seed), "--run-dir", str(run)]
        config = configs.resolve(given)[0]
        if not (run / "metrics.jsonl").exists():  # of an earlier time: the run is made again
            loop.train(config)
        return games.measure(run, config, seed)
    run = directory(work, name, f"{arm} {rate}" if EXPERIMENTS[name].tuned else arm, seed)
    config, _ = configs.resolve([*argv, "--seed", str(seed), "--run-dir", str(run)])
    learning_rate = config.optimizer.learning_rate * rate
    config = replaced(config, "optimizer.learning_rate", learning_rate)
    before = time.process_time()
    summary = loop.train(config)
    seconds = time.process_time() - before
    rows = metrics.read(run)
    found = {"seed": seed, "eval": summary["eval"], "cpu_seconds": round(seconds)}
    for when, step in (("before", 0), ("after", config.steps)):
        held_out = run / "evals" / f"{step:06d}.jsonl"
        found["eval"][when] |= parts(held_out)
        for figure in set(EXPERIMENTS[name].figures) & READ.keys():
            found["eval"][when][figure] = READ[figure](held_out)
    if config.rollout.oversampling > 1:
        found["eval"]["after"] |= spent(run, rows, config.rollout.prompts)
    for also, changed in EXPERIMENTS[name].also.items():
        samples = EXPERIMENTS[name].samples
        settings = evaluate.EvaluateConfig(task_args=changed, k=samples, score_workers=0)
        figures = evaluate.measure(str(run), settings)
        found["eval"]["after"] |= {f"{also}/{figure}": value for figure, value in figures.items()}
    found["tokens"] = summary["tokens"]
    found["logp_gap_max"] = max(row["logp_gap_max"] for row in rows)
    found["curve"] = [round(row["reward/mean"], 4) for row in rows]
    return found | ({"rate": rate} if EXPERIMENTS[name].tuned else {})


def deciding(name: str, row: dict[str, Any]) -> float:
    """The figure of a run that decides, more being better."""
    return float(ended(row)[EXPERIMENTS[name].figures[0]])


def ended(row: dict[str, Any]) -> dict[str, float]:
    """The figures of a run, and its `area`: the mean of the sampled reward over it."""
    return row["eval"]["after"] | {"area": float(np.mean(row["curve"]))}


def tuned(work: Path, name: str, arm: str) -> float:
    """The factor of an arm's learning rate with the best mean of the figure that decides.

    What is tried is kept in `tuning.json`, and looked up there first.
    """
    path = RUNS / EXPERIMENTS[name].folder / "tuning.json"
    scores = dict[float, float]()
    for rate in RATES:
        done = written(path).get(name, {}).get(arm, {}).get(str(rate), [])
        for seed in DEVELOPMENT[len(done) :]:
            done.append(round(deciding(name, measure(work, name, arm, seed, rate)), 5))
            print(name, arm, "rate", rate, "seed", seed, done[-1], flush=True)
            found = written(path)
            found.setdefault(name, {}).setdefault(arm, {})[str(rate)] = done
            path.write_text(json.dumps(found, indent=1))
        scores[rate] = float(np.mean(done))
    return max(scores, key=lambda rate: scores[rate])


def directory(work: Path, name: str, arm: str, seed: int) -> Path:
    """Of the run of an arm."""
    return work / "".join(c if c.isalnum() else "-" for c in f"{name}-{arm}-{seed}")


def recorded(name: str) -> dict[str, list[dict[str, Any]]]:
    """The figures of each arm, for the seeds that all arms have; empty if there are none.

    Experiments of `games.LEAST` get the figure `score`, of the reward; the first arm's sampled
    rewards are those of the log.
    """
    found = written(RUNS / EXPERIMENTS[name].folder / "results.json").get(name, {})
    rows = {arm: {row["seed"]: row for row in found.get(arm, [])} for arm in EXPERIMENTS[name].arms}
    for row in (row for own in rows.values() for row in own.values()):
        row["eval"]["after"] = ended(row)
    seeds = sorted(set.intersection(*(set(own) for own in rows.values())))
    first, given = next(iter(EXPERIMENTS[name].arms.items()))
    bounds = games.bounds(name, given) if name in games.LEAST and seeds else None
    for own, seed in itertools.product(rows.values(), seeds if bounds else ()):
        log, after = np.mean(rows[first][seed]["curve"]), own[seed]["eval"]["after"]
        after["score"] = centred_score(after["reward"], bounds, float(log))
    return {arm: [own[seed] for seed in seeds] for arm, own in rows.items()} if seeds else {}


def complete(folder: str = "agents", *, tuned: bool = False) -> list[str]:
    """Experiments of a folder, tuned or not, that have all their seeds, by name."""
    return sorted(
        name
        for name, experiment in EXPERIMENTS.items()
        if (experiment.folder, experiment.tuned) == (folder, tuned)
        and all(len(rows) == len(experiment.seeds) for rows in recorded(name).values() or [()])
    )


def written(path: Path) -> dict[str, Any]:
    """Results of a file, by experiment and arm; empty if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def parts(path: Path) -> dict[str, float]:
    """Means of the parts of the held-out episodes' rewards."""
    rows = list(jsonl.read(path))
    names = {name for row in rows for name in row["parts"]}
    return {name: float(np.mean([row["parts"].get(name, 0.0) for row in rows])) for name in names}


def unchanged(path: Path) -> float:
    """The share of the held-out episodes' actions after which the policy read what it had read
    before, in a world that answers each with a line; the last has no answer and is left out."""
    same: list[bool] = []
    for row in jsonl.read(path):
        parts = itertools.groupby(zip(row["source"], row["tokens"], strict=True), lambda p: p[0])
        said = ["".join(text for _, text in part) for who, part in parts if who == "tool"]
        read = [row["prompt"], *(each.strip("\n") for each in said)]
        same += [before == after for before, after in itertools.pairwise(read)]
    return float(np.mean(same)) if same else 0.0


def distinct(path: Path) -> float:
    """Different thoughts of the held-out episodes, of all their thoughts."""
    found = [
        thought
        for row in jsonl.read(path)
        for thought in re.findall(r"<think>([^<]*)</think>", row["completion"])
    ]
    return len(set(found)) / len(found) if found else 0.0


READ = {"unchanged": unchanged, "distinct": distinct}
"""Figures that are read off the held-out episodes themselves."""


def spent(run: Path, rows: Sequence[dict[str, float]], prompts: int) -> dict[str, float]:
    """What dynamic sampling cost: `generated` tokens for each group whose rewards differ, and by
    step the `rounds` and the `groups` that were sampled."""
    generated = sum(chunk["tokens"] for chunk in jsonl.read(run / "chunks.jsonl"))
    taught = sum(prompts * (1 - row["reward/zero_variance_groups"]) for row in rows)
    groups = np.array([row["prompts_sampled"] for row in rows])
    rounds = [row.get("rounds", n / prompts) for row, n in zip(rows, groups, strict=True)]
    return {
        "generated": generated / taught,
        "rounds": float(np.mean(rounds)),
        "groups": float(np.mean(groups)),
    }


def table(name: str) -> str:
    """Each figure of all arms, and the method's difference to each other arm, paired by seed."""
    experiment = EXPERIMENTS[name]
    found = recorded(name)
    lines = ["| figure | arm | before | after | less the arm | tokens |", "|---" * 6 + "|"]
    method = next(iter(experiment.arms))
    for figure in experiment.figures:
        ends = {a: [row["eval"]["after"][figure] for row in found[a]] for a in experiment.arms}
        for arm in experiment.arms:
            held = [row["eval"]["before"] for row in found[arm]]
            begins = [each[figure] for each in held if figure in each]
            begun = f"{np.mean(begins):.3f}" if begins else ""
            difference = "" if arm == method else less(ends[method], ends[arm])
            tokens = np.mean([row["tokens"] for row in found[arm]])
            shown = f"{begun} | {np.mean(ends[arm]):.3f} ({spread(ends[arm])})"
            lines.append(f"| {figure} | {arm} | {shown} | {difference} | {tokens:,.0f} |")
    return "\n".join(lines)


def corrected(names: Sequence[str]) -> str:
    """Every comparison of the figures that decide, with p values of t tests corrected together."""
    found: list[tuple[str, str, str, statistics.Comparison]] = []
    for name in names:
        rows, figure = recorded(name), EXPERIMENTS[name].figures[0]
        method, *others = ([row["eval"]["after"][figure] for row in own] for own in rows.values())
        for arm, other in zip(list(rows)[1:], others, strict=True):
            differences = np.subtract(method, other)
            found.append((name, figure, arm, statistics.paired(differences, minimum=MINIMUM)))
    different = statistics.holm([each.p_t for *_, each in found])
    same = statistics.holm([each.p_equivalent for *_, each in found])
    lines = ["| method | figure | less the arm | difference | p | p, corrected | says |"]
    lines.append("|---" * 7 + "|")
    for (name, figure, arm, each), p, equivalent in zip(found, different, same, strict=True):
        says = "undecided"
        if p < statistics.LEVEL:
            says = "above" if each.effect > 0 else "below"
        elif equivalent < statistics.LEVEL:
            says = "equivalent"
        spans = f"{each.effect:+.3f} [{each.low:+.3f}, {each.high:+.3f}]"
        lines.append(f"| {name} | {figure} | {arm} | {spans} | {each.p_t:.4f} | {p:.4f} | {says} |")
    return "\n".join(lines)


def tables() -> str:
    """`tables.md`: every figure of the experiments of agents that are complete."""
    again = complete(tuned=True)
    parts = [TABLES]
    parts += [f"## {name}: {EXPERIMENTS[name].claim}\n\n{table(name)}" for name in complete()]
    parts += [f"{COMPARED}\n\n{corrected(complete())}", AGAIN]
    if len(again) == sum(experiment.tuned for experiment in EXPERIMENTS.values()):
        parts.append(f"The correction is over these rows alone.\n\n{corrected(again)}")
    parts += [f"### {name}\n\n{table(name)}" for name in again]
    return "\n\n".join(parts) + "\n"


def less(method: Sequence[float], other: Sequence[float]) -> str:
    """The mean difference by seed with its interval, which a single seed has not."""
    differences = np.subtract(method, other)
    return f"{differences[0]:+.3f}" if len(differences) == 1 else statistics.interval(differences)


def spread(values: Sequence[float]) -> str:
    """From the least to the largest."""
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    """Train arms that are not yet in the results, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("name", nargs="?", choices=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--arms", nargs="+", help="some of them; all when omitted")
    parser.add_argument("--dry", action="store_true", help="print figures, and record none")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        (RUNS / "agents/tables.md").write_text(tables())
        for name, experiment in EXPERIMENTS.items():
            if experiment.folder != "agents" and recorded(name):
                print(f"\n### {name}: {experiment.claim}\n\n{table(name)}")
        return
    experiment = EXPERIMENTS[given.name]
    if experiment.tuned and given.dry:
        parser.error(f"--dry records nothing, and the rates of {given.name} have to be kept")
    path = RUNS / experiment.folder / "results.json"
    rates = dict.fromkeys(experiment.arms, 1.0)
    if experiment.tuned:
        rates = {arm: tuned(given.work, given.name, arm) for arm in experiment.arms}
    for seed in given.seeds or experiment.seeds:
        for arm in given.arms or experiment.arms:
            done = written(path).get(given.name, {}).get(arm, [])
            if any(row["seed"] == seed for row in done) and not given.dry:
                continue
            row = measure(given.work, given.name, arm, seed, rates[arm])
            print(given.name, arm, seed, row["eval"]["after"], row["cpu_seconds"], "s", flush=True)
            print(" ", [round(float(x), 2) for x in row["curve"][:: len(row["curve"]) // 20 or 1]])
            if not given.dry:
                found = written(path)  # another process may have added to it
                found.setdefault(given.name, {}).setdefault(arm, []).append(row)
                path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
