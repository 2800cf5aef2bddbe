"""What a paged cache would buy: a decoding step's attention over pages, against a dense cache.

    python -m tests.benchmarks.paged

Attention of 30 layers of SmolLM2-135M's shape, 16 sequences, fp32, one query each. `dense` is the
sampler's layout, as wide as the longest sequence needs. `gathered` looks each sequence's pages up
in a table and attends over the copy. `in place` attends every page where it lies and adds up the
parts of each sequence: nothing is copied, and nothing but whole pages is read.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up

LAYERS, SLOTS, HEADS, GROUPS, SIZE = 30, 16, 3, 3, 64
LENGTHS = {
    "equal, 48 tokens": [48] * SLOTS,
    "a tail: 250, 120, 90 and 13 of 48 tokens": [250, 120, 90] + [48] * 13,
    "a tail: 500 and 15 of 48 tokens": [500] + [48] * 15,
}


def _dense(q: jax.Array, k: jax.Array, v: jax.Array, length: jax.Array) -> jax.Array:
    """[S, K, G, H] of queries like it and k, v [S, K, W, H]."""
    scores = jnp.einsum("skgh,skwh->skgw", q, k)
    seen = jnp.arange(k.shape[2]) < length[:, None]
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e30), axis=-1)
    return jnp.einsum("skgw,skwh->skgh", weights, v)


def _gathered(
    q: jax.Array, k: jax.Array, v: jax.Array, length: jax.Array, table: jax.Array
) -> jax.Array:
    """The same of pages k, v [N, K, P, H] and a table [S, W / P]."""

    def look_up(pages: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(pages[table], 2, 1)  # [S, K, W / P, P, H]
        return rows.reshape(*rows.shape[:2], -1, SIZE)

    return _dense(q, look_up(k), look_up(v), length)


def _in_place(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    length: jax.Array,
    owner: jax.Array,
    start: jax.Array,
) -> jax.Array:
    """The same of pages k, v [N, K, P, H] that belong to sequence `owner` [N] from `start` [N]."""
    scores = jnp.einsum("nkgh,nkph->nkgp", q[owner], k)
    seen = start[:, None] + jnp.arange(k.shape[2]) < length[owner][:, None]
    scores = jnp.where(seen[:, None, None], scores, -1e30)
    top = jnp.max(scores, axis=-1)
    mine = owner == jnp.arange(SLOTS)[:, None]  # [S, N]
    best = jnp.max(jnp.where(mine[:, :, None, None], top, -1e30), axis=1)
    weights = jnp.exp(scores - best[owner][..., None])
    parts = jnp.einsum("nkgp,nkph->nkgh", weights, v)
    both = jnp.concatenate([parts, jnp.sum(weights, axis=-1, keepdims=True)], axis=-1)
    total = jnp.tensordot(mine.astype(jnp.float32), both, axes=1)
    return total[..., :-1] / total[..., -1:]


def _milliseconds(
    attend: Callable[..., jax.Array], caches: list, q: jax.Array, extra: tuple
) -> float:
    """Median of a step over all layers."""

    @jax.jit
    def step(caches: list, q: jax.Array, extra: tuple) -> jax.Array:
        for k, v in caches:
            q = q + attend(q, k, v, *extra)
        return q

    times = []
    for _ in range(21):
        began = time.perf_counter()
        step(caches, q, extra).block_until_ready()
        times.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(times[1:]), 2)


def main() -> None:
    """A line of JSON for each mix of lengths and layout."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    q = normal(SLOTS, HEADS, GROUPS, SIZE) / 8
    for name, values in LENGTHS.items():
        length = jnp.asarray(values)
        width = round_up(max(values) + 1, 64)
        rows = {"dense": (SLOTS * width, _dense, (SLOTS, HEADS, width, SIZE), (length,))}
        for page in (16, 64):
            used = [-(-n // page) for n in values]
            table = np.zeros((SLOTS, width // page), np.int32)
            ends = np.cumsum(used)
            for row, (last, n) in enumerate(zip(ends, used, strict=True)):
                table[row, :n] = np.arange(last - n, last)
            owner = np.repeat(np.arange(SLOTS), used)
            start = np.concatenate([np.arange(n) * page for n in used])
            pages = (len(owner), HEADS, page, SIZE)
            tokens = len(owner) * page
            rows[f"gathered, pages of {page}"] = (tokens, _gathered, pages, (length, table))
            rows[f"in place, pages of {page}"] = (tokens, _in_place, pages, (length, owner, start))
        for layout, (tokens, attend, shape, extra) in rows.items():
            caches = [(normal(*shape), normal(*shape)) for _ in range(LAYERS)]
            spent = _milliseconds(attend, caches, q, extra)
            figures = {"lengths": name, "layout": layout, "tokens_held": tokens, "ms": spent}
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
