"""The data that flows through a run: requests and completions on the host, pytrees on the mesh.

Shapes: N sequences of T tokens; R packed rows of L tokens with A action tokens each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import struct

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Request:
    """One sequence to sample."""

    id: int
    """Names the random stream: equal ids give equal draws whatever else is in the batch."""
    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose mass reaches p."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """What came of a request. Arrays are [completion length]."""

    request: Request
    tokens: np.ndarray
    """int32; the stop token, if one was sampled, is the last."""
    logp: np.ndarray
    """float32, nats, under the distribution that was sampled from (greedy: under temperature 1)."""
    entropy: np.ndarray
    """float32, nats, of that distribution."""
    version: np.ndarray
    """int32, the policy version each token was sampled with."""
    stopped: bool
    """True if it ended by a stop token, False if it was cut off by its length limit."""


@struct.dataclass
class Trajectory:
    """N scored sequences, prompt first, padded on the right: the one type that losses are fed."""

    tokens: jax.Array
    """[N, T] int32."""
    action_mask: jax.Array
    """[N, T] bool: tokens the policy chose, the EOS it emitted included."""
    behavior_logp: jax.Array
    """[N, T] float32: log-probability under the sampling distribution, 0 where not an action."""
    policy_version: jax.Array
    """[N, T] int32."""
    rewards: jax.Array
    """[N] float32; 0 where not valid."""
    valid: jax.Array
    """[N] bool: False where scoring failed, which keeps the sequence out of every statistic."""
    group_ids: jax.Array
    """[N] int32 in [0, number of groups): sequences of one prompt share a group."""


@struct.dataclass
class Packed:
    """Trajectories as model input: rows of prompt trees, with logits at action tokens only."""

    tokens: jax.Array
    """[K, R, L] int32: K micro-batches of R rows."""
    positions: jax.Array
    """[K, R, L] int32, position in the token's own sequence."""
    visible_until: jax.Array
    """[K, R, L] int32, see `models.attention.tree_mask`."""
    predictor: jax.Array
    """[K, R, A] int32: index in the row of the token whose hidden state predicts the action."""
    target: jax.Array
    """[K, R, A] int32: the action."""
    gather: jax.Array
    """[N, T] int32: where the action at (n, t) lies in the flattened [K * R * A]; -1 if none."""
    micro_batches: jax.Array
    """scalar int32: how many of the K hold data."""


@struct.dataclass
class TrainState:
    """All that a run carries on the mesh from one step to the next."""

    params: Params
    opt_state: Any
    step: jax.Array
    """int32: optimizer updates done, and so the policy version."""
