"""The picture and the table of these runs: `python experiments/runs/keydoor/figures.py [RUN ...]`.

Copies metrics, summary and last held-out episodes of each RUN to this folder, named by its seed,
and reads them from here.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
KEPT = ("prompt", "answer", "completion", "reward", "turn_rewards")
MEASURED = ("step", "reward/mean", "entropy", "completion_length", "logp_gap_max", "time/step")


def copied(run: Path) -> None:
    """Keep what the figures are read from."""
    summary = json.loads((run / "summary.json").read_text())
    seed = json.loads((run / "config.json").read_text())["config"]["seed"]
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    curve = [{name: row[name] for name in MEASURED} for row in rows]
    kept = {"seconds": summary["seconds"], "eval": summary["eval"], "curve": curve}
    (HERE / f"seed{seed}.json").write_text(json.dumps(kept, indent=1) + "\n")
    last = run / "evals" / f"{summary['steps']:06d}.jsonl"
    episodes = map(json.loads, last.read_text().splitlines())
    lines = (json.dumps({name: row[name] for name in KEPT}) for row in episodes)
    (HERE / f"seed{seed}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Print a line for each seed, and draw the rewards of the steps."""
    for run in sys.argv[1:]:
        copied(Path(run))
    figure, axis = plt.subplots(figsize=(6, 3.2))
    for path in sorted(HERE.glob("seed*.json")):
        run = json.loads(path.read_text())
        curve, held = run["curve"], run["eval"]
        steps = [row["step"] for row in curve]
        line = axis.plot(steps, [row["reward/mean"] for row in curve], label=path.stem, lw=1)
        shares = [held[when]["pass@1"] for when in ("before", "after")]
        axis.plot([0, steps[-1]], shares, "o", color=line[0].get_color())
        gap = max(row["logp_gap_max"] for row in curve)
        print(f"{path.stem}: {shares[0]:.3f} to {shares[1]:.3f}, {run['seconds']:.0f} s")
        print(f"  reward {held['after']['reward']:.3f}, logp_gap_max {gap:.1e}")
    axis.set(xlabel="step", ylabel="mean reward (dots: door open, held out)", ylim=(-0.05, 1.05))
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parents[2] / "docs/images/keydoor.png", dpi=110)


if __name__ == "__main__":
    main()
