"""The parts of a decoder layer, as Flax NNX modules.

A matrix keeps its axes apart, inputs first: queries are [D, N, H], not [N * H, D]. Every parameter
carries its logical axis names (`axes`), how many of its axes are inputs of a projection (`inputs`)
and how many before those enumerate experts (`batch`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models import rope
from jaxrl.models.attention import Mask, attend
from jaxrl.models.config import DecoderConfig
from jaxrl.models.linear import dense, precision, project, project_ragged
from jaxrl.models.mixers import tree as trees

Axes = tuple[str, ...]

_LATENT_EPS = 1e-6
"""Of the norms of latents, whatever `norm_eps` is: DeepSeek's code fixes it."""


class KeyValue(NamedTuple):
    """What attention keeps of past tokens: k, v [B, S, K, H]."""

    k: jax.Array
    v: jax.Array


class LatentKeyValue(NamedTuple):
    """What latent attention keeps of past tokens."""

    latent: jax.Array
    """[B, S, 1, kv_rank], normalised."""
    k_rope: jax.Array
    """[B, S, 1, rope_dim], rotated."""


Memory = KeyValue | LatentKeyValue


class Gated(NamedTuple):
    """Queries, and the gates on what they take from memory, before their sigmoid."""

    q: jax.Array
    """[B, T, N, H]."""
    gate: jax.Array
    """[B, T, N, H]."""


Queries = jax.Array | Gated


class Routing(NamedTuple):
    """What the routers of a pass did with its tokens; leaves lead with layers once stacked."""

    logits: jax.Array
    """[B, T, E] fp32, before softmax or sigmoid."""
    chosen: jax.Array
    """[B, T, per_token] int32, the experts of each token."""


class Layout(NamedTuple):
    """How a pass lies on several devices; the default leaves that to where the arrays lie."""

    activations: Callable[[jax.Array], jax.Array] = lambda x: x
    """Fixes where the residual stream [B, T, D] lies."""
    weights: Callable[[dict[str, Any], str], dict[str, Any]] = lambda params, stack: params
    """Brings weights together for use: those of one layer of a stack, or of "" for the rest."""
    look_up: Callable[..., jax.Array] = lambda table, tokens, dtype: table[tokens].astype(dtype)
    """Of a table [V, D] that is not brought together, the rows of tokens [B, T]: [B, T, D]."""
    attend: Callable[..., jax.Array] = attend
    """Attention, each device its part."""
    by_rows: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    """A function of weights and of arrays [B, ...], such that each device computes its rows."""
    by_heads: Callable[..., jax.Array] = trees.along_rows
    """As `tree.along_rows`, each device its rows and heads."""
    cache: Callable[[Any], Any] = lambda layer: layer
    """Fixes where one layer's cache lies, a pytree of arrays."""


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, offset: float = 0.0) -> jax.Array:
    """Root-mean-square norm (Zhang and Sennrich 2019) over the weight's axes, computed in fp32."""
    y = x.astype(jnp.float32)
    axes = tuple(range(-weight.ndim, 0))
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=axes, keepdims=True) + eps)
    return (y * (weight.astype(jnp.float32) + offset)).astype(x.dtype)


def _matrix(
    rngs: nnx.Rngs,
    shape: tuple[int, ...],
    axes: Axes,
    *,
    inputs: int = 1,
    batch: int = 0,
    depth: int = 1,
) -> nnx.Param:
    fan_in = depth
    for size in shape[batch : batch + inputs]:
        fan_in *= size
    value = jax.random.normal(rngs.params(), shape, jnp.float32) * fan_in**-0.5
    return nnx.Param(value, axes=axes, inputs=inputs, batch=batch)


def _vector(value: float, shape: tuple[int, ...], axes: Axes, *, batch: int = 0) -> nnx.Param:
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes, inputs=0, batch=batch)


