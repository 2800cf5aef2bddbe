"""The table and the picture of the course: `python experiments/runs/smollm2-course/figures.py RUN`.

Copies the summary and the metrics of every stage of RUN to this folder, and reads them from here.
"""

import json
import shutil
import sys
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
SHOWN = {"sft": ("loss",), "dpo": ("loss", "accuracy"), "grpo": ("pass@1",)}
"""Held-out figures of each stage."""
CURVES = {
    "sft": ("loss", "training loss, nats a token"),
    "dpo": ("accuracy", "pairs ranked right in a step"),
    "grpo": ("reward/mean", "mean reward of a step"),
}


def copied(run: Path) -> None:
    """Keep what the figures are read from."""
    folders = [*sorted(run.glob("stages/*"), key=lambda path: int(path.name)), run]
    for number, folder in enumerate(folders):
        for name in ("summary.json", "metrics.jsonl"):
            (HERE / str(number)).mkdir(exist_ok=True)
            shutil.copy(folder / name, HERE / str(number) / name)


def main() -> None:
    """Print the table and draw the curves."""
    if len(sys.argv) > 1:
        copied(Path(sys.argv[1]))
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(10, 3.2))
    print("| stage | steps | minutes | held out | before | after |\n|---|---|---|---|---|---|")
    for number, axis in enumerate(axes):
        folder = HERE / str(number)
        found = json.loads((folder / "summary.json").read_text())
        stages = found.get("course", [])  # whose time is the last stage's too
        recipe = found["recipe"]
        minutes = (found["seconds"] - sum(stage["seconds"] for stage in stages)) / 60
        for name in SHOWN[recipe]:
            before, after = (found["eval"][when][name] for when in ("before", "after"))
            told = f"| {recipe} | {found['steps']} | {minutes:.1f} "
            print(f"{told}| {name} | {before:.3f} | {after:.3f} |")
        name, label = CURVES[recipe]
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        axis.plot([row["step"] for row in rows], [row[name] for row in rows], color="tab:blue")
        axis.set(title=recipe, xlabel="step", ylabel=label)
    figure.tight_layout()
    figure.savefig(HERE.parents[2] / "docs/images/smollm2-course.png", dpi=110)


if __name__ == "__main__":
    main()
