"""The picture and the table of these runs: `python experiments/runs/keydoor/figures.py [RUN ...]`.

Copies metrics, summary and last held-out episodes of each RUN to `runs.jsonl`, a line a seed, and
reads them from there.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
RUNS = HERE / "runs.jsonl"
KEPT = ("prompt", "answer", "completion", "reward", "turn_rewards")
MEASURED = ("step", "reward/mean", "entropy", "completion_length", "logp_gap_max", "time/step")


def copied(run: Path) -> dict:
    """What the figures are read from, with the seed."""
    summary = json.loads((run / "summary.json").read_text())
    seed = json.loads((run / "config.json").read_text())["config"]["seed"]
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    curve = [{name: row[name] for name in MEASURED} for row in rows]
    last = run / "evals" / f"{summary['steps']:06d}.jsonl"
    episodes = map(json.loads, last.read_text().splitlines())
    kept = [{name: row[name] for name in KEPT} for row in episodes]
    figures = {"seconds": summary["seconds"], "eval": summary["eval"]}
    return {"seed": seed} | figures | {"curve": curve, "episodes": kept}


def main() -> None:
    """Print a line for each seed, and draw the rewards of the steps."""
    if directories := sys.argv[1:]:
        runs = sorted((copied(Path(run)) for run in directories), key=lambda run: run["seed"])
        RUNS.write_text("".join(f"{json.dumps(run)}\n" for run in runs))
    figure, axis = plt.subplots(figsize=(6, 3.2))
    for run in map(json.loads, RUNS.read_text().splitlines()):
        name, curve, held = f"seed{run['seed']}", run["curve"], run["eval"]
        steps = [row["step"] for row in curve]
        line = axis.plot(steps, [row["reward/mean"] for row in curve], label=name, lw=1)
        shares = [held[when]["pass@1"] for when in ("before", "after")]
        axis.plot([0, steps[-1]], shares, "o", color=line[0].get_color())
        gap = max(row["logp_gap_max"] for row in curve)
        print(f"{name}: {shares[0]:.3f} to {shares[1]:.3f}, {run['seconds']:.0f} s")
        print(f"  reward {held['after']['reward']:.3f}, logp_gap_max {gap:.1e}")
    axis.set(xlabel="step", ylabel="mean reward (dots: door open, held out)", ylim=(-0.05, 1.05))
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parents[2] / "docs/images/keydoor.png", dpi=110)


if __name__ == "__main__":
    main()
