"""What training changed in the weights: how many of them, their spectra, and their directions."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Params, layout
from jaxrl.models.mixers.pattern import is_stack


class Change(NamedTuple):
    """One matrix or vector of one layer, before and after."""

    name: str
    """Such as `layers/attention/q`."""
    layer: int | None
    """From 0 at the bottom; None outside the layers."""
    size: int
    """Entries."""
    unchanged: float
    """Share of the entries that are equal once both are rounded to bfloat16."""
    relative_norm: float
    """Frobenius norm of the change by that of what was there."""
    spectral_shift: float | None
    """Euclidean distance of the singular values, by the norm of those before; None of a vector."""
    angle: float | None
    """Greatest principal angle between the spans of the leading singular vectors before and after,
    in degrees, of the left and of the right ones whichever is greater; None of a vector."""


def shapes(params: Params) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by its path with slashes."""
    flat = nnx.traversals.flatten_mapping(params, sep="/")
    return {path: np.shape(leaf) for path, leaf in flat.items()}


def changes(
    config: DecoderConfig, before: Params, after: Params, *, rank: int = 16
) -> list[Change]:
    """Every parameter of two models of one shape, compared layer by layer.

    Sparsity is that of Mukherjee et al. 2025, "Reinforcement Learning Finetunes Small Subnetworks
    in Large Language Models"; spectra and angles are those of Zhu et al. 2025, "The Path Not Taken:
    RLVR Provably Learns Off the Principals".

    Args:
      config: of both.
      before, after: as from `decoder.init`.
      rank: how many leading singular vectors span the compared spaces, at most half of them all.
    """
    old, new = (nnx.traversals.flatten_mapping(params) for params in (before, after))
    layer_changes: list[Change] = []
    for path, leaf in layout(config).items():
        stacked = is_stack(path[0])
        numbers = [i for i in range(config.num_layers) if config.place(i)[0] == path[0]]
        a, b = (np.asarray(side[path], np.float32) for side in (old, new))
        for row in range(leaf.shape[0] if stacked else 1):
            pair = (a[row], b[row]) if stacked else (a, b)
            # experts of a layer are one tall matrix, as are the inputs of several axes
            cut = leaf.batch - stacked + leaf.inputs
            matrix = bool(leaf.inputs) or "vocab" in leaf.axes
            width = int(np.prod(pair[0].shape[cut if leaf.inputs else 1 :]))
            old_values, new_values = (
                x.reshape(-1, width) if matrix else x.reshape(-1) for x in pair
            )
            layer = numbers[row] if stacked else None
            layer_changes.append(change("/".join(path), layer, old_values, new_values, rank=rank))
    return layer_changes


def change(
    name: str, layer: int | None, before: np.ndarray, after: np.ndarray, *, rank: int
) -> Change:
    """One parameter compared.

    Args:
      name, layer: see `Change`.
      before, after: [M, N], or [N].
      rank: see `changes`.
    """
    rounded = (np.asarray(jnp.asarray(x).astype(jnp.bfloat16)) for x in (before, after))
    unchanged = float(np.mean(np.equal(*rounded)))
    norm = float(np.linalg.norm(before)) or 1.0
    moved = float(np.linalg.norm(after - before)) / norm
    if before.ndim == 1 or min(before.shape) < 2:
        return Change(name, layer, before.size, unchanged, moved, None, None)
    (u, s, v), (x, t, y) = (np.linalg.svd(m, full_matrices=False) for m in (before, after))
    leading = max(1, min(rank, len(s) // 2))
    shift = float(np.linalg.norm(t - s) / (np.linalg.norm(s) or 1.0))
    angles = (
        _angle(u[:, :leading], x[:, :leading]),
        _angle(v[:leading].T, y[:leading].T),
    )
    return Change(name, layer, before.size, unchanged, moved, shift, max(angles))


def _angle(before: np.ndarray, after: np.ndarray) -> float:
    """Greatest principal angle in degrees between the spans of orthonormal columns.

    From its sine, which is exact where the angle is small (Bjorck & Golub 1973).
    """
    rest = after - before @ (before.T @ after)
    sine = np.linalg.svd(rest, compute_uv=False)[0]
    return float(np.degrees(np.arcsin(np.clip(sine, 0.0, 1.0))))
