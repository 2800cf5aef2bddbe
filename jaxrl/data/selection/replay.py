"""What a replay buffer keeps of a step, and which of it comes back.

A rule for keeping is `(rewards, lengths, versions) -> bool [P, G]`, of the completions worth
keeping, or of fewer of these arguments; a rule for choosing is `(ages, rewards, count, rng) -> int
[<= count]`, of the groups to take. nan is a failed score; an age counts optimizer updates, and a
version those before a completion was started.
"""

from __future__ import annotations

import numpy as np


def everything(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """All completions."""
    return np.ones(rewards.shape, bool)


def informative(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """All completions of groups whose rewards differ."""
    spread = np.nanmax(rewards, axis=1) > np.nanmin(rewards, axis=1)
    return np.broadcast_to(spread[:, None], rewards.shape)


def passed(
    rewards: np.ndarray, lengths: np.ndarray, *, threshold: float = 0.5, share: float = 0.0
) -> np.ndarray:
    """Completions that pass, of groups of which at least `share` do."""
    good = np.nan_to_num(rewards, nan=-np.inf) >= threshold
    return good & (good.mean(axis=1, keepdims=True) >= share)


def uniform(
    ages: np.ndarray, rewards: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Groups at random, each at most once."""
    return rng.permutation(len(ages))[:count]


def newest(
    ages: np.ndarray, rewards: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """The groups of least age."""
    return np.argsort(ages, kind="stable")[:count]