class Norm(nnx.Module):
    """RMS norm whose weight starts as the identity."""

    def __init__(
        self,
        config: DecoderConfig,
        shape: tuple[int, ...],
        axes: Axes,
        *,
        eps: float | None = None,
    ) -> None:
        self.eps = config.norm_eps if eps is None else eps
        self.offset = config.norm_offset
        self.weight = _vector(1.0 - config.norm_offset, shape, axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *shape] to the same."""
        return rms_norm(x, self.weight[...], self.eps, self.offset)


def _depth(config: DecoderConfig) -> int:
    return 2 * config.num_layers  # keeps the residual stream's variance flat in depth


class Attention(nnx.Module):
    """Grouped-query attention (Ainslie et al. 2023)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        c, d, h = config, config.hidden_size, config.head_dim
        q_axes, kv_axes = ("heads", "head_dim"), ("kv_heads", "head_dim")
        gated = 2 if c.attention_gate else 1
        queries, keys = (c.num_heads, gated * h), (c.num_kv_heads, h)
        self.config = config
        self.q = _matrix(rngs, (d, *queries), ("embed", *q_axes))
        self.k = _matrix(rngs, (d, *keys), ("embed", *kv_axes))
        self.v = _matrix(rngs, (d, *keys), ("embed", *kv_axes))
        heads = (c.num_heads, h)
        self.o = _matrix(rngs, (*heads, d), (*q_axes, "embed"), inputs=2, depth=_depth(c))
        if c.qkv_bias:
            self.q_bias = _vector(0.0, queries, q_axes)
            self.k_bias, self.v_bias = (_vector(0.0, keys, kv_axes) for _ in "kv")
        if c.o_bias:
            self.o_bias = _vector(0.0, (d,), ("embed",))
        if c.sinks:
            self.sinks = _vector(0.0, (c.num_heads,), ("heads",))
        if c.qk_norm == "head":
            self.q_norm, self.k_norm = (Norm(c, (h,), ("head_dim",)) for _ in "qk")
        elif c.qk_norm == "flat":
            self.q_norm, self.k_norm = Norm(c, heads, q_axes), Norm(c, keys, kv_axes)

    def look(
        self, x: jax.Array, table: jax.Array, scale: jax.Array | None = None
    ) -> tuple[Queries, KeyValue]:
        """Queries [B, T, N, H], times `scale` [B, T, 1, 1], and what is to be remembered."""
        c = self.config
        q, k, v = (project(x, p.get_value()) for p in (self.q, self.k, self.v))
        if c.qkv_bias:
            q, k, v = (
                y + p[...].astype(y.dtype)
                for y, p in ((q, self.q_bias), (k, self.k_bias), (v, self.v_bias))
            )
        q, gate = jnp.split(q, 2, axis=-1) if c.attention_gate else (q, None)
        if c.qk_norm != "none":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (rope.rotate(y, table, interleaved=c.rope_interleaved) for y in (q, k))
        q = q if scale is None else (q * scale).astype(q.dtype)
        return q if gate is None else Gated(q, gate), KeyValue(k, v)

    def read(self, q: Queries, memory: KeyValue, mask: Mask, layout: Layout) -> jax.Array:
        """What the tokens take from memory, [B, T, D]."""
        c = self.config
        scale, softcap = rope.attention_scale(c), c.attention_softcap
        q, gate = q if isinstance(q, Gated) else (q, None)
        sinks = {"sinks": self.sinks[...]} if c.sinks else {}
        y = layout.attend(
            q, *memory, mask, scale=scale, softcap=softcap, kernel=c.attention, **sinks
        )
        y = y if gate is None else y * jax.nn.sigmoid(gate)
        y = project(y, self.o.get_value(), inputs=2)
        return y + self.o_bias[...].astype(y.dtype) if c.o_bias else y


