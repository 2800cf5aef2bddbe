"""The jitted sampler: a fixed set of slots, refilled between chunks of decoding.

`prefill` runs each distinct prompt once. `insert` copies its cache into as many slots as it has
samples. `decode` advances all live slots until enough of them have finished. `generate` is the host
loop around the three; it compiles nothing new once each bucket has been seen.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl import sampling
from jaxrl.types import Completion, Params, Request
from models import decoder, head
from models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """How the sampler uses memory. None of it changes what is sampled."""

    slots: int = 64
    """Sequences decoded at once."""
    prefill_rows: int = 8
    """Prompts prefilled at once."""
    chunk: int = 64
    """Most tokens a slot advances between two looks from the host."""
    bucket: int = 64
    """Cache lengths and attention windows are rounded up to powers of two times this."""


@struct.dataclass
class SlotState:
    """S sequences in progress, of up to M tokens."""

    cache: tuple[decoder.LayerCache, ...]
    tokens: jax.Array
    """[S, M] int32, prompt first."""
    logp: jax.Array
    """[S, M] float32 at sampled tokens."""
    entropy: jax.Array
    """[S, M] float32 at sampled tokens."""
    version: jax.Array
    """[S, M] int32 at sampled tokens."""
    length: jax.Array
    """[S] int32, tokens so far."""
    limit: jax.Array
    """[S] int32, the length at which the sequence is cut off."""
    request: jax.Array
    """[S] uint32, the request's id, which names its random stream."""
    live: jax.Array
    """[S] bool."""
    settings: sampling.Sampling


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty_slots(config: DecoderConfig, slots: int, length: int) -> SlotState:
    """All slots free."""
    ints = jnp.zeros((slots, length), jnp.int32)
    floats = jnp.zeros((slots, length), jnp.float32)
    row = jnp.zeros(slots, jnp.int32)
    return SlotState(
        cache=decoder.empty_cache(config, slots, length),
        tokens=ints,
        logp=floats,
        entropy=floats,
        version=ints,
        length=row,
        limit=row,
        request=row.astype(jnp.uint32),
        live=row.astype(bool),
        settings=sampling.Sampling(
            temperature=row.astype(jnp.float32),
            top_k=row,
            top_p=row.astype(jnp.float32),
            min_p=row.astype(jnp.float32),
        ),
    )


@functools.partial(jax.jit, static_argnames="config")
def prefill(
    config: DecoderConfig, params: Params, tokens: jax.Array, length: jax.Array
) -> tuple[decoder.LayerCache, ...]:
    """Caches of prompts [B, P] of true `length` [B], padded on the right."""
    index = jnp.arange(tokens.shape[1])
    positions = jnp.where(index < length[:, None], index, tokens.shape[1])
    cache = decoder.empty_cache(config, *tokens.shape)
    return decoder.extend(config, params, tokens, positions, cache, window=tokens.shape[1])[1]


@functools.partial(jax.jit, donate_argnames="slots")
def insert(
    slots: SlotState,
    prefix: tuple[decoder.LayerCache, ...],
    source: jax.Array,
    target: jax.Array,
    rows: dict[str, Any],
) -> SlotState:
    """Start sequences: prompt `source[i]` of `prefix` goes to slot `target[i]`.

    Args:
      slots: donated.
      prefix: caches as from `prefill`, [B, P, ...].
      source: [S] int32 rows of the prefix.
      target: [S] int32 slots; one beyond the last is a no-op.
      rows: the new `tokens` [S, P], `length`, `limit`, `request` and `settings`, each [S].
    """
    width = rows["tokens"].shape[1]

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[target].set(new, mode="drop")

    return slots.replace(
        cache=jax.tree.map(
            lambda old, new: old.at[target, :width].set(new[source], mode="drop"),
            slots.cache,
            prefix,
        ),
        tokens=slots.tokens.at[target, :width].set(rows["tokens"], mode="drop"),
        length=put(slots.length, rows["length"]),
        limit=put(slots.limit, rows["limit"]),
        request=put(slots.request, rows["request"]),
        live=put(slots.live, jnp.ones_like(target, bool)),
        settings=jax.tree.map(put, slots.settings, rows["settings"]),
    )


@jax.jit
def compact(slots: SlotState, keep: jax.Array) -> SlotState:
    """The slots `keep` [s] alone, so that a long tail does not pay for finished neighbours."""
    return jax.tree.map(lambda a: a[keep], slots)


