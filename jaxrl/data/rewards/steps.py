"""Steps of a solution: labels from a reference in one pass, and one score of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

AGGREGATES: Mapping[str, Callable[[Any], Any]] = {
    "last": lambda chances: chances[..., -1],
    "min": lambda chances: chances.min(axis=-1),
    "product": lambda chances: chances.prod(axis=-1),
    "mean": lambda chances: chances.mean(axis=-1),
}
"""How the probabilities [..., K] of K steps become one score [...]: `last` is that of the whole
solution (Rizvi et al. 2025), `min` of its weakest step, `product` of all (Lightman et al. 2023)."""


def aligned(steps: Sequence[str], reference: Sequence[str]) -> tuple[bool, ...]:
    """Whether each step of a solution agrees with a reference solution, in one pass over both.

    A step is compared by its result, what follows its last `=`. It is right if a reference step has
    the same result, not before the one that the last right step was aligned to: a step may do what
    several of the reference do, or a part of one again. The last step is right if its result is the
    reference's answer.

    Paper: Rizvi et al. 2025, "SPARE: Single-Pass Annotation with Reference-Guided Evaluation for
    Automatic Process Supervision and Reward Modelling" (there a language model aligns the steps)

    Args:
      steps: of the solution, in order.
      reference: steps of the reference, the last of which is the answer.

    Returns:
      A label for each step.

    Raises:
      ValueError: a reference without steps.
    """
    if not reference:
        raise ValueError("the reference has no steps to compare with")
    reference_results, at, labels = [_result(step) for step in reference], 0, []
    for step in steps:
        match_index = next(
            (n for n in range(at, len(reference_results)) if reference_results[n] == _result(step)),
            None,
        )
        at = at if match_index is None else match_index
        labels.append(match_index is not None)
    if labels:
        labels[-1] = _result(steps[-1]) == reference_results[-1]
    return tuple(labels)


def _result(step: str) -> str:
    return "".join(step.rpartition("=")[2].split()).rstrip(".")
