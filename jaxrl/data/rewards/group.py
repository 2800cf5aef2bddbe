"""Rewards over many completions: the policy's own probabilities, and scores of a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl.data.types import Score


def reference_probability(logp: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Verifier-free reward of RLPR (Yu et al. 2025): mean probability of the reference's tokens.

    A mean over tokens, not a product: long references are not punished, and one improbable
    synonym does not end it.

    Args:
      logp: [N, T] log-probability of each reference token, put after the policy's own reasoning.
      mask: [N, T] bool, which tokens are the reference's.

    Returns:
      [N] in [0, 1]; nan, a failure, where the mask is empty.
    """
    count = mask.sum(axis=-1)
    total = np.exp(np.where(mask, logp, 0.0), where=mask, out=np.zeros(logp.shape)).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def either_order(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Probability that an answer is better than another, from questions in both orders.

    What a judge adds to the answer that it reads first drops out of a difference of equal answers.

    Formula: `(p(A | y, y') + p(B | y', y)) / 2`, with `p(B | y', y) = 1 - p(A | y', y)`

    Args:
      first: [N], probability of A where the answer comes first.
      second: [N], probability of A where the other one does.

    Returns:
      [N] in [0, 1]; with the answers exchanged, 1 less this.
    """
    return (first + 1 - second) / 2


def debiased_probability(with_reasoning: np.ndarray, without: np.ndarray) -> np.ndarray:
    """RLPR's debiasing: `clip(p - p_0, 0, 1)`, p_0 the mean probability without any reasoning.

    Args:
      with_reasoning: [N], from `reference_probability`.
      without: [N], the same with the reference right after the prompt.
    """
    return np.clip(with_reasoning - without, 0.0, 1.0)


def together(scores: Sequence[Score]) -> Score:
    """The scores of one problem's completions as one, which `apart` divides again.

    A task whose reward is `grouped` returns it. Its value is the mean; its parts are the values by
    position, as in `0`, and their parts, as in `0/format`. A score that failed has none.
    """
    good = [score for score in scores if score.error is None]
    if not good:
        return Score(None, error=scores[0].error)
    parts: dict[str, float] = {}
    for place, score in enumerate(scores):
        if score.error is None:
            parts[str(place)] = score.value
            parts |= {f"{place}/{name}": value for name, value in score.parts.items()}
    return Score(sum(score.value for score in good) / len(good), parts)


def apart(score: Score, count: int) -> list[Score]:
    """The scores of `count` completions from what `together` made of them.

    Where the whole failed or ran out of time, so did each.
    """
    if score.error is not None or score.timed_out:
        return [score] * count
    scores: list[Score] = []
    for place in range(count):
        mine = f"{place}/"
        parts = {k.removeprefix(mine): v for k, v in score.parts.items() if k.startswith(mine)}
        value = score.parts.get(str(place))
        failed = None if value is not None else "exception: one of its rewards failed"
        scores.append(Score(value, {} if value is None else parts, failed))
    return scores
