"""Arithmetic on checkpoints: several fine-tuned models of one base merged into one.

Functions of NumPy pytrees of equal structure, on the host, a leaf at a time. A task vector is what
fine-tuning changed: a model less its base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Tree = Any
Leaf = Callable[..., np.ndarray]


def _by_leaf(function: Leaf, *trees: Tree) -> Tree:
    """`function(leaf of each tree)` in float32, as float32 leaves."""
    return jax.tree.map(lambda *x: function(*(np.asarray(a, np.float32) for a in x)), *trees)


def _weights(count: int, weights: Sequence[float]) -> np.ndarray:
    factors = np.array(weights if len(weights) else [1.0] * count, np.float32)
    if len(factors) != count:
        raise ValueError(f"weights={tuple(weights)}: give one for each of {count} models, or none")
    return factors


def mean(models: Sequence[Tree], weights: Sequence[float] = ()) -> Tree:
    """The weighted mean of models.

    Paper: Wortsman et al. 2022, "Model soups"

    Args:
      models: one or more.
      weights: of each, scaled to sum to 1; empty: equal.

    Raises:
      ValueError: not a weight for each, or a sum that is not above 0.
    """
    factors = _weights(len(models), weights)
    if factors.sum() <= 0:
        raise ValueError(f"weights={tuple(weights)}: their sum must be above 0")
    factors = factors / factors.sum()
    return _by_leaf(lambda *x: np.tensordot(factors, np.stack(x), 1), *models)


def task_arithmetic(
    base: Tree, models: Sequence[Tree], weights: Sequence[float] = (), *, scale: float = 1.0
) -> Tree:
    """The base with the weighted sum of all task vectors added.

    Formula: `base + scale sum_i weights_i (model_i - base)`
    Paper: Ilharco et al. 2023, "Editing Models with Task Arithmetic"

    Args:
      base: of all models.
      models: one or more.
      weights: of each; empty: 1.
      scale: of the sum.

    Raises:
      ValueError: not a weight for each.
    """
    factors = _weights(len(models), weights) * scale
    return _added(base, models, lambda vectors: np.tensordot(factors, vectors, 1))


def ties(
    base: Tree,
    models: Sequence[Tree],
    weights: Sequence[float] = (),
    *,
    density: float = 0.2,
    scale: float = 1.0,
) -> Tree:
    """TIES: task vectors trimmed, a sign elected for each entry, and those of that sign averaged.

    The greatest entries are taken of each parameter by itself.

    Paper: Yadav et al. 2023, "TIES-Merging: Resolving Interference When Merging Models"

    Args:
      base: of all models.
      models: one or more.
      weights: of each, in the election and in the mean; empty: equal.
      density: share of a parameter's entries that is kept, the greatest; above 0 and up to 1.
      scale: of what is added to the base.

    Raises:
      ValueError: not a weight for each, or a density out of range.
    """
    _check_density(density)
    factors = _weights(len(models), weights)

    def merged(vectors: np.ndarray) -> np.ndarray:
        flat = vectors.reshape(len(vectors), -1)
        kept_count = max(1, round(density * flat.shape[1]))
        least = -np.partition(-np.abs(flat), kept_count - 1, axis=1)[:, kept_count - 1 : kept_count]
        flat = np.where(np.abs(flat) >= least, flat, 0.0) * factors[:, None]
        elected = np.sign(flat.sum(axis=0))
        agree = (np.sign(flat) == elected) & (flat != 0)
        total = np.sum(agree * factors[:, None], axis=0)
        average = np.sum(np.where(agree, flat, 0.0), axis=0) / np.where(total == 0, 1.0, total)
        return scale * average.reshape(vectors.shape[1:])

    return _added(base, models, merged)


def dare(
    base: Tree,
    models: Sequence[Tree],
    weights: Sequence[float] = (),
    *,
    density: float = 0.2,
    scale: float = 1.0,
    seed: int = 0,
) -> Tree:
    """DARE: entries of task vectors dropped at random, the rest scaled up, then task arithmetic.

    Formula: `base + scale sum_i weights_i m_i (model_i - base) / density`, `m ~ Bernoulli(density)`
    Paper: Yu et al. 2024, "Language Models are Super Mario: Absorbing Abilities from Homologous
      Models as a Free Lunch"

    Args:
      base: of all models.
      models: one or more.
      weights: of each; empty: their mean.
      density: chance that an entry is kept, above 0 and up to 1.
      scale: of the sum.
      seed: of the draws.

    Raises:
      ValueError: not a weight for each, or a density out of range.
    """
    _check_density(density)
    factors = _weights(len(models), weights) * scale / (1 if len(weights) else len(models))
    rng = np.random.default_rng(seed)

    def merged(vectors: np.ndarray) -> np.ndarray:
        keep_mask = rng.random(vectors.shape, np.float32) < density
        return np.tensordot(factors, np.where(keep_mask, vectors / np.float32(density), 0.0), 1)

    return _added(base, models, merged)


def slerp(first: Tree, second: Tree, *, share: float = 0.5) -> Tree:
    """Two models along the great circle between them, each parameter as one vector.

    Parameters that are nearly parallel are interpolated linearly.

    Paper: Shoemake 1985, "Animating rotation with quaternion curves"

    Args:
      first, second: the models.
      share: of the second, from 0 to 1.

    Raises:
      ValueError: a share out of range.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: must be from 0, the first model, to 1, the second")

    def merged(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        cosine = np.clip(np.sum(a * b, dtype=np.float64) / norms, -1, 1) if norms else 1.0
        angle = float(np.arccos(cosine))
        if np.sin(angle) < 1e-4:
            return (1 - share) * a + share * b
        return (np.sin((1 - share) * angle) * a + np.sin(share * angle) * b) / np.sin(angle)

    return _by_leaf(merged, first, second)


def ram(
    base: Tree,
    models: Sequence[Tree],
    *,
    threshold: float = 1e-5,
    scale: float = 1.0,
) -> Tree:
    """RAM: entries that several models changed are averaged over those, the others kept whole.

    The updates of reinforcement learning are sparse, so that a mean over all models would shrink
    what only one of them has changed. With a `scale` above 1 it is RAM+, which enlarges what model
    k alone has changed, the more the larger the share is that it has in common with others.

    Formula: `base + mean_(k in K) tau_k` of the models K that changed an entry, and
      `base + (1 + (scale - 1) min(shared_k / alone_k, 1)) tau_k` where K is k alone; `shared_k` and
      `alone_k` count entries of all parameters
    Paper: Yuan et al. 2026, "Behavior Knowledge Merge in Reinforced Agentic Models" (as in the
      authors' code, whose RAM+ has a scale of 1.2)

    Args:
      base: of all models.
      models: one or more.
      threshold: absolute change above which an entry counts as changed.
      scale: greatest factor of what one model alone has changed, 1 or more.

    Raises:
      ValueError: a scale below 1.
    """
    if scale < 1:
        raise ValueError(f"scale={scale}: of ram, it must be 1 or more")
    shared, alone = np.zeros((2, len(models)))

    def changes(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        changed = np.abs(vectors) > threshold
        return changed, changed.sum(axis=0)

    def counted(b: np.ndarray, *x: np.ndarray) -> None:
        changed, count = (array.reshape(-1, b.size) for array in changes(np.stack(x) - b))
        shared[:] += np.sum(changed & (count > 1), axis=1)
        alone[:] += np.sum(changed & (count == 1), axis=1)

    def merged(vectors: np.ndarray) -> np.ndarray:
        changed, count = changes(vectors)
        changed_entries = np.where(changed, vectors, 0.0)
        enlarged = np.tensordot(factors, changed_entries, 1)
        return np.where(count == 1, enlarged, changed_entries.sum(axis=0) / np.maximum(count, 1))

    _by_leaf(counted, base, *models)
    ratios = np.minimum(shared / np.maximum(alone, 1), 1.0)
    factors = (1 + (scale - 1) * ratios).astype(np.float32)
    return _added(base, models, merged)


def _added(base: Tree, models: Sequence[Tree], merged: Callable[[np.ndarray], np.ndarray]) -> Tree:
    """The base with `merged(task vectors [M, ...])` added to each parameter."""
    return _by_leaf(lambda b, *x: b + merged(np.stack(x) - b), base, *models)


def _check_density(density: float) -> None:
    if not 0 < density <= 1:
        raise ValueError(f"density={density}: must be above 0 and up to 1")
