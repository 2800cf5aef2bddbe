"""What layers remember of past tokens, where some remember each token and others one state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Recurrent(NamedTuple):
    """What a recurrent layer keeps of past tokens, however many there were."""

    state: jax.Array
    """[S, H, K, V] fp32."""
    inputs: jax.Array
    """[S, W - 1, C], the last inputs of the convolution."""


class LastInputs(NamedTuple):
    """What a convolutional layer keeps of past tokens."""

    inputs: jax.Array
    """[S, W - 1, C], the last inputs of the convolution."""


State = Recurrent | LastInputs


class Beside(NamedTuple):
    """What a layer keeps of past tokens that has attention and a mixer side by side."""

    attention: Any
    """Keys and values."""
    mixer: State


def by_kind(
    of_tokens: Callable[..., Any], of_states: Callable[..., Any], caches: Any, *rest: Any
) -> Any:
    """Map the arrays of caches: one function for those that have a place for every token.

    Args:
      of_tokens: of arrays [S, heads, length, ...].
      of_states: of arrays [S, ...] of recurrent states.
      caches: a pytree of what layers remember.
      rest: pytrees like it.
    """

    def map_part(part: Any, *parts: Any) -> Any:
        if _is_state(part):
            return type(part)(*map(of_states, part, *parts))
        return of_tokens(part, *parts)

    return jax.tree.map(map_part, caches, *rest, is_leaf=_is_state)


def length(caches: Any) -> int:
    """Tokens that caches have a place for."""
    parts = jax.tree.leaves(caches, is_leaf=_is_state)
    return next(part.shape[2] for part in parts if not _is_state(part))


def _is_state(part: Any) -> bool:
    return isinstance(part, State)
