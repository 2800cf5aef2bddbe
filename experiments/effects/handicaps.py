"""What a baseline lacks beside a method, for reasons other than what the method claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.lab import Effect, archive, families, plans

_THROWN_AWAY = "the method's guide throws attempts away, which its tokens leave out"
KNOWN = {
    "adcl_egsr": _THROWN_AWAY,
    "delethink_markovian_thinker": "training has answers of at most 10 tokens, and up to 21 are "
    "judged, which the method alone writes in chunks as long as those of training",
    "expo": _THROWN_AWAY,
    "ghpo": _THROWN_AWAY,
    "igpo": _THROWN_AWAY,
    "kl_rl_as_bayesian_inference": "it has no KL term, and the statistic is the distance to the "
    "optimum of an objective with one",
    "magic_token_co_training": "it imitates in half of its steps, and the method in all",
    "pope": _THROWN_AWAY,
}
"""Recipe -> the handicap of its baselines, where `of_baseline` cannot tell it from the arms."""


def of_baseline(
    name: str, effect: Effect, row: dict[str, Any], rows: Sequence[dict[str, Any]], results: Path
) -> list[str]:
    """The handicaps of a row's baseline, a phrase each.

    Args:
      name: the recipe.
      effect: the experiment on the row's task.
      row: as recorded, against the baseline.
      rows: as recorded, all of the method and the task.
      results: directory whose `arms` hold the figures.
    """
    rivals = families.baselines(row["family"], plans.regime(effect))
    baseline, found = rivals[row["other"]], [KNOWN[name]] if name in KNOWN else []
    if not baseline.learning_rate:
        found.append("it is not trained")
    own, ablation = effect.method.rewards, effect.ablation.rewards
    if effect.stands_for and own != ablation and {r.rewards for r in rivals.values()} == {ablation}:
        found.append("it is trained on the ablation's reward")
    if effect.method.before and not baseline.before:
        found.append("it reads no earlier run, whose tokens are not counted")
    figures = list(_figures(row, results))
    ablations = [
        other
        for other in rows
        if other["against"] == "ablation" and other["other"] not in effect.further
    ]
    if any(list(_figures(other, results)) == figures for other in ablations):
        found.append("it gives the ablation's figures on every seed")
    return found


def _figures(row: dict[str, Any], results: Path) -> Iterator[str]:
    """Digests of the figures of a row's other arm, or the arm's keys where they are not kept."""
    for key in row["arms"][1]:
        figures = archive.read(results, key)
        yield key if figures is None else figures["digest"]
