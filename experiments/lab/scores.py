"""What an arm trains on: sums of the parts of a reward, or values in units of their history."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxrl.extensions.renormalise import History, RenormaliseConfig


def settling(settings: RenormaliseConfig | None, seeds: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function of each step's rewards that keeps the history of each seed, as `renormalise` does.

    Args:
      settings: None adds the parts of a reward. With a `part`, the second one is renormalised,
        weighed and added to the first; without, all of the reward is.
      seeds: whose histories are kept.

    Returns:
      Rewards [seeds, N], or [seeds, N, 2] in two parts -> [seeds, N] float32; nan stays nan.
    """
    past = [History()] * seeds

    def settle(rewards: np.ndarray) -> np.ndarray:
        whole = rewards if rewards.ndim == 2 else rewards.sum(axis=-1)
        if settings is None:
            return whole
        if settings.part and rewards.ndim == 2:
            raise ValueError(
                f"renormalise.part={settings.part!r}: the arm's rewards have one part; let them "
                "be [N, 2]"
            )
        part = rewards[..., 1] if settings.part else whole
        out = np.where(np.isnan(whole), np.nan, rewards[..., 0] if settings.part else 0.0)
        for seed, values in enumerate(part.astype(np.float64)):
            good = ~np.isnan(whole[seed])
            if good.any():
                past[seed] = past[seed].after(values[good], settings.decay)
                out[seed, good] += settings.weight * past[seed].normal(values[good], settings.clip)
        return out.astype(np.float32)

    return settle
