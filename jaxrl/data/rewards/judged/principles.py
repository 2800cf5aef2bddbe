"""Weights of principles that a judge goes by, corrected where it has ranked two answers wrongly."""

from __future__ import annotations

import numpy as np


def reflected(
    better: np.ndarray, worse: np.ndarray, weights: np.ndarray, *, rounds: int = 20, rate: float = 1
) -> np.ndarray:
    """Weights after some rounds of reflection on the pairs that they rank wrongly.

    A round moves the weights by the mean difference of the marks of these pairs. The mean over all
    rounds is returned: where labels are noisy, single rounds swing. Without a wrong pair, weights
    stay as they are.

    Formula: `w <- w + rate mean_(i: w (b_i - c_i) <= 0) (b_i - c_i)`
    Paper: Wei et al. 2025, "Igniting Creative Writing in Small Language Models: LLM-as-a-Judge
      versus Multi-Agent Refined Rewards" (principles that are rewritten on wrong judgements; the
      rule is ours, that of the averaged perceptron of Freund & Schapire 1999)

    Args:
      better: [N, K] marks of the answers that are better in truth, by principle.
      worse: [N, K] marks of the others.
      weights: [K] to begin with.
      rounds: how often the pairs are ranked.
      rate: size of a correction.

    Returns:
      [K] float64.
    """
    gap = np.asarray(better, np.float64) - np.asarray(worse, np.float64)
    current_weights, total = np.array(weights, np.float64), np.zeros(gap.shape[1])
    for _ in range(rounds):
        missed = gap[gap @ current_weights <= 0]
        if len(missed):
            current_weights = current_weights + rate * missed.mean(axis=0)
        total += current_weights
    return total / rounds
