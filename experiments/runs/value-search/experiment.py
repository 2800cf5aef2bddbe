"""Candidates for each turn, of which values keep the best; see PLAN.md.

python experiments/runs/value-search/experiment.py WORK --seeds 0 1 2 3 4
python experiments/runs/value-search/experiment.py WORK --report
"""

import argparse
import json
from pathlib import Path

import numpy as np

from experiments.lab import statistics
from jaxrl.launch.inspect import evaluate
from jaxrl.launch.settings import configs
from jaxrl.run import loop

RESULTS = Path(__file__).with_name("results.json")
WIDTHS = (1, 2, 4, 8)
QUIET = ("--checkpoint.every", "100000", "--rollout-log.every", "0")
VALUES = (
    "--with", "ilql", "--ilql.targets", "returns", "--ilql.beta", "0", "--ilql.discount", "1",
    "--ilql.rate", "0.05", "--ilql.optimizer.learning-rate", "2e-3",
    "--optimizer.learning-rate", "1e-30", "--updates-per-batch", "4",
)  # fmt: skip


def train(work: Path, seed: int) -> Path:
    """The run whose policy is searched by its values."""
    first, second = work / f"policy-{seed}", work / f"values-{seed}"
    for directory, more in ((first, ()), (second, ("--model", str(first), *VALUES))):
        argv = ["retrieval", *more, *QUIET, "--seed", str(seed), "--run-dir", str(directory)]
        loop.train(configs.resolve(argv)[0])
    return second


def measure(run: Path) -> dict[str, dict[str, float]]:
    """The figures of each width."""
    settings = {"k": 8, "temperature": 1.0, "score_workers": 0}
    return {
        str(width): evaluate.measure(str(run), evaluate.EvaluateConfig(search=width, **settings))
        for width in WIDTHS
    }


def report(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The table of the README."""
    rows = ["| candidates | pass@1 | less one candidate | maj@8 | less one candidate |"]
    rows.append("|---|---|---|---|---|")
    for width in map(str, WIDTHS):
        cells = [width]
        for figure in ("pass@1", "maj@8"):
            found, one = (
                np.array([each[n][figure] for each in results.values()]) for n in (width, "1")
            )
            cells.append(f"{found.mean():.3f} ({found.min():.2f} to {found.max():.2f})")
            cells.append("" if width == "1" else statistics.interval(found - one))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=())
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    for seed in given.seeds:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        if str(seed) not in results:
            found = measure(train(given.work, seed))
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results[str(seed)] = found  # another process may have added to it
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1))
            print(seed, {n: each["pass@1"] for n, each in found.items()}, flush=True)
    if given.report:
        print(report(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
