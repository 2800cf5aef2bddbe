"""The gated delta net of Qwen3-Next, Qwen3.5 and OLMo hybrid: projections, convolution, delta rule,
gated norm.

Formula: `out(norm(y) * silu(z))` for what the tokens read, y, see `delta_rule`
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, Norm, _matrix, _vector
from jaxrl.models.linear import project
from jaxrl.models.mixers import convolution, delta_rule
from jaxrl.models.mixers.memory import Recurrent
from jaxrl.models.mixers.tree import Take, Tree

_EPS = 1e-6
"""Of the norms of queries and keys, whatever `norm_eps` is."""

_SLOWEST, _FASTEST = 0.01, 16.0
"""Bounds of the first decays, as transformers draws them."""


class DeltaNet(nnx.Module):
    """Parameters of a recurrent layer's mixer, and its passes."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        c, d = config.delta, config.hidden_size
        heads = ("heads", "head_dim")
        ratio, values = c.value_heads // c.key_heads, (c.value_heads, c.value_dim)
        self.config = config
        if c.projections == "by_head":
            both = 2 * (c.key_dim + ratio * c.value_dim)
            self.qkvz = _matrix(rngs, (d, c.key_heads, both), ("embed", *heads))
            self.ba = _matrix(rngs, (d, c.key_heads, 2 * ratio), ("embed", *heads))
        else:
            keys, joined = c.key_heads * c.key_dim, c.value_heads * c.value_dim
            if c.projections == "joined":
                self.qkv = _matrix(rngs, (d, c.channels), ("embed", "channels"))
            else:
                self.q = _matrix(rngs, (d, keys), ("embed", "channels"))
                self.k = _matrix(rngs, (d, keys), ("embed", "channels"))
                self.v = _matrix(rngs, (d, joined), ("embed", "channels"))
            self.z = _matrix(rngs, (d, *values), ("embed", *heads))
            self.b = _matrix(rngs, (d, c.value_heads), ("embed", "heads"))
            self.a = _matrix(rngs, (d, c.value_heads), ("embed", "heads"))
        self.conv = convolution.taps(rngs, c.channels, c.taps)
        decay = jax.random.uniform(
            rngs.params(), (c.value_heads,), minval=_SLOWEST, maxval=_FASTEST
        )
        self.a_log = nnx.Param(jnp.log(decay), axes=("heads",), inputs=0, batch=0)
        self.dt_bias = _vector(1.0, (c.value_heads,), ("heads",))
        eps = config.norm_eps if c.norm_eps is None else c.norm_eps
        plain = dataclasses.replace(config, norm_offset=0.0, norm_eps=eps)
        self.norm = Norm(plain, (c.value_dim,), ("head_dim",))
        depth = 2 * config.num_layers
        self.out = _matrix(rngs, (*values, d), (*heads, "embed"), inputs=2, depth=depth)

    def train(self, x: jax.Array, tree: Tree, layout: Layout) -> jax.Array:
        """Rows [B, T, D] of trees, to the same."""
        mixed, z, g, beta = self._project(x)

        def core(take: Take, taps: jax.Array, tree: Tree, *rows: jax.Array) -> jax.Array:
            mixed, g, beta = rows
            q, k, v = self._split(convolution.over_rows(mixed, taps, tree), mixed.dtype)
            q, k, v, g, beta = (take(a) for a in (q, k, v, g, beta))
            state = jnp.zeros((q.shape[0], *q.shape[2:], v.shape[-1]), jnp.float32)
            return delta_rule.run(q, k, v, g, beta, state, tree)[0]

        taps = self.conv[...][:, 0].astype(jnp.float32)
        return self._finish(
            layout.by_heads(core, self.config.delta.value_heads, taps, tree, mixed, g, beta), z
        )

    def extend(
        self, x: jax.Array, memory: Recurrent, real: jax.Array
    ) -> tuple[jax.Array, Recurrent]:
        """The next tokens [S, T, D] of sequences, to the same, and what is then remembered.

        The tokens that are `real` [S, T] come first in their rows; the others change nothing.
        """
        mixed, z, g, beta = self._project(x)
        taps = self.conv[...][:, 0].astype(jnp.float32)
        mixed_now, inputs = convolution.over_pieces(
            mixed, taps, memory.inputs, jnp.sum(real, axis=1)
        )
        q, k, v = self._split(mixed_now, x.dtype)
        g, beta = (jnp.where(real[..., None], a, 0) for a in (g, beta))
        if x.shape[1] == 1:
            y, state = delta_rule.step(*(a[:, 0] for a in (q, k, v, g, beta)), memory.state)
            y = y[:, None]
        else:
            y, state = delta_rule.run(q, k, v, g, beta, memory.state)
        return self._finish(y, z), Recurrent(state, inputs)

    def _project(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Of [B, T, D]: queries, keys and values [B, T, C], gates [B, T, H, V], and in fp32 decays
        and strides [B, T, H]."""
        c, rows = self.config.delta, x.shape[:2]
        if c.projections == "by_head":
            ratio = c.value_heads // c.key_heads
            wide = ratio * c.value_dim
            cuts = [c.key_dim, 2 * c.key_dim, 2 * c.key_dim + wide]
            q, k, v, z = jnp.split(project(x, self.qkvz.get_value()), cuts, axis=-1)
            mixed = jnp.concatenate([a.reshape(*rows, -1) for a in (q, k, v)], axis=-1)
            b, a = jnp.split(project(x, self.ba.get_value()), [ratio], axis=-1)
        else:
            matrices = (self.qkv,) if c.projections == "joined" else (self.q, self.k, self.v)
            mixed = jnp.concatenate([project(x, p.get_value()) for p in matrices], axis=-1)
            z, b, a = (project(x, p.get_value()) for p in (self.z, self.b, self.a))
        z = z.reshape(*rows, c.value_heads, c.value_dim)
        b, a = (y.reshape(*rows, c.value_heads).astype(jnp.float32) for y in (b, a))
        decay = jnp.exp(self.a_log[...].astype(jnp.float32))
        g = -decay * jax.nn.softplus(a + self.dt_bias[...].astype(jnp.float32))
        beta = jax.nn.sigmoid(b)
        return mixed, z, g, beta if c.stride == 1 else beta * c.stride

    def _split(self, mixed: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
        """Queries, keys and values of each value head, in fp32, from what was convolved."""
        c, rows = self.config.delta, mixed.shape[:2]
        mixed = jax.nn.silu(mixed).astype(dtype).astype(jnp.float32)
        keys = c.key_heads * c.key_dim
        q, k, v = jnp.split(mixed, [keys, 2 * keys], axis=-1)
        q, k = (a.reshape(*rows, c.key_heads, c.key_dim) for a in (q, k))
        q, k = (a * jax.lax.rsqrt(jnp.sum(a * a, axis=-1, keepdims=True) + _EPS) for a in (q, k))
        q, k = (jnp.repeat(a, c.value_heads // c.key_heads, axis=2) for a in (q, k))
        return q * c.key_dim**-0.5, k, v.reshape(*rows, c.value_heads, c.value_dim)

    def _finish(self, y: jax.Array, z: jax.Array) -> jax.Array:
        y = self.norm(y.astype(z.dtype)).astype(jnp.float32)
        y = (y * jax.nn.silu(z.astype(jnp.float32))).astype(z.dtype)
        return project(y, self.out.get_value(), inputs=2)


def axes() -> Recurrent:
    """Logical axis names of what a layer remembers."""
    return Recurrent(("batch", "heads", None, None), ("batch", None, None))


def empty(config: DecoderConfig, slots: int) -> Recurrent:
    """What a layer remembers at the start of `slots` sequences."""
    c = config.delta
    return Recurrent(
        jnp.zeros((slots, c.value_heads, c.key_dim, c.value_dim), jnp.float32),
        jnp.zeros((slots, c.taps - 1, c.channels), config.dtype),
    )