class LatentAttention(nnx.Module):
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values from a shared latent."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        c, d, m = config, config.hidden_size, config.latent
        heads, latent = ("heads", "head_dim"), ("latent",)
        queries = (c.num_heads, m.nope_dim + m.rope_dim)
        self.config = config
        if m.q_rank is None:
            self.q = _matrix(rngs, (d, *queries), ("embed", *heads))
        else:
            self.q_down = _matrix(rngs, (d, m.q_rank), ("embed", *latent))
            self.q_norm = Norm(c, (m.q_rank,), latent, eps=_LATENT_EPS)
            self.q_up = _matrix(rngs, (m.q_rank, *queries), (*latent, *heads))
        self.kv_down = _matrix(rngs, (d, m.kv_rank + m.rope_dim), ("embed", *latent))
        self.kv_norm = Norm(c, (m.kv_rank,), latent, eps=_LATENT_EPS)
        wide, values = (c.num_heads, m.nope_dim + m.v_dim), (c.num_heads, m.v_dim)
        self.kv_up = _matrix(rngs, (m.kv_rank, *wide), (*latent, *heads))
        self.o = _matrix(rngs, (*values, d), (*heads, "embed"), inputs=2, depth=_depth(c))

    def look(
        self, x: jax.Array, table: jax.Array, scale: jax.Array | None = None
    ) -> tuple[jax.Array, LatentKeyValue]:
        """Queries [B, T, N, nope + rope], times `scale`, and what is to be remembered."""
        m, interleaved = self.config.latent, self.config.rope_interleaved
        if m.q_rank is None:
            q = project(x, self.q.get_value())
        else:
            q = project(self.q_norm(project(x, self.q_down.get_value())), self.q_up.get_value())
        q_nope, q_rope = jnp.split(q, [m.nope_dim], axis=-1)
        latent, k_rope = jnp.split(project(x, self.kv_down.get_value()), [m.kv_rank], axis=-1)
        q_rope = rope.rotate(q_rope, table, interleaved=interleaved)
        k_rope = rope.rotate(k_rope[:, :, None], table, interleaved=interleaved)
        q = jnp.concatenate([q_nope, q_rope], axis=-1)
        q = q if scale is None else (q * scale).astype(q.dtype)
        return q, LatentKeyValue(self.kv_norm(latent)[:, :, None], k_rope)

    def read(self, q: jax.Array, memory: LatentKeyValue, mask: Mask, layout: Layout) -> jax.Array:
        """What the tokens take from memory, [B, T, D]."""
        c, m, n = self.config, self.config.latent, self.config.num_heads
        scale, kernel = rope.attention_scale(c), c.attention
        attend = functools.partial(layout.attend, scale=scale, kernel=kernel)
        up = dense(self.kv_up.get_value(), q.dtype)
        k_up, v_up = jnp.split(up, [m.nope_dim], axis=-1)
        saved = 2 * m.kv_rank - m.nope_dim - m.v_dim
        if q.shape[1] * saved > m.kv_rank * (m.nope_dim + m.v_dim):
            # many queries: giving each head its keys and values costs less than it saves
            k_nope, v = (project(memory.latent[:, :, 0], w) for w in (k_up, v_up))
            shared = jnp.broadcast_to(memory.k_rope, (*k_nope.shape[:2], n, m.rope_dim))
            k = jnp.concatenate([k_nope, shared], axis=-1)
            y = attend(q, k, v, mask)
        else:
            # few: queries move into the latent space, where all heads share one key and value
            q_nope, q_rope = jnp.split(q, [m.nope_dim], axis=-1)
            einsum = functools.partial(jnp.einsum, precision=precision(q.dtype))
            q_latent = einsum("btnh,rnh->btnr", q_nope, k_up)
            q = jnp.concatenate([q_latent, q_rope], axis=-1)
            k = jnp.concatenate(memory, axis=-1)
            y = attend(q, k, memory.latent, mask)
            y = einsum("btnr,rnh->btnh", y, v_up)
        return project(y, self.o.get_value(), inputs=2)


def _activate(config: DecoderConfig, x: jax.Array) -> jax.Array:
    return getattr(jax.nn, config.activation.removesuffix("_tanh"))(x)


