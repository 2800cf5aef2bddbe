"""How far raters agree beyond chance: judges with each other, or with people.

A rating is a number; nan where a rater gave none.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Level = Literal["nominal", "ordinal", "interval"]
"""What differences of ratings mean: only whether they are equal, their order, or their size."""


def cohen_kappa(first: np.ndarray, second: np.ndarray, level: Level = "nominal") -> float:
    """Cohen's kappa of two raters: 1 is agreement, 0 what chance gives.

    `nominal` counts disagreements; `ordinal` weighs them by the distance of their ranks among all
    values, and `interval` by the square of their difference (quadratic weights).

    Args:
      first, second: [N] ratings; items that one of them left out do not count.
      level: how disagreements are weighed.

    Returns:
      kappa; nan where neither rater ever varies, or nothing is rated by both.

    Paper: Cohen 1960, "A Coefficient of Agreement for Nominal Scales"; Cohen 1968 (weighted kappa)
    """
    both = ~(np.isnan(first) | np.isnan(second))
    if not both.any():
        return float("nan")
    values, at = np.unique(np.concatenate([first[both], second[both]]), return_inverse=True)
    rows, columns = at.reshape(2, -1)
    table = np.zeros((len(values), len(values)))
    np.add.at(table, (rows, columns), 1.0)
    table /= table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0))
    ranks = np.arange(len(values), dtype=float)
    cost = {
        "nominal": 1 - np.eye(len(values)),
        "ordinal": np.abs(ranks[:, None] - ranks),
        "interval": (values[:, None] - values) ** 2,
    }[level]
    by_chance = float((cost * expected).sum())
    return 1 - float((cost * table).sum()) / by_chance if by_chance else float("nan")


def krippendorff_alpha(ratings: np.ndarray, level: Level = "nominal") -> float:
    """Krippendorff's alpha of any number of raters, who may leave items out.

    Args:
      ratings: [raters, N]; nan where there is none.
      level: the metric of differences.

    Returns:
      alpha: 1 is agreement, 0 what chance gives; nan where all ratings are equal, or no item has
      two.

    Paper: Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability"
    """
    paired = (~np.isnan(ratings)).sum(axis=0) > 1
    if not paired.any():
        return float("nan")
    units = ratings[:, paired]
    values = np.unique(units[~np.isnan(units)])
    counts = (units[:, :, None] == values).sum(axis=0).astype(float)  # [N, values]
    unit_counts = counts.sum(axis=1)
    pairs = counts[:, :, None] * counts[:, None, :]
    pairs[:, np.arange(len(values)), np.arange(len(values))] -= counts
    observed = (pairs / (unit_counts - 1)[:, None, None]).sum(axis=0)  # coincidences
    totals = observed.sum(axis=0)
    expected = np.outer(totals, totals) - np.diag(totals)
    cost = _difference(values, totals, level)
    by_chance = float((cost * expected).sum())
    if not by_chance:
        return float("nan")
    return 1 - (totals.sum() - 1) * float((cost * observed).sum()) / by_chance


def _difference(values: np.ndarray, totals: np.ndarray, level: Level) -> np.ndarray:
    """[values, values] squared differences."""
    if level == "nominal":
        return 1 - np.eye(len(values))
    if level == "interval":
        return (values[:, None] - values) ** 2
    middle = np.cumsum(totals) - totals / 2  # ranks, with ties
    return (middle[:, None] - middle) ** 2
