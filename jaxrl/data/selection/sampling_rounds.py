"""How many prompts each round of dynamic sampling asks.

A round is sampled as a whole. Rounds of a fixed size ask too few or too many, and what is left over
is thrown away. CodeV-R1 (Zhu et al. 2025, "adaptive DAPO") asks as many as are missing, divided by
the lowest share of informative prompts that was seen so far.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jaxrl.data.selection import curriculum
from jaxrl.data.selection.curriculum import Quota


class Acceptance(NamedTuple):
    """Shares of prompts that are informative, of the batches of a run so far."""

    lowest: float = 1.0
    """Of any batch so far; 1 before the first."""
    within: float = 1.0
    """Of any round of the current batch; 1 before its first."""
    kept: int = 0
    """Informative prompts of the current batch, surplus included."""
    sampled: int = 0
    """Prompts of the current batch."""


def size(state: Acceptance, quota: Quota) -> int:
    """Prompts of the next round: `ceil(missing / min(lowest, within))`, within the budget.

    0 if the batch is full or its budget is spent.
    """
    missing, left = int(quota.wanted - quota.kept), int(quota.budget - quota.sampled)
    rate = min(state.lowest, state.within)
    if not missing or not rate:
        return left if missing else 0
    return min(math.ceil(missing / rate - 1e-9), left)


def observe(state: Acceptance, rewards: np.ndarray, *, last: bool) -> Acceptance:
    """Enter a round.

    Args:
      state: before.
      rewards: [P, G] of the round's prompts, nan for a failed score.
      last: whether it ends the batch. A batch that its budget ended without an informative prompt
        counts as if it had one, so that the share stays above 0.
    """
    informative_count = int(curriculum.informative(rewards).sum())
    kept_count, sampled_count = state.kept + informative_count, state.sampled + len(rewards)
    if last:
        return Acceptance(lowest=min(state.lowest, max(kept_count, 1) / sampled_count))
    return state._replace(
        within=min(state.within, informative_count / len(rewards)),
        kept=kept_count,
        sampled=sampled_count,
    )
