"""Episodes whose environment is compiled into the decode loop, without a round trip to the host.

A world is an environment as a pure function over arrays (`jaxrl.data.environments.Arrays`). One
program decodes the turns of all slots, steps their worlds, appends what they observe, and goes on,
until all episodes are over. Its tokens are those of the same environment on the host, as a token's
random stream follows from its request and its position.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh import mesh
from jaxrl.sampling import admission, decode
from jaxrl.sampling import logits as processors
from jaxrl.sampling.slots import Features, Models, SlotState
from jaxrl.sampling.work import Setup, Work, read_out
from jaxrl.types import Completion, Params, Source


class World(NamedTuple):
    """An environment for the decode loop. The same functions give the same program."""

    step: Callable[..., tuple[Any, jax.Array, jax.Array, jax.Array, jax.Array]]
    """See `jaxrl.data.environments.Arrays.step`."""
    end: int
    """The token that ends a turn which the policy has not ended."""
    turn_tokens: int
    """Longest turn."""


class Record(NamedTuple):
    """What is known of S episodes beside their tokens, over the M places of their sequences."""

    turn: jax.Array
    """[S, M] int32, the turn of each token, from 1."""
    rewards: jax.Array
    """[S, M] float32, of a turn at its last token."""
    source: jax.Array
    """[S, M] int32."""
    ended: jax.Array
    """[S] bool, by their environment."""
    states: Any
    """Of the worlds, a pytree of [S, ...]."""


def play(
    setup: Setup, world: World, params: Params, work: Work, *, version: int
) -> list[Completion]:
    """Play the episodes of queued requests, as many as there are slots, from their beginning.

    Args:
      setup: without `hold`.
      world: steps the requests' `Request.world`.
      params: as from `decoder.unstack`.
      work: all of whose slots are free.
      version: policy version recorded with each token.

    Raises:
      FloatingPointError: the logits of a sequence gave no distribution.
    """
    everything = setup.with_others(params)
    work.cached_by_id.clear()
    admission.make_room(setup, work)
    admission.reshape(setup, work, len(work.seats), setup.capacity)
    while work.queue and None in work.seats:
        admission.admit(setup, everything, work)
    chosen = [i for i, seat in enumerate(work.seats) if seat is not None]
    first = work.seat(chosen[0]).request.world
    rows = [first if seat is None else seat.request.world for seat in work.seats]
    starts = [0 if seat is None else len(seat.request.prompt) for seat in work.seats]
    budgets = [0 if seat is None else seat.request.max_new_tokens for seat in work.seats]
    work.slots, device_record = _play(
        setup.models,
        everything,
        work.slots,
        jax.tree.map(lambda *leaves: np.stack(leaves), *rows),
        np.array(starts, np.int32) + np.array(budgets, np.int32),
        world=world,
        key=setup.key,
        version=jnp.int32(version),
        stop_ids=jnp.asarray(setup.stop_ids, jnp.int32),
        args=setup.guide.args,
        process=setup.guide.process,
        features=setup.features,
    )
    length, failed, record = mesh.fetch((work.state.length, work.state.failed, device_record))
    if np.any(failed):
        ids = [work.seat(i).request.id for i in np.flatnonzero(failed).tolist()]
        raise FloatingPointError(
            f"requests {ids}: their logits are nan or infinite under policy "
            f"version {version}; look for nan in the weights"
        )
    for i in chosen:
        seat = work.seat(i)
        seat.length = int(length[i])
        non_policy_indices = np.flatnonzero(
            np.asarray(record.source[i, : seat.length]) != Source.POLICY
        )
        seat.observed = [(int(at), int(at) + 1) for at in non_policy_indices]
    completions = read_out(setup, work, chosen, {})
    work.seats = [None] * len(work.seats)
    return [
        _finished(completion, starts[i], jax.tree.map(lambda leaf, i=i: leaf[i], record))
        for i, completion in zip(chosen, completions, strict=True)
    ]


def _finished(completion: Completion, start: int, record: Record) -> Completion:
    """The completion of an episode, whose `record` is that of its slot."""
    response_span = slice(start, start + len(completion.tokens))
    turn, source = (
        np.asarray(record.turn[response_span]),
        np.asarray(record.source[response_span], np.int8),
    )
    last = np.flatnonzero((np.diff(turn, append=turn[-1] + 1) != 0) & (source == Source.POLICY))
    return dataclasses.replace(
        completion,
        source=source,
        stopped=bool(record.ended),
        turn=turn.astype(np.int16),
        turn_rewards=tuple(np.asarray(record.rewards[response_span])[last].tolist()),
        world=record.states,
    )


@functools.partial(
    jax.jit,
    static_argnames=("models", "world", "process", "features"),
    donate_argnames="slots",
)
def _play(
    models: Models,
    params: tuple[Params, ...],
    slots: SlotState,
    states: Any,
    length_limits: jax.Array,
    *,
    world: World,
    key: jax.Array,
    version: jax.Array,
    stop_ids: jax.Array,
    args: Any,
    process: processors.Processor,
    features: Features,
) -> tuple[SlotState, Record]:
    """Play all live slots to the end of their episodes.

    Args:
      models, params, slots, key, version, stop_ids, args, process, features: as of `decode`.
      states: of the worlds, a pytree of [S, ...].
      length_limits: [S] int32, the length at which each episode is cut off.
      world: static.
    """
    count, capacity = slots.tokens.shape
    index = jnp.arange(capacity)
    step = jax.vmap(world.step)

    def playing(carry: tuple[Any, ...]) -> jax.Array:
        return jnp.any(carry[-1])

    def one_turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, slots, record, live = carry
        states = record.states
        before = slots.length
        slots = decode.decode(
            models,
            params,
            slots,
            key=key,
            version=version,
            stop_ids=stop_ids,
            steps=jnp.int32(world.turn_tokens),
            min_live=jnp.int32(1),
            args=args,
            process=process,
            features=features,
        )
        after = slots.length
        at = jnp.minimum(before[:, None] + jnp.arange(world.turn_tokens), capacity - 1)
        action = jnp.take_along_axis(slots.tokens, at, axis=1)
        moved, observed, observation_length, reward, done = step(states, action, after - before)
        states = jax.tree.map(
            lambda new, old: jnp.where(live.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            moved,
            states,
        )
        last = jnp.take_along_axis(slots.tokens, after[:, None] - 1, axis=1)
        close = ~jnp.isin(last[:, 0], stop_ids)
        first = jnp.where(close, world.end, observed[:, 0])
        closed = jnp.concatenate([first[:, None], observed], axis=1)
        plain = jnp.pad(observed, ((0, 0), (0, 1)))
        appended_tokens = jnp.where(close[:, None], closed, plain)
        total = observation_length + close
        goes_on = live & ~done & (after + total < length_limits)
        record = _recorded(record, index, number, (before, after, total), live, goes_on, reward)
        closes = (index == after[:, None]) & (goes_on & close)[:, None]
        record = record._replace(
            source=jnp.where(closes, Source.FORCED, record.source),
            ended=record.ended | live & done,
            states=states,
        )
        slots = decode.append(
            models,
            params,
            slots,
            jnp.where(goes_on, jnp.arange(count), count),
            appended_tokens,
            jnp.where(goes_on, total, 0),
            jnp.minimum(length_limits, after + total + world.turn_tokens),
        )
        slots = slots.replace(live=slots.live & goes_on)
        return number + 1, slots, record, goes_on & ~slots.failed

    zeros = jnp.zeros((count, capacity), jnp.int32)
    record = Record(zeros, zeros.astype(jnp.float32), zeros, jnp.zeros(count, bool), states)
    carry = (jnp.int32(1), slots, record, slots.live)
    _, slots, record, _ = jax.lax.while_loop(playing, one_turn, carry)
    return slots, record


def _recorded(
    record: Record,
    index: jax.Array,
    number: jax.Array,
    ends: Sequence[jax.Array],
    live: jax.Array,
    goes_on: jax.Array,
    reward: jax.Array,
) -> Record:
    """The record with a turn, and what is read after it, which belongs to the next."""
    before, after, total = (end[:, None] for end in ends)
    policy_mask = (index >= before) & (index < after) & live[:, None]
    read = (index >= after) & (index < after + total) & goes_on[:, None]
    turn = jnp.where(read, number + 1, jnp.where(policy_mask, number, record.turn))
    paid = (index == after - 1) & live[:, None]
    return record._replace(
        turn=turn,
        rewards=jnp.where(paid, reward[:, None], record.rewards),
        source=jnp.where(read, Source.OBSERVATION, record.source),
    )
