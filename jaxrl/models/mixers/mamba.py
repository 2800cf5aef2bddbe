"""The Mamba-2 mixer: projection, convolution, recurrence, gate and norm.

Formula: `output(norm((y + skip x) * silu(z)))` for what the tokens read, y, see `state_space`, as
in Granite 4 and Nemotron-H; in Falcon-H1 the norm comes before the gate or is left out
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, Norm, _matrix, _vector, rms_norm
from jaxrl.models.linear import project
from jaxrl.models.mixers import convolution, state_space
from jaxrl.models.mixers.memory import Recurrent
from jaxrl.models.mixers.tree import Take, Tree


class Mamba(nnx.Module):
    """Parameters of a recurrent layer's mixer, and its passes."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        c, d, depth = config.mamba, config.hidden_size, 2 * config.num_layers
        wide, heads = c.size + c.channels + c.heads, ("heads",)
        self.config = config
        self.zxbcdt = _matrix(rngs, (d, wide), ("embed", "channels"))
        self.conv = convolution.taps(rngs, c.channels, c.taps)
        self.a_log = nnx.Param(jnp.log(jnp.arange(1.0, c.heads + 1)), axes=heads, inputs=0, batch=0)
        self.dt_bias, self.skip = (_vector(1.0, (c.heads,), heads) for _ in range(2))
        if c.norm != "none":
            plain = dataclasses.replace(config, norm_offset=0.0)
            self.norm = Norm(plain, (c.size,), ("channels",))
        self.output = _matrix(rngs, (c.size, d), ("channels", "embed"), depth=depth)
        if c.conv_bias:
            self.conv_bias = _vector(0.0, (c.channels,), ("channels",))

    def train(self, x: jax.Array, tree: Tree, layout: Layout) -> jax.Array:
        """Rows [B, T, D] of trees, to the same."""
        z, mixed, dt = self._project(x)
        graph, weights = nnx.split(self)

        def core(take: Take, weights: nnx.State, tree: Tree, *rows: jax.Array) -> jax.Array:
            return nnx.merge(graph, weights).recur(take, *rows, tree)

        return self._finish(
            layout.by_heads(core, self.config.mamba.heads, weights, tree, mixed, dt), z
        )

    def recur(self, take: Take, mixed: jax.Array, dt: jax.Array, tree: Tree) -> jax.Array:
        """What whole rows read, [B, T, H, V] fp32, of the heads that a device takes."""
        mixed = convolution.over_rows(mixed, self._taps(), tree)
        q, k, x = self._split(mixed, self.config.dtype)
        skipped = take(x * self.skip[...].astype(jnp.float32)[:, None])
        new = (take(a) for a in (q, k, x * dt[..., None], dt * self._decay()))
        q, k, v, g = new
        state = jnp.zeros((v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]), jnp.float32)
        return state_space.run(q, k, v, g, state, tree)[0] + skipped

    def extend(
        self, x: jax.Array, memory: Recurrent, real: jax.Array
    ) -> tuple[jax.Array, Recurrent]:
        """The next tokens [S, T, D] of sequences, to the same, and what is then remembered.

        The tokens that are `real` [S, T] come first in their rows; the others change nothing.
        """
        z, mixed, dt = self._project(x)
        count = jnp.sum(real, axis=1)
        mixed, inputs = convolution.over_pieces(mixed, self._taps(), memory.inputs, count)
        q, k, values = self._split(mixed, self.config.dtype)
        dt = jnp.where(real[..., None], dt, 0)
        new = q, k, values * dt[..., None], dt * self._decay()
        if x.shape[1] == 1:
            y, state = state_space.step(*(a[:, 0] for a in new), memory.state)
            y = y[:, None]
        else:
            y, state = state_space.run(*new, memory.state)
        y = y + values * self.skip[...].astype(jnp.float32)[:, None]
        return self._finish(y, z), Recurrent(state, inputs)

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of [B, T, D]: gates [B, T, H V], what is convolved [B, T, C], and strides [B, T, H] in
        fp32."""
        c = self.config.mamba
        cuts = [c.size, c.size + c.channels]
        projected = project(x, self.zxbcdt.get_value())
        if c.factors:
            keys = c.groups * c.state
            sizes = np.array([c.size, c.size, keys, keys, c.heads])
            projected = projected * jnp.asarray(np.repeat(c.factors, sizes), x.dtype)
        z, mixed, dt = jnp.split(projected, cuts, axis=-1)
        dt = jax.nn.softplus(dt.astype(jnp.float32) + self.dt_bias[...].astype(jnp.float32))
        return z, mixed, jnp.clip(dt, *c.strides)

    def _split(self, mixed: jax.Array, dtype: str) -> tuple[jax.Array, ...]:
        """Queries and keys [B, T, G, K] and values [B, T, H, V], in fp32, from what was
        convolved."""
        c, rows = self.config.mamba, mixed.shape[:2]
        if c.conv_bias:
            mixed = mixed + self.conv_bias[...].astype(jnp.float32)
        mixed = jax.nn.silu(mixed).astype(dtype).astype(jnp.float32)
        keys = c.groups * c.state
        x, k, q = jnp.split(mixed, [c.size, c.size + keys], axis=-1)
        q, k = (a.reshape(*rows, c.groups, c.state) for a in (q, k))
        return q, k, x.reshape(*rows, c.heads, c.head_dim)

    def _decay(self) -> jax.Array:
        return -jnp.exp(self.a_log[...].astype(jnp.float32))

    def _taps(self) -> jax.Array:
        return self.conv[...][:, 0].astype(jnp.float32)

    def _finish(self, y: jax.Array, z: jax.Array) -> jax.Array:
        """The mixer's output [B, T, D] of what was read [B, T, H, V] and gates [B, T, H V]."""
        norm, gate = self.config.mamba.norm, jax.nn.silu(z.astype(jnp.float32))
        y = y.reshape(z.shape)
        y = self._normalize(y) * gate if norm == "before_gate" else y * gate
        y = self._normalize(y) if norm == "gated" else y
        return project(y.astype(z.dtype), self.output.get_value())

    def _normalize(self, y: jax.Array) -> jax.Array:
        """[B, T, H V] in fp32, over each group."""
        groups = y.reshape(*y.shape[:2], self.config.mamba.groups, -1)
        groups = rms_norm(groups, jnp.ones(groups.shape[-1]), self.norm.eps)
        return groups.reshape(y.shape) * self.norm.weight[...].astype(jnp.float32)


def empty(config: DecoderConfig, slots: int) -> Recurrent:
    """What a layer remembers at the start of `slots` sequences."""
    c = config.mamba
    return Recurrent(
        jnp.zeros((slots, c.heads, c.state, c.head_dim), jnp.float32),
        jnp.zeros((slots, c.taps - 1, c.channels), config.dtype),
    )
