"""The table and the picture of the runs: `python experiments/runs/over-optimisation/analyse.py
[FILE]`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

HERE = Path(__file__).parent
BLOCK, LAST = 5, 10


def interval(values: Sequence[float]) -> str:
    """The mean and its 95% t interval."""
    mean, error = np.mean(values), stats.sem(values)
    half = stats.t.ppf(0.975, len(values) - 1) * error
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def curves(found: list[dict], arm: str, name: str) -> np.ndarray:
    """[seeds, steps] of a metric."""
    return np.array([[row[name] for row in each["arms"][arm]] for each in found])


def peak(gold: np.ndarray) -> np.ndarray:
    """[seeds] the gold reward at the block where the mean of the other seeds is highest."""
    blocks = gold.reshape(len(gold), -1, BLOCK).mean(-1)
    others = (blocks.sum(0) - blocks) / (len(gold) - 1)
    return blocks[np.arange(len(gold)), others.argmax(1)]


def last(values: np.ndarray) -> np.ndarray:
    """[seeds] the mean of the last steps."""
    return values[:, -LAST:].mean(1)


def main(path: Path) -> None:
    """Print the answers; draw gold and proxy by step."""
    found = json.loads(path.read_text())
    print(f"{len(found)} seeds")
    if "many" in found[0]:
        shares = [each["many"]["accuracy"] / each["attainable"] for each in found]
        print("many, share of attainable:", interval(shares), [round(s, 3) for s in shares])
    few = [np.mean([m["accuracy"] for m in each["few"]]) / each["attainable"] for each in found]
    print("few, share of attainable:", interval(few))
    base = last(curves(found, "one", "gold"))
    figure, axes = plt.subplots(1, len(found[0]["arms"]), figsize=(10, 3.2), sharey=True)
    for axis, arm in zip(axes, found[0]["arms"], strict=True):
        gold, proxy = curves(found, arm, "gold"), curves(found, arm, "proxy")
        print(f"| {arm} | {interval(gold[:, :BLOCK].mean(1))} | {interval(peak(gold))} "
              f"| {interval(last(gold))} | {interval(peak(gold) - last(gold))} "
              f"| {interval(last(proxy))} | {np.mean(last(curves(found, arm, 'kl'))):.2f} "
              f"| {interval(last(gold) - base) if arm != 'one' else ''} |")  # fmt: skip
        rising = last(proxy) - proxy[:, : 2 * LAST].mean(1)
        print("   proxy, last 10 steps less the first 20:", interval(rising))
        steps = np.arange(1, gold.shape[1] + 1)
        for values, name, colour in ((proxy, "proxy", "tab:orange"), (gold, "gold", "tab:blue")):
            axis.plot(steps, values.T, color=colour, alpha=0.25, linewidth=0.8)
            axis.plot(steps, values.mean(0), color=colour, linewidth=2, label=name)
        axis.set(title=arm, xlabel="step")
    axes[0].set_ylabel("mean reward of a batch")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    name = "over-optimisation" if path.stem == "results" else f"over-optimisation-{path.stem}"
    figure.savefig(HERE.parents[2] / f"docs/images/{name}.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.json")
