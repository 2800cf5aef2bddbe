"""Which problems are held out: decided by a hash of what they say, so that no split overlaps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

HELD_OUT = 512
"""Different prompts that a task holds out."""
_ROUNDS = 64


def is_held_out(content: np.ndarray) -> np.ndarray:
    """[N] bool: whether problems of content [N, K], integers, may be held out; every other one."""
    rows = np.ascontiguousarray(content, dtype=np.int64)
    first = [hashlib.blake2b(row.tobytes(), digest_size=1).digest()[0] for row in rows]
    return np.array(first, np.uint8) % 2 == 1


def distinct(
    draw: Callable[[int], np.ndarray], count: int, *, held_out: bool, name: str = "the task"
) -> np.ndarray:
    """Different contents [count, K] of one side.

    Args:
      draw: a number -> this number of random contents, of both sides and with repetitions.
      count: how many.
      held_out: of the held-out side, else of the side that is trained on.
      name: of the task, for the error.

    Raises:
      ValueError: there are not enough.
    """
    found: dict[bytes, np.ndarray] = {}
    for _ in range(_ROUNDS):
        rows = np.ascontiguousarray(draw(4 * count + 16), dtype=np.int64)
        for row in rows[is_held_out(rows) == held_out]:
            found.setdefault(row.tobytes(), row)
        if len(found) >= count:
            return np.stack(list(found.values())[:count])
    side = "held-out" if held_out else "training"
    raise ValueError(
        f"{name} has {len(found)} different prompts on the {side} side and {count} are asked for; "
        "give it more symbols or longer prompts"
    )


def repeated(draw: Callable[[int], np.ndarray], count: int) -> np.ndarray:
    """Contents [count, K] of the side that is trained on, repetitions included."""
    rows = np.concatenate([draw(2 * count + 64) for _ in range(2)])
    kept = rows[~is_held_out(rows)]
    while len(kept) < count:
        more = draw(2 * count + 64)
        kept = np.concatenate([kept, more[~is_held_out(more)]])
    return kept[:count]
