"""ReflexiCoder's reward of a chain of attempts, by how good each attempt is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_SAME = 1e-4  # attempts that differ by less are equally good


def chain(
    scores: Sequence[float], *, form: float = 1.0, quality: float = 0.5, efficiency: float = 1.0
) -> float:
    """The reward of a well-formed chain: an attempt, and one more after each reflection.

    Formula: `form + P(n) (quality Q + efficiency E)` for n reflections
    Paper: Jiang et al. 2026, "ReflexiCoder: Teaching Large Language Models to Self-Reflect on
      Generated Code and Self-Correct It via Reinforcement Learning" (weights of the authors' code)

    Args:
      scores: of the attempts in order, from 0 to 1; two or more.
      form, quality, efficiency: weights.

    Raises:
      ValueError: fewer than two attempts.
    """
    if len(scores) < 2:
        raise ValueError(f"scores={list(scores)}: a chain has two attempts or more")
    rounds = len(scores) - 1
    return form + regulation(rounds) * (quality * improvement(scores) + efficiency * thrift(scores))


def regulation(rounds: int) -> float:
    """P: 1 up to five reflections, then falling.

    Formula: `exp(-0.05 m) (1 - 0.1 sin(pi m / 2)) / (1 + 0.1 m^2)`, `m = n - 3`
    """
    if rounds <= 5:
        return 1.0
    extra_rounds = rounds - 3
    wave = 1 - 0.1 * math.sin(math.pi / 2 * extra_rounds)
    return math.exp(-0.05 * extra_rounds) * wave / (1 + 0.1 * extra_rounds**2)


def improvement(scores: Sequence[float]) -> float:
    """Q: the last attempt's score, and what each attempt improved, later ones more.

    Formula: `s_n + 0.5 sum_t w_t m_t`, `w_t ~ exp(0.2 t)` with a sum of 1; `m_t` is
      `tanh(10 (s_t - s_(t-1)))` where these differ, 0.05 where both are 1, else -1
    """
    weights = [math.exp(0.2 * t) for t in range(1, len(scores))]
    gains = [_gain(before, after) for before, after in itertools.pairwise(scores)]
    steps = sum(w * g for w, g in zip(weights, gains, strict=True))
    return scores[-1] + 0.5 * steps / sum(weights)


def thrift(scores: Sequence[float]) -> float:
    """E: the last attempt's score by reflection, and the whole improvement by reflection.

    Formula: `s_n / n + (s_n - s_0) / max(1, n - 1)`
    """
    rounds = len(scores) - 1
    return scores[-1] / rounds + (scores[-1] - scores[0]) / max(1, rounds - 1)


def _gain(before: float, after: float) -> float:
    if abs(after - before) > _SAME:
        return math.tanh((after - before) / 0.1)
    return 0.05 if abs(before - 1) <= _SAME else -1.0