@functools.partial(
    jax.jit, static_argnames=("config", "window", "truncate"), donate_argnames="slots"
)
def decode(
    config: DecoderConfig,
    params: Params,
    slots: SlotState,
    *,
    key: jax.Array,
    version: jax.Array,
    stop_ids: jax.Array,
    steps: jax.Array,
    min_live: jax.Array,
    window: int,
    truncate: bool,
) -> SlotState:
    """Advance every live slot by up to `steps` tokens, while at least `min_live` are live.

    Args:
      config: the decoder's shape.
      params: as from `decoder.unstack`.
      slots: donated.
      key: the run's sampling key; a token's own key folds in its request's id and its position.
      version: scalar int32, the policy version of `params`.
      stop_ids: [E] int32, tokens that end a sequence.
      steps: scalar int32.
      min_live: scalar int32, at least 1.
      window: static, at least the greatest live length after `steps` tokens.
      truncate: static, whether any slot uses top-k, top-p or min-p.
    """
    rows = jnp.arange(slots.length.shape[0])
    capacity = slots.tokens.shape[1]
    stream = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, slots.request)

    def running(carry: tuple[jax.Array, SlotState]) -> jax.Array:
        taken, s = carry
        return (taken < steps) & (jnp.sum(s.live) >= min_live)

    def advance(carry: tuple[jax.Array, SlotState]) -> tuple[jax.Array, SlotState]:
        taken, s = carry
        last = s.length - 1
        position = jnp.where(s.live, last, capacity)
        hidden, cache = decoder.extend(
            config, params, s.tokens[rows, last][:, None], position[:, None], s.cache, window=window
        )
        logits = head.logits(
            hidden[:, 0], decoder.unembedding(params), softcap=config.logit_softcap
        )
        keys = jax.vmap(jax.random.fold_in)(stream, s.length)
        token, logp, entropy = sampling.sample(logits, s.settings, keys, truncate=truncate)
        at = (rows, jnp.where(s.live, s.length, capacity))
        length = s.length + s.live
        ended = jnp.isin(token, stop_ids) | (length >= s.limit)
        return taken + 1, s.replace(
            cache=cache,
            tokens=s.tokens.at[at].set(token, mode="drop"),
            logp=s.logp.at[at].set(logp, mode="drop"),
            entropy=s.entropy.at[at].set(entropy, mode="drop"),
            version=s.version.at[at].set(version, mode="drop"),
            length=length,
            live=s.live & ~ended,
        )

    return jax.lax.while_loop(running, advance, (jnp.int32(0), slots))[1]


def round_up(length: int, bucket: int) -> int:
    """The least power of two times `bucket` that holds `length`."""
    size = bucket
    while size < length:
        size *= 2
    return size


