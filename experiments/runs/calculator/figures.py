"""The picture and the transcript of this run: `python experiments/runs/calculator/figures.py
[RUN]`.

Copies metrics, summary and held-out episodes of RUN to this folder, and reads them from here.
"""

import json
import shutil
import sys
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
KEPT = ("prompt", "answer", "completion", "reward", "turn_rewards", "tool_calls", "stopped")
SHOWN = 3


def copied(run: Path) -> None:
    """Keep what the figures are read from."""
    for name in ("summary.json", "metrics.jsonl"):
        shutil.copy(run / name, HERE / name)
    for path in run.glob("evals/*.jsonl"):
        rows = map(json.loads, path.read_text().splitlines())
        kept = (json.dumps({name: row[name] for name in KEPT}) for row in rows)
        (HERE / path.name).write_text("".join(f"{line}\n" for line in kept))


def main() -> None:
    """Print held-out episodes before and after, and draw the rewards of the steps."""
    if len(sys.argv) > 1:
        copied(Path(sys.argv[1]))
    found = json.loads((HERE / "summary.json").read_text())
    rows = [json.loads(line) for line in (HERE / "metrics.jsonl").read_text().splitlines()]
    held = {0: "before", found["steps"]: "after"}
    shares = [found["eval"][when]["pass@1"] for when in held.values()]
    figure, axis = plt.subplots(figsize=(6, 3.2))
    axis.plot([row["step"] for row in rows], [row["reward/mean"] for row in rows], label="sampled")
    axis.plot(list(held), shares, "o", label="held out, greedy")
    axis.plot([-1], [float(json.loads((HERE / "untrained.json").read_text())["pass@1"])], "x",
              label="held out, before the warm start")  # fmt: skip
    axis.set(xlabel="step of RL", ylabel="share right", ylim=(-0.05, 1.05))
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parents[2] / "docs/images/calculator.png", dpi=110)
    texts = {when: (HERE / f"{step:06d}.jsonl").read_text() for step, when in held.items()}
    episodes = {when: list(map(json.loads, text.splitlines())) for when, text in texts.items()}
    wrong = [n for n, row in enumerate(episodes["before"]) if row["reward"] < 1]
    for n in wrong[:SHOWN]:
        for when, each in episodes.items():
            print(f"\n{when}: {each[n]['prompt']} ({each[n]['answer']})\n\n{each[n]['completion']}")


if __name__ == "__main__":
    main()