class MLP(nnx.Module):
    """Gated MLP (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig, size: int, *, rngs: nnx.Rngs) -> None:
        d, depth = config.hidden_size, _depth(config)
        self.config = config
        if not config.self_gated:
            self.gate = _matrix(rngs, (d, size), ("embed", "mlp"))
        self.up = _matrix(rngs, (d, size), ("embed", "mlp"))
        self.down = _matrix(rngs, (size, d), ("mlp", "embed"), depth=depth)
        if config.mlp_bias:
            self.gate_bias, self.up_bias = (_vector(0.0, (size,), ("mlp",)) for _ in range(2))
            self.down_bias = _vector(0.0, (d,), ("embed",))

    def __call__(self, x: jax.Array, layout: Layout = Layout()) -> jax.Array:
        """[B, T, D] to the same."""
        up = project(x, self.up.get_value())
        gate = up if self.config.self_gated else project(x, self.gate.get_value())
        if self.config.mlp_bias:
            gate = gate + self.gate_bias[...].astype(x.dtype)
            up = up + self.up_bias[...].astype(x.dtype)
        y = project(_activate(self.config, gate) * up, self.down.get_value())
        return y + self.down_bias[...].astype(x.dtype) if self.config.mlp_bias else y


class ExpertMLP(nnx.Module):
    """A routed mixture of gated MLPs that drops no token (Gale et al. 2022, MegaBlocks)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        e, d, depth = config.experts, config.hidden_size, _depth(config)
        n, f = e.num_experts, e.size
        self.config = config
        self.router = _matrix(rngs, (d, n), ("embed", "expert"))
        if e.correction_bias:
            self.correction = _vector(0.0, (n,), ("expert",))
        wide, narrow = ("expert", "embed", "mlp"), ("expert", "mlp", "embed")
        if not config.self_gated:
            self.gate = _matrix(rngs, (n, d, f), wide, batch=1)
        self.up = _matrix(rngs, (n, d, f), wide, batch=1)
        self.down = _matrix(rngs, (n, f, d), narrow, batch=1, depth=depth)
        if e.biases:
            self.router_bias = _vector(0.0, (n,), ("expert",))
            self.gate_bias = _vector(0.0, (n, f), wide[::2], batch=1)
            self.up_bias = _vector(0.0, (n, f), wide[::2], batch=1)
            self.down_bias = _vector(0.0, (n, d), narrow[::2], batch=1)
        if e.shared_size:
            self.shared = MLP(config, e.shared_size, rngs=rngs)
        if e.shared_gate:
            value = jax.random.normal(rngs.params(), (1, d), jnp.float32) * d**-0.5
            self.shared_gate = nnx.Param(value, axes=("single", "embed"), inputs=0, batch=0)

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For tokens [M, D] the chosen experts and their weights, each [M, per_token], and the
        logits [M, E]; in fp32.

        Products too, on every device: else trainer and sampler might choose other experts.
        """
        e = self.config.experts
        logits = project(x.astype(jnp.float32), self.router.get_value())
        logits = logits + self.router_bias[...] if e.biases else logits
        scores = jax.nn.softmax(logits) if e.scoring == "softmax" else jax.nn.sigmoid(logits)
        choice = scores + self.correction[...] if e.correction_bias else scores
        if e.groups > 1:
            grouped = choice.reshape(-1, e.groups, e.num_experts // e.groups)
            best = jnp.sum(jax.lax.top_k(grouped, e.group_top)[0], axis=-1)
            allowed = jax.nn.one_hot(jax.lax.top_k(best, e.groups_per_token)[1], e.groups)
            allowed = jnp.any(allowed > 0, axis=1)
            choice = jnp.where(allowed[:, :, None], grouped, -jnp.inf).reshape(choice.shape)
        chosen = jax.lax.top_k(choice, e.per_token)[1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if e.normalize:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + e.floor)
        return chosen, weights * e.scale, logits

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        """[B, T, D] to the same."""
        # routing sorts tokens: those of all devices would have to come together first
        graph, weights = nnx.split(self)
        return layout.by_rows(lambda weights, x: nnx.merge(graph, weights).mix(x)[0])(weights, x)

    def routed(self, x: jax.Array, layout: Layout) -> tuple[jax.Array, Routing]:
        """As a call, with what the router did."""
        graph, weights = nnx.split(self)
        return layout.by_rows(lambda weights, x: nnx.merge(graph, weights).mix(x))(weights, x)

    def mix(self, x: jax.Array) -> tuple[jax.Array, Routing]:
        """[B, T, D] to the same, on one device, and what the router did."""
        chosen, weights, logits = self.route(x.reshape(-1, x.shape[-1]))
        y = self.spread(x, chosen, weights)
        y = y + self._shared(x) if self.config.experts.shared_size else y
        return y, Routing(*(a.reshape(*x.shape[:2], -1) for a in (logits, chosen)))

    def spread(self, x: jax.Array, chosen: jax.Array, weights: jax.Array) -> jax.Array:
        """What experts add to [B, T, D], chosen and weighted for each token as by `route`."""
        e, tokens = self.config.experts, x.reshape(-1, x.shape[-1])
        order = jnp.argsort(chosen.reshape(-1))  # tokens of one expert become one run of rows
        source = order // e.per_token
        sizes = jnp.bincount(chosen.reshape(-1), length=e.num_experts)
        rows, row_expert = tokens[source], chosen.reshape(-1)[order]
        up = project_ragged(rows, self.up.get_value(), sizes)
        gate = up if self.config.self_gated else project_ragged(rows, self.gate.get_value(), sizes)
        if e.biases:
            gate = gate + self.gate_bias[...].astype(x.dtype)[row_expert]
            up = up + self.up_bias[...].astype(x.dtype)[row_expert]
        rows = project_ragged(self._gate(gate, up), self.down.get_value(), sizes)
        rows = rows + self.down_bias[...].astype(x.dtype)[row_expert] if e.biases else rows
        rows = rows * weights.reshape(-1)[order, None].astype(x.dtype)
        return jnp.zeros_like(tokens).at[source].add(rows).reshape(x.shape)

    def _gate(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        e = self.config.experts
        if e.clamp is None:
            return _activate(self.config, gate) * up
        gate, up = jnp.minimum(gate, e.clamp), jnp.clip(up, -e.clamp, e.clamp)
        return (up + 1) * gate * jax.nn.sigmoid(e.sharpness * gate)

    def _shared(self, x: jax.Array) -> jax.Array:
        """What the expert that every token passes adds, [B, T, D]."""
        y, gated = self.shared(x), self.config.experts.shared_gate
        return y * jax.nn.sigmoid(project(x, self.shared_gate[...].T)) if gated else y


def make_mlp(config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> MLP | ExpertMLP:
    """The MLP of a layer."""
    size = config.intermediate_size
    return ExpertMLP(config, rngs=rngs) if routed else MLP(config, size, rngs=rngs)


class Block(nnx.Module):
    """One layer: attention and an MLP, dense or routed, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.config = config
        norm = functools.partial(Norm, config, (config.hidden_size,), ("embed",))
        self.attention = (LatentAttention if config.latent else Attention)(config, rngs=rngs)
        self.mlp = make_mlp(config, routed=routed, rngs=rngs)
        if config.pre_norm:
            self.attention_norm, self.mlp_norm = norm(), norm()
        if config.post_norm:
            self.attention_post_norm, self.mlp_post_norm = norm(), norm()

    def look(
        self, x: jax.Array, table: jax.Array, scale: jax.Array | None = None
    ) -> tuple[Queries, Memory]:
        """Queries, and what is to be remembered, of the residual stream x [B, T, D].

        `scale` [B, T, 1, 1] is a factor on the queries; None: 1.
        """
        x = self.attention_norm(x) if self.config.pre_norm else x
        return self.attention.look(x, table, scale)

    def finish(
        self, x: jax.Array, q: Queries, memory: Memory, mask: Mask, layout: Layout
    ) -> jax.Array:
        """The residual stream [B, T, D] after the layer, given queries and what they may see."""
        x = self._attended(x, q, memory, mask, layout)
        y = self.mlp(self.mlp_norm(x) if self.config.pre_norm else x, layout)
        return self._add(x, self.mlp_post_norm(y) if self.config.post_norm else y)

    def finish_routed(
        self, x: jax.Array, q: Queries, memory: Memory, mask: Mask, layout: Layout
    ) -> tuple[jax.Array, Routing]:
        """As `finish`, of a layer with experts, with what its router did."""
        x = self._attended(x, q, memory, mask, layout)
        y, routing = self.mlp.routed(self.mlp_norm(x) if self.config.pre_norm else x, layout)
        return self._add(x, self.mlp_post_norm(y) if self.config.post_norm else y), routing

    def _attended(
        self, x: jax.Array, q: Queries, memory: Memory, mask: Mask, layout: Layout
    ) -> jax.Array:
        y = self.attention.read(q, memory, mask, layout)
        return self._add(x, self.attention_post_norm(y) if self.config.post_norm else y)

    def _add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x + (y if self.config.residual_scale == 1 else y * self.config.residual_scale)