def generate(
    config: DecoderConfig,
    params: Params,
    requests: Sequence[Request],
    *,
    stop_ids: Sequence[int],
    key: jax.Array,
    version: int = 0,
    sampler: SamplerConfig = SamplerConfig(),
    max_prompt: int = 0,
    max_length: int = 0,
) -> Iterator[Completion]:
    """Sample all requests; yields each completion as soon as it is finished.

    Requests that share a prompt should stand together: the prompt is then prefilled once.

    Args:
      config: the decoder's shape.
      params: as from `decoder.unstack`, in the dtype to sample in.
      requests: any number, of any lengths.
      stop_ids: tokens that end a sequence.
      key: typed PRNG key.
      version: policy version recorded with each token.
      sampler: memory layout.
      max_prompt: longest prompt of any call, so that calls share compiled shapes; 0: of this one.
      max_length: longest prompt plus completion of any call, likewise.

    Raises:
      ValueError: a request that is empty, or does not fit `config.max_positions`.
    """
    check_requests(config, requests)
    if not requests:
        return
    max_prompt = max(max_prompt, *(len(r.prompt) for r in requests))
    max_length = max(max_length, *(len(r.prompt) + r.max_new_tokens for r in requests))
    prompt_width = round_up(max_prompt, 16)
    capacity = max(prompt_width, round_up(max_length, sampler.bucket))
    truncate = any(r.top_k or r.top_p < 1 or r.min_p for r in requests)
    stops = jnp.asarray(stop_ids, jnp.int32)
    queue = deque(requests)
    slots = empty_slots(config, min(sampler.slots, round_up(len(queue), 4)), capacity)
    occupants: list[Request | None] = [None] * slots.length.shape[0]
    length = np.zeros(len(occupants), np.int64)

    while queue or any(occupants):
        free = [i for i, r in enumerate(occupants) if r is None]
        while queue and free:
            slots, free = _admit(
                config, params, slots, queue, free, occupants, length, prompt_width, sampler
            )
        live = len(occupants) - len(free)
        if live <= len(occupants) // 2 and len(occupants) > 4:
            keep = [i for i, r in enumerate(occupants) if r is not None]
            keep = (keep + free)[: round_up(live, 4)]
            slots = compact(slots, jnp.asarray(keep, jnp.int32))
            occupants, length = [occupants[i] for i in keep], length[keep]
        longest = max(n for n, r in zip(length, occupants, strict=True) if r is not None)
        window = min(round_up(int(longest) + 1, sampler.bucket), capacity)
        # Refill or halve as soon as it pays: a quarter free with work waiting, half free without.
        min_live = max(1, live - len(occupants) // 4 + 1 if queue else len(occupants) // 2 + 1)
        slots = decode(
            config,
            params,
            slots,
            key=key,
            version=jnp.int32(version),
            stop_ids=stops,
            steps=jnp.int32(min(sampler.chunk, window - int(longest))),
            min_live=jnp.int32(min(min_live, live) if len(occupants) > 4 or queue else 1),
            window=window,
            truncate=truncate,
        )
        still, length = (np.array(a) for a in jax.device_get((slots.live, slots.length)))
        ended = [i for i, r in enumerate(occupants) if r is not None and not still[i]]
        if ended:
            arrays = jax.device_get((slots.tokens, slots.logp, slots.entropy, slots.version))
            for i in ended:
                request, occupants[i] = occupants[i], None
                yield _completion(request, [a[i] for a in arrays], int(length[i]), stop_ids)


def check_requests(config: DecoderConfig, requests: Sequence[Request]) -> None:
    """Refuse what cannot be sampled, before anything is compiled."""
    for r in requests:
        if not r.prompt:
            raise ValueError(f"request {r.id}: prompt is empty; give it at least one token (BOS)")
        if r.max_new_tokens < 1:
            raise ValueError(
                f"request {r.id}: max_new_tokens={r.max_new_tokens}; ask for 1 or more"
            )
        total = len(r.prompt) + r.max_new_tokens
        if total > config.max_positions:
            raise ValueError(
                f"request {r.id}: {len(r.prompt)} prompt tokens + max_new_tokens="
                f"{r.max_new_tokens} exceed max_positions={config.max_positions} of the model; "
                "shorten the prompt or ask for fewer tokens"
            )
        if max(r.prompt) >= config.vocab_size or min(r.prompt) < 0:
            raise ValueError(
                f"request {r.id}: token {max(r.prompt)} is outside the model's vocabulary of "
                f"{config.vocab_size}; use the tokenizer that belongs to the model"
            )


def _admit(
    config: DecoderConfig,
    params: Params,
    slots: SlotState,
    queue: deque[Request],
    free: list[int],
    occupants: list[Request | None],
    length: np.ndarray,
    prompt_width: int,
    sampler: SamplerConfig,
) -> tuple[SlotState, list[int]]:
    """Move requests of up to `prefill_rows` distinct prompts from the queue into free slots."""
    rows, total = sampler.prefill_rows, len(occupants)
    prompts: dict[tuple[int, ...], int] = {}
    taken: list[Request] = []
    while queue and len(taken) < len(free):
        prompt = queue[0].prompt
        if prompt not in prompts and len(prompts) == rows:
            break
        prompts.setdefault(prompt, len(prompts))
        taken.append(queue.popleft())

    tokens = np.zeros((rows, prompt_width), np.int32)
    lengths = np.zeros(rows, np.int32)
    for prompt, row in prompts.items():
        tokens[row, : len(prompt)] = prompt
        lengths[row] = len(prompt)
    source = np.zeros(total, np.int32)
    target = np.full(total, total, np.int32)
    source[: len(taken)] = [prompts[r.prompt] for r in taken]
    target[: len(taken)] = free[: len(taken)]

    def column(values: list[Any], dtype: Any) -> np.ndarray:
        return np.array(values + [0] * (total - len(values)), dtype)

    new = {
        "tokens": tokens[source],
        "length": lengths[source],
        "limit": column([len(r.prompt) + r.max_new_tokens for r in taken], np.int32),
        "request": column([r.id & 0xFFFFFFFF for r in taken], np.uint32),
        "settings": sampling.Sampling(
            temperature=column([r.temperature for r in taken], np.float32),
            top_k=column([r.top_k for r in taken], np.int32),
            top_p=column([r.top_p for r in taken], np.float32),
            min_p=column([r.min_p for r in taken], np.float32),
        ),
    }
    prefix = prefill(config, params, tokens, lengths)
    slots = insert(slots, prefix, source, target, new)
    for request, slot in zip(taken, free, strict=False):
        occupants[slot] = request
        length[slot] = len(request.prompt)
    return slots, free[len(taken) :]


def _completion(
    request: Request, arrays: list[np.ndarray], length: int, stop_ids: Sequence[int]
) -> Completion:
    tokens, logp, entropy, version = (a[len(request.prompt) : length].copy() for a in arrays)
    return Completion(request, tokens, logp, entropy, version, int(tokens[-1]) in stop_ids)
