"""What mixes tokens in layers other than plain attention, as frozen records."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal


def _check_mixer(name: str, heads: int, part: str, parts: int, taps: int) -> None:
    if heads % parts:
        raise ValueError(
            f"{name}={heads} is not a multiple of {part}={parts}; choose {part} that divides it"
        )
    if taps < 2:
        raise ValueError(f"taps={taps}: the convolution must see at least 2 tokens")


@dataclasses.dataclass(frozen=True)
class DeltaRule:
    """Linear attention by the gated delta rule (Yang et al. 2024), behind a short convolution."""

    key_heads: int
    value_heads: int
    """Each key head serves an equal run of them."""
    key_dim: int
    """Features of a key, and of a query."""
    value_dim: int
    taps: int
    """Tokens that the convolution sees, the newest included."""
    projections: Literal["by_head", "joined", "apart"]
    """How matrices lie: those of a key head together, q, k and v together, or each apart."""
    stride: float = 1.0
    """Factor on how far a token moves the state; 2 lets it turn a key's value round."""
    norm_eps: float | None = None
    """Of the norm of what is read; None: as in the others."""
    by_channel: bool = False
    """Each feature of a key decays at its own rate (Kimi Linear)."""

    def __post_init__(self) -> None:
        _check_mixer("value_heads", self.value_heads, "key_heads", self.key_heads, self.taps)
        if self.by_channel and (self.key_heads, self.key_dim, self.projections) != (
            self.value_heads,
            self.value_dim,
            "apart",
        ):
            raise ValueError(
                f"by_channel=True: {self} needs as many key heads as value heads, of one size, and "
                "projections='apart'"
            )

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclasses.dataclass(frozen=True)
class Mamba2:
    """A state space with scalar decays (Dao and Gu 2024), behind a short convolution."""

    heads: int
    head_dim: int
    """Features of a value."""
    groups: int
    """Each serves an equal run of heads with its keys and queries; norms are over a group."""
    state: int
    """Features of a key, and of a query."""
    taps: int
    """Tokens that the convolution sees, the newest included."""
    conv_bias: bool = True
    strides: tuple[float, float] = (0.0, math.inf)
    """Bounds of how far a token moves the state."""
    norm: Literal["gated", "before_gate", "none"] = "gated"
    """What is read is gated and then normalised, or normalised and then gated, or gated alone."""
    factors: tuple[float, ...] = ()
    """On projected gates, values, keys, queries and strides; empty: 1."""

    def __post_init__(self) -> None:
        _check_mixer("heads", self.heads, "groups", self.groups, self.taps)
        if len(self.factors) not in (0, 5):
            raise ValueError(
                f"factors={self.factors}: give five, on gates, values, keys, queries and strides, "
                "or none"
            )

    @property
    def size(self) -> int:
        """Features of the values of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values of all heads, keys and queries of all groups."""
        return self.size + 2 * self.groups * self.state


@dataclasses.dataclass(frozen=True)
class SideBySide:
    """Factors in layers where attention and Mamba-2 stand side by side (Falcon-H1)."""

    attention_in: float = 1.0
    """On what enters attention."""
    attention_out: float = 1.0
    """On what attention adds to the residual stream."""
    keys: float = 1.0
    """On the keys of attention."""
    mixer_in: float = 1.0
    """On what enters Mamba-2."""
    mixer_out: float = 1.0
    """On what Mamba-2 adds to the residual stream."""
    gate: float = 1.0
    """On the gate of the MLP, before its activation."""
    down: float = 1.0
    """On what the MLP adds to the residual stream."""


@dataclasses.dataclass(frozen=True)
class ChunkedLayers:
    """Layers that know positions and attend within chunks, among ones that see everything and know
    none (Llama 4); `DecoderConfig.rope_layers` says which."""

    size: int | None
    """Tokens of a chunk, from the start of a sequence on; None: all are one chunk."""
    routed: tuple[bool, ...]
    """Which layers have experts; the others have a dense MLP."""
    normalize: bool = True
    """Queries and keys of layers that know positions are normalised over each head, without
    weights."""
    temperature: float = 0.0
    """Queries of the other layers are multiplied by 1 + this times
    ln(1 + floor((position + 1) / `interval`))."""
    interval: int = 8192

    def __post_init__(self) -> None:
        if (self.size is not None and self.size < 1) or self.interval < 1:
            raise ValueError(
                f"size={self.size}, interval={self.interval}: a chunk has 1 token or more, and so "
                "has an interval of the temperature"
            )
