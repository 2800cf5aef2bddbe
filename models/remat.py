"""What the backward pass keeps of each layer and what it computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax

Remat = Literal["none", "full", "dots", "offload"]
"""Names of policies; see `wrap`."""


def wrap(layer: Callable[..., Any], policy: Remat) -> Callable[..., Any]:
    """The layer under a policy of rematerialisation (Chen et al. 2016).

    Args:
      layer: any function.
      policy: "none" keeps every activation; "dots" keeps what matrices of weights put out and
        recomputes norms, activations and attention scores; "offload" moves those to host memory;
        "full" keeps the layer's input alone and recomputes a third of the arithmetic.

    Raises:
      ValueError: no such policy.
    """
    policies = jax.checkpoint_policies
    match policy:
        case "none":
            return layer
        case "full":
            return jax.checkpoint(layer)
        case "dots":
            return jax.checkpoint(layer, policy=policies.dots_with_no_batch_dims_saveable)
        case "offload":
            offload = policies.offload_dot_with_no_batch_dims("device", "pinned_host")
            return jax.checkpoint(layer, policy=offload)
    raise ValueError(f"remat={policy!r}: choose none, dots, offload or full")
