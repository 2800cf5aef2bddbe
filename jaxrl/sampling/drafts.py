"""Drafts of the next tokens, and when it pays to verify them.

By lookup, the draft is what followed the last tokens of a sequence where they stood before: in its
prompt or in what was sampled, or in completions of the same prompt that have ended (`Texts`), in
this step or before. Else a small model samples it, or the first layers of the policy do: a
`Drafter`. `decode` verifies a draft in one pass over the models, see there. Which pass is made
changes no token: it follows from the sequences and from these texts, so that a run that is repeated
or continued makes the same passes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models.config import DecoderConfig
from jaxrl.sampling.slots import Models, SlotState
from jaxrl.types import Array, Completion, Params, Request

_SHORTEST, _LONGEST = 2, 4
"""Last tokens that must have stood before, and the most that are compared in the sequence."""
_LONGEST_BESIDE = 8
"""Most that are compared in another completion, which is preferred where more are equal there."""
_TRUST = 6.0
"""Tokens of a drafter taken to have been right when a chunk begins, as none can be judged then."""
_JUDGED = 16
"""Last tokens of a sequence whose drafts are judged when a chunk begins."""
_RIDGE = {"cpu": 16}
"""Rows of a pass whose arithmetic takes as long as reading the weights, by platform."""
_RIDGE_OF_OTHERS = 256
_PROMPTS = 4096
"""Most prompts whose completions are kept."""
_TOKENS = 2**24
"""Most tokens that are kept of completions."""
SOURCES = 2
"""Where drafts are found: in the sequence, and in completions of the same prompt."""


@dataclasses.dataclass
class Texts:
    """Completions that have ended, by adapter and prompt; changed in place."""

    by_prompt: OrderedDict[tuple[int, bytes], list[np.ndarray]] = dataclasses.field(
        default_factory=OrderedDict
    )
    """By adapter and int32 tokens; least recently written first. Of each prompt, its last tokens
    and a completion, int32 that nothing changes, the oldest first."""


def _name(request: Request) -> tuple[int, bytes]:
    return request.adapter, np.array(request.prompt, np.int32).tobytes()


def remember(texts: Texts, completion: Completion, room: int) -> None:
    """Keep a completion, and forget what there is no room for.

    One that another continues, as a turn of an episode, is kept as part of that.

    Args:
      texts: changed in place.
      completion: that has ended, or a turn of it.
      room: tokens that are kept of a prompt's completions, the newest.
    """
    request = completion.request
    name = _name(request)
    end = np.array(request.prompt[-_LONGEST_BESIDE:], np.int32)
    new = np.concatenate([end, completion.tokens], dtype=np.int32)[: room - 1]
    prompt_texts = [
        text for text in texts.by_prompt.pop(name, ()) if not np.array_equal(new[: len(text)], text)
    ]
    prompt_texts.append(new)
    while sum(len(t) + 1 for t in prompt_texts) > room:
        del prompt_texts[0]
    texts.by_prompt[name] = prompt_texts
    while len(texts.by_prompt) > max(1, min(_PROMPTS, _TOKENS // room)):
        texts.by_prompt.popitem(last=False)


def lay_out(texts: Texts, requests: Sequence[Request | None], room: int) -> np.ndarray:
    """What is kept of the prompts of requests, [S, room] int32, with -1 behind each completion.

    Where the room was greater as they were kept, the newest tokens are taken.
    """
    rows = np.full((len(requests), room), -1, np.int32)
    for row, request in zip(rows, requests, strict=True):
        prompt_texts = texts.by_prompt.get(_name(request), ()) if request else ()
        if prompt_texts:
            joined = np.concatenate([np.append(text, np.int32(-1)) for text in prompt_texts])
            row[: len(joined)] = joined[-room:]
    return rows


def get_state(texts: Texts) -> list[list[Any]]:
    """The completions as JSON values and arrays, for a checkpoint."""
    return [
        [adapter, np.frombuffer(prompt, np.int32), list(prompt_texts)]
        for (adapter, prompt), prompt_texts in texts.by_prompt.items()
    ]


def set_state(texts: Texts, saved: Sequence[Sequence[Any]]) -> None:
    """Continue from what `get_state` gave."""
    texts.by_prompt.clear()
    for adapter, prompt, prompt_texts in saved:
        name = int(adapter), np.asarray(prompt, np.int32).tobytes()
        texts.by_prompt[name] = [np.asarray(text, np.int32) for text in prompt_texts]


class Draft(NamedTuple):
    """Tokens that S sequences may continue with."""

    tokens: jax.Array
    """[S, K] int32."""
    size: jax.Array
    """[S] int32, how many of them are to be verified."""
    source: jax.Array
    """[S] int32, 0: found in the sequence; 1: in a completion of the same prompt."""


class DraftModel(NamedTuple):
    """A model that drafts for the policy, whose tokens it has."""

    model: DecoderConfig
    params: Params
    """As from `decoder.unstack`."""


class Drafter(NamedTuple):
    """What samples drafts: one of the models of a pass, or the first layers of it."""

    model: int
    """Its place among the models; 0 is the policy, whose caches and parameters are then used."""
    layers: int
    """How many of its layers."""


class _Progress(NamedTuple):
    """A loop of decoding between two passes."""

    slots: SlotState
    draft: Draft
    record: jax.Array
    """[S, SOURCES, 2] float32, draft tokens that were judged, and those of them that were drawn."""
    goes_on: jax.Array
    """Scalar bool."""
    pays: jax.Array
    """Scalar bool, whether the next pass is to verify the drafts."""


Advance = Callable[[SlotState, Draft], tuple[SlotState, jax.Array]]
"""A pass over the models: the slots after it, and the tokens that each of them has drawn."""
Propose = Callable[[SlotState], tuple[jax.Array, SlotState]]
"""Drafts [S, K] int32 of a drafter, and the slots, whose caches it has written to."""


def none(slots: int) -> Draft:
    """No draft for any slot."""
    zeros = jnp.zeros(slots, jnp.int32)
    return Draft(jnp.zeros((slots, 0), jnp.int32), zeros, zeros)


def lookup(tokens: jax.Array, length: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """What followed the last tokens of a sequence where they stood before.

    It is looked for where most of the last `_LONGEST` tokens stand, at least `_SHORTEST`, and there
    at the last such place. A continuation that reaches the end begins again, as a period does.

    Args:
      tokens: [M] int32.
      length: scalar int32, tokens of the sequence, 1 or more; those beyond are void.
      count: static.

    Returns:
      [count] int32, and how many of the last tokens stood there, scalar int32; where that is 0, the
      tokens mean nothing.
    """
    last = length - 1
    before = jnp.arange(tokens.shape[0]) < last
    place, run = _longest(tokens, before, tokens, last, most=_LONGEST)
    period = jnp.maximum(last - place, 1)
    return tokens[place + 1 + jnp.arange(count) % period], run


def lookup_beside(
    text: jax.Array, tokens: jax.Array, length: jax.Array, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What followed the last tokens of a sequence where they stand in a text.

    Args:
      text: [R] int32, -1 behind each of its parts.
      tokens: [M] int32.
      length: scalar int32, tokens of the sequence, 1 or more.
      count: static.

    Returns:
      [count] int32, how many of them are of the text, and the second of `lookup`.
    """
    after = jnp.pad(text, (0, count), constant_values=-1)
    followed = after[1 : text.shape[0] + 1] >= 0
    place, run = _longest(text, followed, tokens, length - 1, most=_LONGEST_BESIDE)
    draft = after[place + 1 + jnp.arange(count)]
    return draft, jnp.sum(jnp.cumprod(draft >= 0)), run


