"""Checks of recorded rollouts, whoever recorded them: readers, and what is wrong with each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Messages = Sequence[Mapping[str, Any]]


class ModelCall(NamedTuple):
    """One call of the model: P tokens were read, and T tokens follow."""

    prompt: tuple[int, ...]
    """[P] token ids; empty where they were not recorded."""
    tokens: tuple[int, ...]
    """[T] token ids."""
    logp: np.ndarray | None = None
    """[T] recorded log-probabilities, nats; NaN where a token has none. None: not recorded."""
    trained: np.ndarray | None = None
    """[T] bool, the tokens that the loss is over; None: all."""
    messages: Messages | None = None
    """The conversation that the prompt was rendered from."""
    tools: Sequence[Any] | None = None
    """Definitions of tools that the template was called with."""
    reply: str | None = None
    """The text of the completion."""


class Trace(NamedTuple):
    """One rollout: a completion, or an episode of several turns."""

    where: str
    """The file and the line or the number of the record."""
    turns: tuple[ModelCall, ...]
    group: str | None = None
    """Rollouts of one prompt have one group; None: none was recorded."""
    reward: float | None = None
    error: str = ""
    """Why sampling or scoring failed; empty: neither did."""
    advantage: float | None = None
    """None where none is recorded, or tokens have different ones."""
    versions: tuple[int, ...] = ()
    """Versions of the weights that the tokens were sampled with."""
    step: int | None = None
    """The version of the weights, or the training step, that the rollout was used in."""
    items: float | None = None
    """TRL's `num_items_in_batch`: what the sum over the tokens of a batch is divided by."""


class Unreadable(NamedTuple):
    """A record that is no rollout, or whose lists do not fit each other."""

    where: str
    why: str
