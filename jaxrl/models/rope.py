"""Rotary position embeddings (Su et al. 2021) and the ways to stretch them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models.config import DecoderConfig, RopeScaling

GLOBAL, LOCAL, NONE = 0, 1, 2
"""Rows of the tables: the config's RoPE, that of local layers, and no rotation."""


def _yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(inverse: np.ndarray, s: RopeScaling) -> np.ndarray:
    turns = s.original_max_positions * inverse / (2 * np.pi)
    smooth_factor = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    smooth_factor = np.clip(smooth_factor, 0.0, 1.0)
    return inverse * (smooth_factor + (1 - smooth_factor) / s.factor)


def _yarn(inverse: np.ndarray, s: RopeScaling, theta: float) -> tuple[np.ndarray, float]:
    dim = 2 * len(inverse)

    def dimension(turns: float) -> float:
        wavelength = s.original_max_positions / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(theta))

    low, high = dimension(s.beta_fast), dimension(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    stretched = np.clip((np.arange(dim // 2) - low) / span, 0.0, 1.0)
    inverse = inverse * ((1 - stretched) + stretched / s.factor)
    if s.attention_factor is not None:
        return inverse, s.attention_factor
    if s.mscale and s.mscale_all_dim:
        return inverse, _yarn_mscale(s.factor, s.mscale) / _yarn_mscale(s.factor, s.mscale_all_dim)
    return inverse, _yarn_mscale(s.factor)


def _longrope(inverse: np.ndarray, s: RopeScaling, context: int) -> tuple[np.ndarray, float]:
    stretched = context > s.original_max_positions
    factor = s.attention_factor
    if factor is None:
        growth = math.log(s.factor) / math.log(s.original_max_positions)
        factor = math.sqrt(1 + growth) if s.factor > 1 else 1.0
    return inverse / np.asarray(s.long_factors if stretched else s.short_factors), factor


def frequencies(config: DecoderConfig) -> tuple[np.ndarray, float]:
    """Angle a token each rotated pair turns by, and the factor on rotated features.

    llama3 is the rule of Llama 3.1; yarn is Peng et al. 2023; longrope is Ding et al. 2024, whose
    long factors apply iff `max_positions` exceeds the trained context: a model's positions mean
    one thing, however long the given sequence is.

    Returns:
      [rope_dim / 2] float64, and a scalar.
    """
    half = config.rope_dim // 2
    inverse = config.rope_theta ** (-np.arange(half) / half)
    scaling = config.rope_scaling
    match scaling and scaling.kind:
        case None:
            return inverse, 1.0
        case "linear":
            return inverse / scaling.factor, 1.0
        case "llama3":
            return _llama3(inverse, scaling), 1.0
        case "yarn":
            return _yarn(inverse, scaling, config.rope_theta)
        case "longrope":
            return _longrope(inverse, scaling, config.max_positions)
    raise ValueError(f"rope_scaling.kind={scaling.kind!r}: choose linear, llama3, yarn or longrope")


def attention_scale(config: DecoderConfig) -> float:
    """Factor on attention scores, with the temperature DeepSeek folds into a yarn context."""
    if config.attention_scale is not None:
        return config.attention_scale
    latent, scaling = config.latent, config.rope_scaling
    scale = (latent.nope_dim + latent.rope_dim if latent else config.head_dim) ** -0.5
    if latent and scaling and scaling.mscale_all_dim:
        scale *= _yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2
    return scale


def query_scale(config: DecoderConfig, positions: jax.Array) -> jax.Array | None:
    """Factor on the queries at positions [B, T], as [B, T, 1, 1] fp32; None: 1. Under `chunks`, on
    those of layers that know no positions."""
    scaling, chunks = config.rope_scaling, config.chunks
    if chunks:
        beta, intervals = chunks.temperature, (positions + 1) // chunks.interval
    elif scaling is None or not scaling.query_beta:
        return None
    else:
        beta, intervals = scaling.query_beta, positions // scaling.original_max_positions
    factor = 1 + beta * jnp.log1p(intervals.astype(jnp.float32))
    return factor[..., None, None]


def kinds(config: DecoderConfig) -> tuple[int, ...]:
    """For each layer, which of the tables' rows rotates it."""
    apart = config.kinds or config.local_rope_theta is not None
    local = config.local_layers if apart else ()
    return tuple(
        NONE
        if config.rope_layers and not config.rope_layers[i]
        else LOCAL
        if local and local[i]
        else GLOBAL
        for i in range(config.num_layers)
    )


def tables(config: DecoderConfig, positions: jax.Array) -> Any:
    """Cosines and sines for every kind of layer in the model.

    Args:
      config: the decoder's shape.
      positions: [B, T] int32.

    Returns:
      [kinds, 2, B, T, 1, rope_dim / 2] float32; one row if all layers are GLOBAL, else three. Under
      `config.kinds`, where heads differ in size, a tuple of the first two.
    """
    if config.kinds:
        return _tables_of_sizes(config, config.kinds.global_head_dim, positions)
    inverse, factor = frequencies(config)
    rows = [(inverse, factor)]
    if any(kinds(config)):
        theta = config.local_rope_theta or config.rope_theta
        local = theta ** (-np.arange(len(inverse)) / len(inverse))
        rows += [(local, 1.0), (np.zeros_like(inverse), 1.0)]
    inverse, factor = (jnp.asarray(column, jnp.float32) for column in zip(*rows, strict=True))
    angle = positions[None, ..., None, None] * inverse[:, None, None, None]
    scale = factor[:, None, None, None, None]
    return jnp.stack([jnp.cos(angle) * scale, jnp.sin(angle) * scale], axis=1)


def _tables_of_sizes(
    config: DecoderConfig, size: int, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rows GLOBAL, [2, B, T, 1, size / 2], and LOCAL, [2, B, T, 1, head_dim / 2].

    Layers that see everything turn whole heads of `size`, whose pairs beyond the first
    `rope_fraction` turn by nothing (proportional RoPE, Gemma 4).
    """

    def table(theta: float, size: int, turning: int, factor: float) -> jax.Array:
        half = size // 2
        inverse = theta ** (-np.arange(half) / half) * (np.arange(half) < turning) / factor
        angle = positions[..., None, None] * jnp.asarray(inverse, jnp.float32)
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)])

    turning = int(config.rope_fraction * size // 2)
    factor = config.rope_scaling.factor if config.rope_scaling else 1.0
    local_theta = config.local_rope_theta or config.rope_theta
    return (
        table(config.rope_theta, size, turning, factor),
        table(local_theta, config.head_dim, config.head_dim, 1.0),
    )


def rotate(x: jax.Array, table: jax.Array, *, interleaved: bool = False) -> jax.Array:
    """Rotate the leading features of each head; the rest passes unchanged.

    Args:
      x: [B, T, N, H].
      table: [2, B, T, 1, R / 2] cosines and sines, R <= H.
      interleaved: pairs are (0, 1), (2, 3), ...; else (0, R/2), (1, R/2 + 1), ... The result is in
        halves either way: queries and keys are permuted alike, so that scores do not change.
    """
    cos, sin = table
    half = cos.shape[-1]
    rotated, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        a, b = rotated[..., ::2], rotated[..., 1::2]
    else:
        a, b = rotated[..., :half], rotated[..., half:]
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
    return turned if rest.shape[-1] == 0 else jnp.concatenate([turned, rest], axis=-1)