def _longest(
    text: jax.Array, valid: jax.Array, tokens: jax.Array, last: jax.Array, *, most: int
) -> tuple[jax.Array, jax.Array]:
    """The last of the `valid` places of a text where most of the tokens up to `last` stand.

    Returns:
      The place, and how many tokens up to it are equal: from `_SHORTEST` to `most`, or 0.
    """
    size = text.shape[0]
    places = jnp.arange(size)
    equal, run = valid, jnp.zeros_like(places)
    for back in range(most):
        shifted = jnp.pad(text, (back, 0))[:size]
        equal &= (shifted == tokens[last - back]) & (places >= back) & (last >= back)
        run += equal
    best = jnp.max(jnp.where(run >= _SHORTEST, run * size + places, 0))
    return best % size, best // size


def guess(
    tokens: jax.Array, length: jax.Array, text: jax.Array | None, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A draft for a sequence, from where most of its last tokens stand.

    Args:
      tokens: [M] int32.
      length: scalar int32, 1 or more.
      text: [R] int32 of completions of its prompt, see `lay_out`; None: it is not looked up there.
      count: static, most tokens.

    Returns:
      What `Draft` has of a slot.
    """
    draft, run = lookup(tokens, length, count)
    size, source = jnp.where(run > 0, count, 0), jnp.int32(0)
    if text is None:
        return draft, size, source
    draft_beside, size_beside, run_beside = lookup_beside(text, tokens, length, count)
    better = run_beside > run
    return (
        jnp.where(better, draft_beside, draft),
        jnp.where(better, size_beside, size),
        better.astype(jnp.int32),
    )


def judge(tokens: jax.Array, length: jax.Array, texts: jax.Array | None = None) -> jax.Array:
    """How good drafts of the last `_JUDGED` tokens of sequences would have been.

    Args:
      tokens: [S, M] int32.
      length: [S] int32.
      texts: [S, R] int32, see `guess`.

    Returns:
      [S, SOURCES, 2] float32: tokens that there would have been a draft of, and the right ones of
      them.
    """

    def one(row: jax.Array, size: jax.Array, text: jax.Array | None) -> jax.Array:
        draft, count, source = guess(row, jnp.maximum(size, 1), text, 1)
        present = (count > 0) & (size > 0)
        return _by_source(source, jnp.stack([present, present & (draft[0] == row[size])]))

    def add(back: jax.Array, total: jax.Array) -> jax.Array:
        return total + jax.vmap(one)(tokens, length - back, texts)

    zeros = jnp.zeros((length.shape[0], SOURCES, 2), jnp.float32)
    return jax.lax.fori_loop(1, _JUDGED + 1, add, zeros)


def _by_source(source: jax.Array, counts: jax.Array) -> jax.Array:
    """Counts [..., 2] of drafts of a source [...], as [..., SOURCES, 2] float32."""
    return (jax.nn.one_hot(source, SOURCES)[..., None] * counts[..., None, :]).astype(jnp.float32)


def share(drafter: Drafter | None, params: Sequence[Params]) -> float:
    """Of the bytes of parameters that a pass reads, how many a token of a draft reads.

    Args:
      drafter: None: drafts are looked up.
      params: of all models of a pass.
    """
    if drafter is None:
        return 0.0
    model = params[drafter.model]
    part = {**model, "layers": model["layers"][: drafter.layers]}
    return _read_bytes(part) / sum(map(_read_bytes, params))


def _read_bytes(params: Params) -> int:
    unread = {"embed"} if "head" in params else set()
    read = {name: value for name, value in params.items() if name not in unread}
    return sum(leaf.nbytes for leaf in jax.tree.leaves(read))


def price(models: Models, rows: int, draft_tokens: int, draft_share: float = 0.0) -> float:
    """What making and verifying drafts takes, in passes that verify none.

    A model with recurrent layers then reads what was accepted in a second pass.

    Args:
      models: shapes.
      rows: slots of a device.
      draft_tokens: of each.
      draft_share: see `share`.
    """
    ridge = _RIDGE.get(jax.default_backend(), _RIDGE_OF_OTHERS)
    passes = 2 if any(model.recurrent for model in models) else 1
    verifying = passes * (ridge + rows * (1 + draft_tokens)) / (ridge + rows)
    return verifying + draft_share * draft_tokens


def run(
    advance: Advance,
    slots: SlotState,
    steps: jax.Array,
    min_live: jax.Array,
    cost: Array | float,
    *,
    draft_tokens: int,
    texts: Array | None = None,
    propose: Propose | None = None,
) -> SlotState:
    """Make passes until a sequence has `steps` new tokens or fewer than `min_live` are live.

    Drafts are verified where as many tokens are expected of it as would make up for `cost`: a draft
    token is expected to be right as often as those of its sequence and source were, so that a
    source that does not pay is left alone. A drafter makes its draft once it is known to pay. It is
    trusted when a chunk begins, and where it does not pay then, no more is known of it.

    Args:
      advance: makes a pass.
      slots: with `drafted`.
      steps: scalar int32.
      min_live: scalar int32, at least 1.
      cost: scalar float32, of a pass with drafts, see `price`.
      draft_tokens: static, most tokens of a draft.
      texts: [S, R] int32, see `guess`.
      propose: makes drafts with a drafter; None: they are looked up.
    """
    texts = None if texts is None else jnp.asarray(texts)
    ends = slots.length + steps
    depth = jnp.arange(1, draft_tokens + 1)

    def look(slots: SlotState, record: jax.Array) -> _Progress:
        if propose is None:
            tokens, size, source = jax.vmap(functools.partial(guess, count=draft_tokens))(
                slots.tokens, slots.length, texts
            )
        else:
            tokens = jnp.zeros((*slots.live.shape, draft_tokens), jnp.int32)
            size, source = jnp.full_like(slots.length, draft_tokens), jnp.zeros_like(slots.length)
        room = jnp.minimum(ends, slots.limit) - slots.length - 1
        count = jnp.where(slots.live, jnp.clip(room, 0, size), 0)
        past = jax.vmap(lambda row, at: row[at])(record, source)
        chance = (past[:, 1] + 1) / (past[:, 0] + 2)
        expected = jnp.where(depth <= count[:, None], chance[:, None] ** depth, 0.0)
        full = slots.live & (slots.length >= ends)
        columns = [slots.live, full, jnp.sum(expected, axis=1)]
        live, full_count, gain = jnp.sum(jnp.stack(columns, axis=1), axis=0)  # one exchange
        goes_on = (live >= min_live) & (full_count == 0)
        return _Progress(
            slots, Draft(tokens, count, source), record, goes_on, gain > (cost - 1) * live
        )

    def plain(p: _Progress) -> _Progress:
        slots, _ = advance(p.slots, none(ends.shape[0]))
        token = jax.vmap(lambda row, at: row[at])(slots.tokens, slots.length - 1)
        if propose is not None:  # there was no draft
            return look(slots, p.record)
        judged = p.draft.size > 0
        right = judged & (token == p.draft.tokens[:, 0])
        counts = jnp.stack([judged, right], axis=1)
        return look(slots, p.record + _by_source(p.draft.source, counts))

    def verify(p: _Progress) -> _Progress:
        slots, draft = p.slots, p.draft
        if propose is not None:
            tokens, slots = propose(slots)
            draft = draft._replace(tokens=tokens)
        slots, count = advance(slots, draft)
        verified = p.draft.size > 0
        accepted = jnp.where(verified, count - 1, 0)
        judged = jnp.minimum(accepted + 1, p.draft.size)
        counts = _by_source(p.draft.source, jnp.stack([verified, accepted], axis=1))
        slots = slots.replace(drafted=slots.drafted + counts.astype(jnp.int32))
        counts = jnp.stack([judged, accepted], axis=1)
        return look(slots, p.record + _by_source(p.draft.source, counts))

    def both(p: _Progress) -> _Progress:
        # loops, as a conditional would copy the caches
        p = jax.lax.while_loop(lambda p: p.goes_on & ~p.pays, plain, p)
        return jax.lax.while_loop(lambda p: p.goes_on & p.pays, verify, p)

    slots = slots.replace(drafted=jnp.zeros_like(slots.drafted))
    if propose is None:
        record = judge(slots.tokens, slots.length, texts)
    else:
        record = jnp.full((*slots.live.shape, SOURCES, 2), _TRUST)
    return jax.lax.while_loop(lambda p: p.goes_on, both, look(slots, record)).slots
