"""The prefix cache: beginnings of prompts that were read before are not read again.

Prompts are cut into blocks of `SamplerConfig.prefix_block` tokens. What the layers remember of a
block, keys and values of its tokens and recurrent states at its end, lies in a page of a pool. A
block is named by the one before it, or by the adapter, and by its tokens; all blocks are of one set
of weights. `admission.prefill_cached` reads prompts with it.

A block is read by one program that has no other input than its tokens and what is before it. So
whether it is read or found, now or after it was evicted, its page is the same to the last bit.

On several devices each part of the slots, see `slots`, has blocks and pages of its own, and reads
its prompts from these: nothing of them is exchanged. Blocks at the same place of prompts of several
parts are read at once, one by each.
Source: the blocks are those of Kwon et al. 2023, "Efficient Memory Management for Large Language
Model Serving with PagedAttention", and the tree of them, whose leaves are evicted first, that of
Zheng et al. 2024, "SGLang: Efficient Execution of Structured Language Model Programs".
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder
from jaxrl.models.mixers import memory
from jaxrl.sampling import decode
from jaxrl.sampling.slots import Caches, Models, constrain_caches, cut, in_line
from jaxrl.types import Params

Name = tuple[int, tuple[int, ...]]
"""The number of the block before it, or minus the adapter, and its tokens."""

_NO_PAGE = np.iinfo(np.int32).max
"""Beyond all pages, so that nothing is written."""


class PrefixBlock(NamedTuple):
    """A block that has been read."""

    number: int
    """From 1; no two blocks ever have the same."""
    page: int


@dataclasses.dataclass
class ShardBlocks:
    """The blocks of one part of the slots; changed in place."""

    blocks: OrderedDict[Name, PrefixBlock] = dataclasses.field(default_factory=OrderedDict)
    """Least recently used first. A block stands after all that continue it, so that none is evicted
    before those."""
    free: list[int] = dataclasses.field(default_factory=list)
    """Pages without a block, numbered from 1 within the part."""
    count: int = 0
    """Blocks that were ever read."""


@dataclasses.dataclass
class Prefixes:
    """The blocks that were read under one set of weights; changed in place."""

    pool: Caches | None = None
    """[shards * (1 + pages), ...] of `prefix_block` positions; page 0 of each shard is empty and
    never written."""
    shape: tuple[Models, int, int, int] | None = None
    """Models, pages of a shard, tokens of a page and shards that the pool is for; None: it must be
    built anew."""
    shards: list[ShardBlocks] = dataclasses.field(default_factory=list)
    """One of each part of the slots."""
    weights: list[weakref.ref[Any]] = dataclasses.field(default_factory=list)
    """Arrays of the parameters that read the blocks."""


def check(mib: int, size: int, models: Models) -> None:
    """Refuse a prefix cache that has no room for a block.

    Args:
      mib: `SamplerConfig.prefix_cache`, more than 0.
      size: `SamplerConfig.prefix_block`.
      models: all that read the tokens.

    Raises:
      ValueError: naming the field and the remedy.
    """
    if not pages(mib, size, models):
        need = math.ceil(2 * page_bytes(models, size) / 2**20)
        raise ValueError(
            f"sampler.prefix_cache={mib} MiB has no room for a block of sampler.prefix_block="
            f"{size} tokens; set it to {need} or more, or lower the block"
        )


def pages(mib: int, size: int, models: Models) -> int:
    """Blocks of `size` tokens that `mib` MiB of a device hold, beside the empty page."""
    return max(0, mib * 2**20 // page_bytes(models, size) - 1)  # one stays empty


@functools.lru_cache(maxsize=64)
def page_bytes(models: Models, size: int) -> int:
    """Bytes of what `models` remember of a block of `size` tokens."""
    page = jax.eval_shape(lambda: [decoder.empty_cache(model, 1, size) for model in models])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(page))


def whole_blocks(mib: int, size: int, models: Models, length: int) -> int:
    """Blocks of a prompt of `length` tokens that are read one by one: those that are whole without
    its last token, which decoding reads, and that the cache has room for.

    It must not depend on what the cache holds, nor on other prompts: what is computed would.
    """
    return min(max(0, length - 1) // size, pages(mib, size, models)) if mib else 0


def follow(prefixes: Prefixes, params: Any, count: int, shards: int) -> None:
    """Forget the blocks of other weights than `params`; the same arrays are the same weights.

    Args:
      prefixes: changed in place.
      params: a pytree of arrays.
      count: of pages of a shard, beside page 0.
      shards: parts of the slots.
    """
    leaves = jax.tree.leaves(params)
    if len(leaves) != len(prefixes.weights) or any(
        ref() is not leaf for ref, leaf in zip(prefixes.weights, leaves, strict=True)
    ):
        prefixes.weights = [weakref.ref(leaf) for leaf in leaves]
        prefixes.shards = [ShardBlocks(free=list(range(count, 0, -1))) for _ in range(shards)]


def split(tokens: Sequence[int], size: int, count: int) -> list[tuple[int, ...]]:
    """The tokens of the first `count` blocks."""
    return [tuple(tokens[i * size : (i + 1) * size]) for i in range(count)]


def find(shard: ShardBlocks, adapter: int, parts: Sequence[tuple[int, ...]]) -> list[PrefixBlock]:
    """The blocks that a prompt of `parts` begins with, as far as they have been read.

    They become the most recently used.
    """
    path = list[tuple[Name, PrefixBlock]]()
    parent = -adapter
    for part in parts:
        block = shard.blocks.get((parent, part))
        if block is None:
            break
        path.append(((parent, part), block))
        parent = block.number
    for name, _ in reversed(path):
        shard.blocks.move_to_end(name)
    return [block for _, block in path]


def add(
    shard: ShardBlocks, adapter: int, path: Sequence[PrefixBlock], parts: Sequence[tuple[int, ...]]
) -> PrefixBlock:
    """The block after those of `path`, in a page that it takes from the least recently used block.

    Args:
      shard: changed in place.
      adapter: of the prompt.
      path: blocks of the prompt; there must be more pages.
      parts: tokens of the blocks of `path` and of this one, and more.
    """
    if not shard.free:
        _, evicted = shard.blocks.popitem(last=False)
        shard.free.append(evicted.page)
    shard.count += 1
    block = PrefixBlock(shard.count, shard.free.pop())
    numbers = [-adapter, *(block.number for block in path)]
    shard.blocks[numbers[-1], parts[len(path)]] = block
    for name in reversed(list(zip(numbers, parts, strict=False))[: len(path)]):
        shard.blocks.move_to_end(name)
    return block


@functools.partial(jax.jit, static_argnames=("models", "window"), donate_argnames="pool")
def read_block(
    models: Models,
    params: tuple[Params, ...],
    pool: Caches,
    tokens: jax.Array,
    before: jax.Array,
    count: jax.Array,
    target: jax.Array,
    adapter: jax.Array,
    *,
    window: int,
) -> Caches:
    """The pool of the prefix cache with one more block of a prompt of each part.

    It is read as one row of each device by a program of its own, so that what is computed depends
    on the block's tokens and on those before it alone, to the last bit.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      pool: donated; caches whose rows are pages of B positions, those of N parts one after another.
        Page 0 of a part is empty.
      tokens: [N, B] int32.
      before: [N, window - 1] int32, pages of the blocks before it in order, then 0.
      count: scalar int32, how many blocks are before it.
      target: [N] int32, the page that is written; one beyond those of a part: none.
      adapter: [N] int32, `Request.adapter`.
      window: static, blocks that attention reads: more than `count`, and 1 only where it is 0.
    """
    shards, size = tokens.shape
    start = count * size
    before = jnp.pad(before, ((0, 0), (0, 1)))
    last = jnp.where(count > 0, before[:, count - 1], 0)

    def line(pages: jax.Array) -> jax.Array:
        return jax.vmap(in_line)(cut(pages, shards), before)

    def state(states: jax.Array) -> jax.Array:
        return jax.vmap(lambda pages, page: pages[page])(cut(states, shards), last)

    caches = memory.by_kind(line, state, pool)
    positions = jnp.broadcast_to(start + jnp.arange(size), tokens.shape)
    chosen = decode.choose(params, adapter)
    _, caches = decode.extend(models, chosen, tokens, positions, caches, from_start=window == 1)

    def put_state(states: jax.Array, new: jax.Array) -> jax.Array:
        put_page = jax.vmap(lambda pages, page, value: pages.at[page].set(value, mode="drop"))
        return put_page(cut(states, shards), target, new).reshape(states.shape)

    def put(pages: jax.Array, new: jax.Array) -> jax.Array:
        return put_state(pages, jax.lax.dynamic_slice_in_dim(new, start, size, axis=2))

    return constrain_caches(models, memory.by_kind(put, put_state, pool, caches))


def read_blocks(
    prefixes: Prefixes,
    models: Models,
    params: tuple[Params, ...],
    openings: Sequence[Sequence[tuple[int, ...]]],
    paths: Sequence[list[PrefixBlock]],
    adapter: np.ndarray,
) -> int:
    """Read the blocks of a prompt of each part that have not been read, and add them to its path.

    Blocks at one place are read at once, so that all have the same window, whatever the others are.

    Args:
      prefixes: changed in place.
      models: all that read the tokens.
      params: of each.
      openings: the tokens of all blocks, by part.
      paths: what was found of them; changed in place.
      adapter: [N] int32, of the prompts.

    Returns:
      How many were read.
    """
    count = 0
    for place in range(min(map(len, paths)), max(map(len, openings))):
        size = len(next(opening for opening in openings if opening)[0])
        tokens = np.zeros((len(paths), size), np.int32)
        target = np.full(len(paths), _NO_PAGE, np.int32)
        window = round_up(place + 1, 1)
        before = pages_of([path[:place] for path in paths], window - 1)
        parts = zip(prefixes.shards, openings, paths, strict=True)
        for p, (shard, opening, path) in enumerate(parts):
            if len(path) == place < len(opening):
                block = add(shard, int(adapter[p]), path, opening)
                tokens[p], target[p] = opening[place], block.page
                path.append(block)
                count += 1
        if (target != _NO_PAGE).any():
            prefixes.pool = read_block(
                models, params, prefixes.pool, tokens, before, np.int32(place), target, adapter,
                window=window,
            )  # fmt: skip
    return count


def pages_of(paths: Sequence[Sequence[PrefixBlock]], count: int) -> np.ndarray:
    """Pages of the blocks of each path, [N, count] int32; beyond them the empty one."""
    pages = np.zeros((len(paths), count), np.int32)
    for row, path in zip(pages, paths, strict=True):
        row[: len(path)] = [block.page for block in path]
    return pages
