"""Kimi Delta Attention: the gated delta rule where each feature of a key decays at its own rate.

A head's state `S` [K, V] maps keys to values. For decays g [K] of a token:

    S = exp(g) S;  S = S + k (beta (v - k S));  y = q S

Formula: `out(norm(y) * sigmoid(z))` for what the tokens read, y

Paper: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture"
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, Norm, _matrix, _vector
from jaxrl.models.linear import project
from jaxrl.models.mixers import convolution
from jaxrl.models.mixers import tree as trees
from jaxrl.models.mixers.delta_net import _EPS, _FASTEST, _SLOWEST
from jaxrl.models.mixers.delta_rule import solve, step
from jaxrl.models.mixers.memory import Recurrent
from jaxrl.models.mixers.tree import Take, Tree

CHUNK = 16
"""Tokens that are computed together; decays between them take their square, for each feature."""

_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def run(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    tree: Tree | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Rows of tokens in chunks, in fp32: what `step` gives token by token.

    Decays are multiplied over each span of tokens, feature by feature, since a quotient of two
    products from the start of the chunk would overflow. The backward pass makes them again.

    Args:
      q, k, g: [B, T, H, K], see `step`.
      v: [B, T, H, V].
      beta: [B, T, H].
      state: [B, H, K, V], before the first token, where there is no tree.
      tree: of the rows, each from a state of zeros; None: each token continues the one before.
      chunk: static; how many tokens are computed together.

    Returns:
      What the tokens read, [B, T, H, V], and the state after the last one, where there is no tree.
    """
    total = q.shape[1]
    chunk = min(chunk, total)
    q, k, v, g, beta = (trees.in_chunks(a, chunk) for a in (q, k, v, g, beta))
    parts, state = trees.begin(tree, state, total, chunk)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def advance(state: jax.Array, xs: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, g, beta, parts = xs
        from_start, between = trees.decays(
            jnp.swapaxes(g, -1, -2), parts.sees, branching=parts.stays.shape[-1] > 1
        )
        from_start = jnp.swapaxes(from_start, -1, -2)[..., None, :]
        reach = from_start * parts.enters[:, None, :, :, None]
        keys = k * beta[..., None]
        system = jnp.tril(_einsum("bhck,bhdk,bhkcd->bhcd", keys, k, between), -1)
        read = _einsum("bhcmk,bhmkv->bhcv", keys[..., None, :] * reach, state)
        change = solve(system, v * beta[..., None] - read)
        scores = _einsum("bhck,bhdk,bhkcd->bhcd", q, k, between)
        y = _einsum("bhcmk,bhmkv->bhcv", q[..., None, :] * reach, state)
        y = y + _einsum("bhcd,bhdv->bhcv", scores, change)
        entries = _einsum("bmc,bhkcd->bhmdk", parts.last, between) * k[:, :, None]
        left = parts.stays[:, None, :, :, None]
        left = left + _einsum("bmc,bhclk->bhmlk", parts.last, reach)
        state = _einsum("bhmlk,bhlkv->bhmkv", left, state)
        return state + _einsum("bhmck,bhcv->bhmkv", entries, change), y

    state, y = jax.lax.scan(advance, state, (q, k, v, g, beta, parts))
    return trees.out_of_chunks(y, total), state[:, :, 0]


class ChannelDeltaNet(nnx.Module):
    """Parameters of a recurrent layer's mixer, and its passes."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        c, d, depth = config.delta, config.hidden_size, 2 * config.num_layers
        n, h = c.value_heads, c.value_dim
        wide, heads, narrow = n * h, ("heads", "head_dim"), ("latent",)
        self.config = config
        self.q, self.k, self.v = (_matrix(rngs, (d, wide), ("embed", "channels")) for _ in range(3))
        self.q_conv, self.k_conv, self.v_conv = (
            convolution.taps(rngs, wide, c.taps) for _ in range(3)
        )
        self.b = _matrix(rngs, (d, n), ("embed", "heads"))
        self.decay_down = _matrix(rngs, (d, h), ("embed", *narrow))
        self.decay_up = _matrix(rngs, (h, n, h), (*narrow, *heads))
        self.z_down = _matrix(rngs, (d, h), ("embed", *narrow))
        self.z_up = _matrix(rngs, (h, n, h), (*narrow, *heads))
        rate = jax.random.uniform(rngs.params(), (1, 1, n, 1), minval=_SLOWEST, maxval=_FASTEST)
        axes = ("single", "single", "heads", "single")
        self.a_log = nnx.Param(jnp.log(rate), axes=axes, inputs=0, batch=0)
        self.dt_bias = _vector(1.0, (wide,), ("channels",))
        self.norm = Norm(config, (h,), ("head_dim",))
        self.out = _matrix(rngs, (n, h, d), (*heads, "embed"), inputs=2, depth=depth)

    def train(self, x: jax.Array, tree: Tree, layout: Layout) -> jax.Array:
        """Rows [B, T, D] of trees, to the same."""
        mixed, g, beta = self._project(x)

        def core(take: Take, taps: jax.Array, tree: Tree, *rows: jax.Array) -> jax.Array:
            mixed, g, beta = rows
            q, k, v = self._split(convolution.over_rows(mixed, taps, tree), mixed.dtype)
            q, k, v, g, beta = (take(a) for a in (q, k, v, g, beta))
            state = jnp.zeros((q.shape[0], *q.shape[2:], v.shape[-1]), jnp.float32)
            return run(q, k, v, g, beta, state, tree)[0]

        return self._finish(
            layout.by_heads(
                core, self.config.delta.value_heads, self._taps(), tree, mixed, g, beta
            ),
            x,
        )

    def extend(
        self, x: jax.Array, memory: Recurrent, real: jax.Array
    ) -> tuple[jax.Array, Recurrent]:
        """The next tokens [S, T, D] of sequences, to the same, and what is then remembered.

        The tokens that are `real` [S, T] come first in their rows; the others change nothing.
        """
        mixed, g, beta = self._project(x)
        count = jnp.sum(real, axis=1)
        mixed, inputs = convolution.over_pieces(mixed, self._taps(), memory.inputs, count)
        q, k, v = self._split(mixed, x.dtype)
        g, beta = jnp.where(real[..., None, None], g, 0), jnp.where(real[..., None], beta, 0)
        if x.shape[1] == 1:
            y, state = step(*(a[:, 0] for a in (q, k, v, g, beta)), memory.state)
            y = y[:, None]
        else:
            y, state = run(q, k, v, g, beta, memory.state)
        return self._finish(y, x), Recurrent(state, inputs)

    def _project(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Of [B, T, D]: queries, keys and values [B, T, C], and in fp32 decays [B, T, H, K] and
        strides [B, T, H]."""
        matrices = (self.q, self.k, self.v)
        mixed = jnp.concatenate([project(x, p.get_value()) for p in matrices], axis=-1)
        a = project(project(x, self.decay_down.get_value()), self.decay_up.get_value())
        bias = self.dt_bias[...].astype(jnp.float32).reshape(a.shape[-2:])
        rate = jnp.exp(self.a_log[...].astype(jnp.float32))
        g = -rate * jax.nn.softplus(a.astype(jnp.float32) + bias)
        beta = jax.nn.sigmoid(project(x, self.b.get_value()).astype(jnp.float32))
        return mixed, g, beta

    def _taps(self) -> jax.Array:
        taps = [p[...][:, 0] for p in (self.q_conv, self.k_conv, self.v_conv)]
        return jnp.concatenate(taps).astype(jnp.float32)

    def _split(self, mixed: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
        """Queries, keys and values [B, T, H, K], in fp32, from what was convolved."""
        c = self.config.delta
        mixed = jax.nn.silu(mixed).astype(dtype).astype(jnp.float32)
        mixed = mixed.reshape(*mixed.shape[:2], 3, c.value_heads, c.value_dim)
        q, k, v = (mixed[:, :, i] for i in range(3))
        q, k = (a * jax.lax.rsqrt(jnp.sum(a * a, axis=-1, keepdims=True) + _EPS) for a in (q, k))
        return q * c.key_dim**-0.5, k, v

    def _finish(self, y: jax.Array, x: jax.Array) -> jax.Array:
        """The mixer's output of what was read [B, T, H, V], gated by what came in [B, T, D]."""
        z = project(project(x, self.z_down.get_value()), self.z_up.get_value())
        y = self.norm(y.astype(x.dtype).astype(jnp.float32))
        y = (y * jax.nn.sigmoid(z.astype(jnp.float32))).astype(x.dtype)
        return project(y, self.out.get_value(), inputs=2)
