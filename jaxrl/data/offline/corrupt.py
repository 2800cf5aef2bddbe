"""Corruptions of offline data, as in RIQL: a part of the steps, one element of each, at random.

Paper: Yang et al. 2023, "Towards Robust Offline Reinforcement Learning under Diverse Data
Corruption". Noise is relative to the standard deviation of each dimension, as there.
"""

from __future__ import annotations

import numpy as np

from jaxrl.data.offline.transitions import Transitions

ELEMENTS = ("observations", "actions", "rewards", "next_observations")


def corrupt(
    data: Transitions, element: str, *, rate: float = 0.3, scale: float = 1.0, seed: int = 0
) -> Transitions:
    """`data` with one element of some steps replaced or shifted.

    Formula: states `s + scale std(s) u`, `u ~ U[-1, 1]`; actions likewise, clipped to the box;
    rewards drawn from `U[-30 scale, 30 scale]`.

    Args:
      data: with continuous actions, where these are corrupted.
      element: of `ELEMENTS`.
      rate: part of the steps.
      scale: of the corruption.
      seed: of the choice and of the noise.

    Raises:
      ValueError: an unknown element, or a rate outside [0, 1].
    """
    if element not in ELEMENTS:
        raise ValueError(f"element={element!r}: choose one of {', '.join(ELEMENTS)}")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate={rate}: give a part of the steps in [0, 1]")
    rng = np.random.default_rng(seed)
    old = np.asarray(getattr(data, element))
    hit = rng.permutation(len(old))[: int(rate * len(old))]
    new = old.copy()
    if element == "rewards":
        new[hit] = rng.uniform(-30.0 * scale, 30.0 * scale, len(hit))
    else:
        noise = rng.uniform(-1.0, 1.0, (len(hit), *old.shape[1:]))
        new[hit] = old[hit] + scale * old.std(axis=0) * noise
    if element == "actions":
        new = np.clip(new, -1.0, 1.0)
    return data._replace(**{element: new})


def attack(
    data: Transitions,
    element: str,
    gradient: np.ndarray,
    *,
    rate: float = 0.3,
    scale: float = 1.0,
    seed: int = 0,
) -> Transitions:
    """Adversarial corruption: a step of size `scale std` down the gradient of a pretrained Q.

    One signed step stands for the paper's projected descent. Adversarial rewards are `-scale r`.

    Args:
      data: clean.
      element: of `ELEMENTS`.
      gradient: of the value by the element, its shape; not read for rewards.
      rate: part of the steps.
      scale: of the corruption.
      seed: of the choice.

    Raises:
      ValueError: an unknown element.
    """
    if element not in ELEMENTS:
        raise ValueError(f"element={element!r}: choose one of {', '.join(ELEMENTS)}")
    rng = np.random.default_rng(seed)
    old = np.asarray(getattr(data, element))
    hit = rng.permutation(len(old))[: int(rate * len(old))]
    new = old.copy()
    if element == "rewards":
        new[hit] = -scale * old[hit]
    else:
        new[hit] = old[hit] - scale * old.std(axis=0) * np.sign(gradient[hit])
    if element == "actions":
        new = np.clip(new, -1.0, 1.0)
    return data._replace(**{element: new})
