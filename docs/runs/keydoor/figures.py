"""The picture and the table of these runs: `python docs/runs/keydoor/figures.py [RUN ...]`.

Copies metrics, summary and some held-out episodes of each RUN to this folder, and reads them from
here.
"""

import json
import shutil
import sys
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
KEPT = ("prompt", "completion", "reward", "turn_rewards", "parts")


def copied(run: Path) -> None:
    """Keep what the figures are read from."""
    found = json.loads((run / "summary.json").read_text())
    folder = HERE / str(found["seed"])
    folder.mkdir(exist_ok=True)
    for name in ("summary.json", "metrics.jsonl"):
        shutil.copy(run / name, folder / name)
    for path in run.glob("evals/*.jsonl"):
        rows = map(json.loads, path.read_text().splitlines())
        kept = (json.dumps({name: row[name] for name in KEPT}) for row in rows)
        (folder / path.name).write_text("".join(f"{line}\n" for line in kept))


def main() -> None:
    """Print the table and draw the curves."""
    for run in sys.argv[1:]:
        copied(Path(run))
    figure, axis = plt.subplots(figsize=(6, 3.2))
    print("| seed | seconds | door, before | door, after | reward, before | reward, after |")
    print("|---" * 6 + "|")
    for path in sorted(HERE.glob("*/summary.json")):
        found = json.loads(path.read_text())
        lines = (path.parent / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        axis.plot([row["step"] for row in rows], [row["reward/mean"] for row in rows],
                  label=f"seed {found['seed']}")  # fmt: skip
        held = [found["eval"][when] for when in ("before", "after")]
        doors = [
            [json.loads(line)["parts"].get("door", 0.0) for line in text.splitlines()]
            for text in (
                (path.parent / f"{step:06d}.jsonl").read_text() for step in (0, found["steps"])
            )
        ]
        shown = [f"{sum(each) / len(each):.2f}" for each in doors]
        shown += [f"{each['reward']:.2f}" for each in held]
        print(f"| {found['seed']} | {found['seconds']:.0f} | {' | '.join(shown)} |")
    axis.set(xlabel="step", ylabel="mean reward of a step")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parents[1] / "images/keydoor.png", dpi=110)


if __name__ == "__main__":
    main()
