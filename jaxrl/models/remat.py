"""What the backward pass keeps of each layer and what it computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxrl.models.linear import PROJECTION

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
            return jax.checkpoint(layer, policy=policies.save_only_these_names(PROJECTION))
        case "offload":
            offload = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=[PROJECTION],
                offload_src="device",
                offload_dst="pinned_host",
            )
            return jax.checkpoint(layer, policy=offload)
    raise ValueError(f"remat={policy!r}: choose none, dots, offload or full")
