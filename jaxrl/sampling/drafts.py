"""Drafts of the next tokens by lookup, and when it pays to verify them.

The draft is what followed the last tokens of a sequence where they stood before, in its prompt or
in what was sampled. `decode` verifies a draft in one pass over the models, see there. Which pass is
made changes no token: it follows from the sequences alone, so that a run that is repeated or
continued makes the same passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.sampling.slots import Models, SlotState
from jaxrl.sampling.work import SamplerConfig
from jaxrl.types import Array

_SHORTEST, _LONGEST = 2, 4
"""Last tokens that must have stood before, and the most that are compared."""
_JUDGED = 16
"""Last tokens of a sequence whose drafts are judged when a chunk begins."""
_RIDGE = {"cpu": 16}
"""Rows of a pass whose arithmetic takes as long as reading the weights, by platform."""
_RIDGE_OF_OTHERS = 256


class Draft(NamedTuple):
    """Tokens that S sequences may continue with."""

    tokens: jax.Array
    """[S, K] int32."""
    size: jax.Array
    """[S] int32, how many of them are to be verified."""


class _Progress(NamedTuple):
    """A loop of decoding between two passes."""

    slots: SlotState
    draft: Draft
    record: jax.Array
    """[S, 2] float32, draft tokens that were judged, and those of them that were drawn."""
    goes_on: jax.Array
    """Scalar bool."""
    pays: jax.Array
    """Scalar bool, whether the next pass is to verify the drafts."""


Advance = Callable[[SlotState, Draft], tuple[SlotState, jax.Array]]
"""A pass over the models: the slots after it, and the tokens that each of them has drawn."""


def check(sampler: SamplerConfig, world: Any) -> None:
    """Refuse drafts where they cannot be verified.

    Args:
      sampler: may ask for drafts.
      world: of episodes that are played within the decode loop; None: there are none.

    Raises:
      ValueError: naming the field and the remedy.
    """
    if sampler.most_drafted and world is not None:
        raise ValueError(
            f"sampler.drafts={sampler.drafts!r}: episodes within the decode loop are sampled a "
            "token at a time; set it to 'none'"
        )


def none(slots: int) -> Draft:
    """No draft for any slot."""
    return Draft(jnp.zeros((slots, 0), jnp.int32), jnp.zeros(slots, jnp.int32))


def lookup(tokens: jax.Array, length: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """What followed the last tokens of a sequence where they stood before.

    It is looked for where most of the last `_LONGEST` tokens stand, at least `_SHORTEST`, and there
    at the last such place. A continuation that reaches the end begins again, as a period does.

    Args:
      tokens: [M] int32.
      length: scalar int32, tokens of the sequence, 1 or more; those beyond are void.
      count: static.

    Returns:
      [count] int32, and whether there is such a place; else the tokens mean nothing.
    """
    places = jnp.arange(tokens.shape[0])
    last = length - 1
    equal = places < last
    run = jnp.zeros_like(places)
    for back in range(_LONGEST):
        shifted = jnp.pad(tokens, (back, 0))[: tokens.shape[0]]
        equal &= (shifted == tokens[last - back]) & (places >= back)
        run += equal
    score = jnp.where(run >= _SHORTEST, run * tokens.shape[0] + places, -1)
    best = jnp.max(score)
    place = jnp.where(best < 0, 0, best % tokens.shape[0])
    period = jnp.maximum(last - place, 1)
    return tokens[place + 1 + jnp.arange(count) % period], best >= 0


def judge(tokens: jax.Array, length: jax.Array) -> jax.Array:
    """How good drafts of the last `_JUDGED` tokens of sequences would have been.

    Args:
      tokens: [S, M] int32.
      length: [S] int32.

    Returns:
      [S, 2] float32: tokens that there would have been a draft of, and the right ones of them.
    """

    def one(row: jax.Array, size: jax.Array) -> jax.Array:
        draft, present = lookup(row, jnp.maximum(size, 1), 1)
        present &= size > 0
        return jnp.stack([present, present & (draft[0] == row[size])]).astype(jnp.float32)

    def add(back: jax.Array, total: jax.Array) -> jax.Array:
        return total + jax.vmap(one)(tokens, length - back)

    zeros = jnp.zeros((length.shape[0], 2), jnp.float32)
    return jax.lax.fori_loop(1, _JUDGED + 1, add, zeros)


def price(models: Models, rows: int, draft_tokens: int) -> float:
    """What verifying drafts takes, in passes that verify none.

    A model with recurrent layers then reads what was accepted in a second pass.

    Args:
      models: shapes.
      rows: slots of a device.
      draft_tokens: of each.
    """
    ridge = _RIDGE.get(jax.default_backend(), _RIDGE_OF_OTHERS)
    passes = 2 if any(model.recurrent for model in models) else 1
    return passes * (ridge + rows * (1 + draft_tokens)) / (ridge + rows)


def run(
    advance: Advance,
    slots: SlotState,
    steps: jax.Array,
    min_live: jax.Array,
    cost: Array | float,
    *,
    draft_tokens: int,
) -> SlotState:
    """Make passes until a sequence has `steps` new tokens or fewer than `min_live` are live.

    Drafts are verified where as many tokens are expected of it as would make up for `cost`: a draft
    token is expected to be right as often as those of its sequence were.

    Args:
      advance: makes a pass.
      slots: with `drafted`.
      steps: scalar int32.
      min_live: scalar int32, at least 1.
      cost: scalar float32, of a pass with drafts, see `price`.
      draft_tokens: static, most tokens of a draft.
    """
    ends = slots.length + steps
    depth = jnp.arange(1, draft_tokens + 1)

    def look(slots: SlotState, record: jax.Array) -> _Progress:
        tokens, present = jax.vmap(lookup, in_axes=(0, 0, None))(
            slots.tokens, slots.length, draft_tokens
        )
        room = jnp.minimum(ends, slots.limit) - slots.length - 1
        count = jnp.where(slots.live & present, jnp.clip(room, 0, draft_tokens), 0)
        chance = (record[:, 1] + 1) / (record[:, 0] + 2)
        expected = jnp.where(depth <= count[:, None], chance[:, None] ** depth, 0.0)
        full = slots.live & (slots.length >= ends)
        columns = [slots.live, full, jnp.sum(expected, axis=1)]
        live, full_count, gain = jnp.sum(jnp.stack(columns, axis=1), axis=0)  # one exchange
        goes_on = (live >= min_live) & (full_count == 0)
        return _Progress(slots, Draft(tokens, count), record, goes_on, gain > (cost - 1) * live)

    def plain(p: _Progress) -> _Progress:
        slots, _ = advance(p.slots, none(ends.shape[0]))
        token = jax.vmap(lambda row, at: row[at])(slots.tokens, slots.length - 1)
        judged = p.draft.size > 0
        right = judged & (token == p.draft.tokens[:, 0])
        return look(slots, p.record + jnp.stack([judged, right], axis=1))

    def verify(p: _Progress) -> _Progress:
        slots, count = advance(p.slots, p.draft)
        verified = p.draft.size > 0
        accepted = jnp.where(verified, count - 1, 0)
        judged = jnp.minimum(accepted + 1, p.draft.size)
        drafted = slots.drafted + jnp.stack([verified, accepted], axis=1)
        slots = slots.replace(drafted=drafted)
        return look(slots, p.record + jnp.stack([judged, accepted], axis=1))

    def both(p: _Progress) -> _Progress:
        # loops, as a conditional would copy the caches
        p = jax.lax.while_loop(lambda p: p.goes_on & ~p.pays, plain, p)
        return jax.lax.while_loop(lambda p: p.goes_on & p.pays, verify, p)

    slots = slots.replace(drafted=jnp.zeros_like(slots.drafted))
    first = look(slots, judge(slots.tokens, slots.length))
    return jax.lax.while_loop(lambda p: p.goes_on, both, first).slots
