"""Batches by name: each source of rows is a part of its own, and a method mixes them itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import encoders

Batch = Mapping[str, Any]
"""Rows by source: `offline` from the data set, `online` from the replay buffer, or what the
algorithm's `sample` and `recall` name. Nothing may depend on the order of the rows of a part."""


def mixed(batch: Batch) -> Transitions:
    """All parts as one, for losses that are means over rows.

    Args:
      batch: parts with leaves [rows of the part, ...].

    Returns:
      Leaves [rows of all parts, ...].

    Raises:
      ValueError: parts whose `extra` hold different arrays.
    """
    parts = [batch[name] for name in sorted(batch)]
    extra_names = {name: sorted(batch[name].extra) for name in sorted(batch)}
    if any(part.extra.keys() != parts[0].extra.keys() for part in parts):
        raise ValueError(
            f"the parts of a batch hold different extra arrays: {extra_names}; give all the same"
        )
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)


def augmented(key: jax.Array, rows: Transitions, shape: tuple[int, ...], shift: int) -> Transitions:
    """Rows whose pictures, before and after the step, are moved at random by up to `shift` pixels.

    Args:
      key: of the draw.
      rows: leaves [B, ...].
      shape: H, W, C of the pictures.
      shift: see `encoders.shifted`; 0, or numbers in place of pictures, leave the rows as they are.
    """
    if not (shift and shape):
        return rows
    # the key may draw more, whose bits a small number would give as a key
    before, after = jax.random.split(jax.random.fold_in(key, 0x5E715E71))
    return rows._replace(
        observations=encoders.shifted(before, rows.observations, shape, shift),
        next_observations=encoders.shifted(after, rows.next_observations, shape, shift),
    )


def with_own_terminals(part: Any) -> Any:
    """Rows of a data set whose terminal rows have their own state for the next one.

    Nothing follows a terminal, and many files hold the first state of the next trajectory there.
    """
    if not isinstance(part, Transitions):
        return part
    over = part.terminals[..., None] > 0
    after = jnp.where(over, part.observations, part.next_observations)
    return part._replace(next_observations=after)
