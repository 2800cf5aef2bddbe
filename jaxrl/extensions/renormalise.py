"""Rewards less their running mean, divided by their running standard deviation.

Marks of a judge between 0.80 and 0.85 have little influence beside a reward of 0 or 1. They
become `(mark - mean) / deviation`, with the running mean and deviation of earlier steps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrl.config import Config
from jaxrl.data.types import Score
from jaxrl.rollout.experience import Experience
from jaxrl.run.extension import Context, Extension
from jaxrl.types import TrainState


@dataclasses.dataclass(frozen=True)
class RenormaliseConfig:
    """Rewards, or one part of them, in units of their running deviation."""

    part: str = ""
    """Part of the reward, whose renormalised value is added to it; give it the weight 0 in
    --reward, so that it counts once. Empty: the whole reward is replaced."""
    weight: float = 1.0
    """Of the renormalised value."""
    decay: float = 0.95
    """Share of the history that is left after a step."""
    clip: float = 3.0
    """Largest renormalised value, and smallest with its sign changed."""


@dataclasses.dataclass(frozen=True)
class History:
    """Running moments of scores, each step's batch with the same weight but for the decay."""

    weight: float = 0.0
    first: float = 0.0
    """Weighted sum of means."""
    second: float = 0.0
    """Weighted sum of means of squares."""

    def after(self, values: np.ndarray, decay: float) -> History:
        """The history with one more batch of [N] values, N at least 1."""
        return History(
            decay * self.weight + 1,
            decay * self.first + float(np.mean(values)),
            decay * self.second + float(np.mean(values**2)),
        )

    def normal(self, values: np.ndarray, clip: float) -> np.ndarray:
        """[N] values in units of the history's deviation, at most `clip` from 0."""
        mean = self.first / self.weight
        deviation = max(self.second / self.weight - mean**2, 0.0) ** 0.5
        return np.clip((values - mean) / (deviation + 1e-6), -clip, clip)


def renormalise(settings: RenormaliseConfig) -> Extension:
    """Scores are renormalised by the history that includes their own batch; it is checkpointed.

    The part `renormalised` is the value without its weight.
    """
    history = History()

    def check(config: Config) -> None:
        if not 0 <= settings.decay < 1 or settings.clip <= 0:
            raise ValueError(
                f"renormalise.decay={settings.decay} with renormalise.clip={settings.clip}: use a "
                "decay from 0 to below 1, and a clip above 0"
            )

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        nonlocal history
        scores = experience.scores
        good = [n for n, score in enumerate(scores) if score.error is None]
        if not good:
            return experience
        values = np.array([_value(scores[n], settings.part) for n in good], np.float64)
        history = history.after(values, settings.decay)
        normal_values = dict(zip(good, history.normal(values, settings.clip), strict=True))
        return experience._replace(
            scores=[
                _renormalised(settings, score, normal_values[n]) if n in normal_values else score
                for n, score in enumerate(scores)
            ]
        )

    def get_state() -> dict[str, Any]:
        return dataclasses.asdict(history)

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal history
        history = History(**saved)

    return Extension(check=check, reward=reward, get_state=get_state, set_state=set_state)


def _value(score: Score, part: str) -> float:
    if part and part not in score.parts:
        raise ValueError(
            f"renormalise.part={part!r}: the reward has the parts {', '.join(score.parts) or None}"
        )
    return score.parts[part] if part else score.value


def _renormalised(settings: RenormaliseConfig, score: Score, value: float) -> Score:
    base = score.value if settings.part else 0.0
    parts = {**score.parts, "renormalised": float(value)}
    if not settings.part:
        parts["raw"] = score.value
    return Score(base + settings.weight * float(value), parts)
