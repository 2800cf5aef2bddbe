"""The picture of the comparisons that were made again."""

from pathlib import Path

import experiment
import matplotlib.pyplot as plt
import numpy as np

from experiments.lab import statistics

IMAGE = Path(__file__).parents[3] / "docs/images/agents.png"
TIMES = (("five seeds, not tuned", "tab:gray", 0.14), ("12 other seeds, tuned", "tab:blue", -0.14))


def differences(name: str, arm: str) -> np.ndarray:
    """Of the deciding figure, the method less the arm, one a seed [S]."""
    found, figure = experiment.recorded(name), experiment.EXPERIMENTS[name].figures[0]
    method, other = ([row["eval"]["after"][figure] for row in found[each]]
                     for each in (next(iter(found)), arm))  # fmt: skip
    return np.subtract(method, other)


def main() -> None:
    """Draw both differences of each comparison, with their 95% t intervals."""
    rows = [(name, arm) for name in experiment.complete(tuned=True)
            for arm in list(experiment.EXPERIMENTS[name].arms)[1:]]  # fmt: skip
    figure, axis = plt.subplots(figsize=(7, 0.5 * len(rows) + 1.2))
    for (label, color, shift), suffix in zip(TIMES, ("", "_again"), strict=True):
        for at, (name, arm) in enumerate(rows):
            first = name.removesuffix("_again") + suffix
            seen = statistics.paired(differences(first, arm), minimum=experiment.MINIMUM)
            spans = [[seen.effect - seen.low], [seen.high - seen.effect]]
            shown = label if at == 0 else None
            axis.errorbar(seen.effect, at - shift, xerr=spans, fmt="o", color=color, label=shown)
    axis.axvline(0, color="black", lw=0.8)
    labels = [f"{name.removesuffix('_again')} minus {arm}" for name, arm in rows]
    axis.set(yticks=range(len(rows)), yticklabels=labels, xlabel="difference")
    axis.invert_yaxis()
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main()
