"""Held sequences, whatever is done with them: turns, limits and full slots."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.rollout import programs
from jaxrl.sampling import admission, requests, sampler
from jaxrl.types import Completion, Request, Source
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampling.test_sampler_partial import params, setup

INF = float("inf")
LIKELY = ((0, 4.0), (11, 4.0))
AT_ONCE = ((0, 1e9),)
NEVER = tuple((token, -INF) for token in oracle.STOPS)
SLOTS = sampler.SamplerConfig(slots=4, prefill_piece=16, chunk=16, bucket=64)


def start() -> tuple[sampler.Setup, sampler.Work]:
    return setup(hold=True)._replace(sampler=SLOTS), sampler.Work()


@pytest.mark.broad
@pytest.mark.exact("log-probabilities of every turn are the uncached model's, within 1e-4")
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_turns_in_any_order(data):
    """Extended and released at random, over four slots: all come to their end, `blocked` says when
    nothing can continue, and each record is that of the uncached model."""
    made, work = start()
    held: dict[int, Completion] = {}
    over: list[Completion] = []
    for name in range(data.draw(st.integers(1, 9))):
        bias, budget = (
            data.draw(st.sampled_from([LIKELY, NEVER, ()])),
            data.draw(st.integers(1, 40)),
        )
        sampler.submit(made, work, [Request(name, (3, name + 1), budget, logit_bias=bias)])
    for _ in range(200):
        blocked = sampler.blocked(made, work)
        assert blocked == (bool(work.queue) and len(held) == 4)
        if not work and not held:
            break
        if held and (blocked or not work or data.draw(st.booleans())):
            name = data.draw(st.sampled_from(sorted(held)))
            c = held.pop(name)
            size = data.draw(st.integers(0, c.request.max_new_tokens - len(c.tokens) - 1))
            if size:
                sampler.extend(made, params(), work, {name: [7] * size})
            else:
                sampler.release(work, [name])
                over.append(c)
            continue
        for c in sampler.advance(made, params(), work):
            if c.stopped and c.request.max_new_tokens - len(c.tokens) > 1:
                held[c.request.id] = c
            else:
                over.append(c)
    else:
        raise AssertionError("no end")
    assert oracle.recorded_as_recomputed(over, oracle.weights())


def test_a_sequence_at_its_limit_is_not_held():
    """It fills the cache; the others, and those that wait, continue."""
    made, work = start()
    sampler.submit(made, work, [Request(0, (1,) * 24, 40, logit_bias=NEVER)])
    done = []
    while work:
        done += sampler.advance(made, params(), work)
    assert len(done[0].tokens) == 40 and not done[0].stopped
    with pytest.raises(ValueError, match="request 0 is not held"):
        sampler.extend(made, params(), work, {0: [4]})
    sampler.submit(made, work, [Request(i, (2, i), 5, logit_bias=NEVER) for i in range(1, 7)])
    while work:
        done += sampler.advance(made, params(), work)
    assert sorted(c.request.id for c in done) == list(range(7))


def test_a_sampler_with_all_slots_held_is_refused():
    made, work = start()
    sampler.submit(made, work, [Request(i, (2, i), 9, logit_bias=AT_ONCE) for i in range(1, 7)])
    assert len(sampler.advance(made, params(), work)) == 4
    assert sampler.blocked(made, work)
    with pytest.raises(sampler.SlotsHeld, match=r"2 requests wait.*\[1, 2, 3, 4\].*slots=4"):
        sampler.advance(made, params(), work)
    sampler.release(work, [3])
    assert not sampler.blocked(made, work)
    assert [c.request.id for c in sampler.advance(made, params(), work)] == [5]


@pytest.mark.exact(
    "a turn after an observation is the same whether its history is read again or not"
)
def test_a_held_sequence_continues_as_another_request(monkeypatch):
    """The second turn of a sequence that stays in its slot, or gives it up and is read again."""
    read, prefill = [], admission.prefill

    def counted(models, params, tokens, length, *args, **options):
        read.append(int(length.sum()))
        return prefill(models, params, tokens, length, *args, **options)

    monkeypatch.setattr(admission, "prefill", counted)
    kept = second_turns(again=False)
    assert read == [3 * 2]  # the prompts, once
    evicted = second_turns(again=True)
    assert read[1:] == [3 * 2, 3 * (2 + 4 + 3)]
    assert [c.tokens.tolist() for c in kept] == [c.tokens.tolist() for c in evicted]
    assert oracle.recorded_as_recomputed([*kept, *evicted], oracle.weights())


def second_turns(again: bool) -> list[Completion]:
    made, work = start()
    first = [Request(i, (2, i + 1), 30, turn_tokens=4, logit_bias=NEVER) for i in range(3)]
    sampler.submit(made, work, first)
    turns = {c.request.id: c for c in sampler.advance(made, params(), work, version=1)}
    assert sorted(turns) == [0, 1, 2] == sorted(sampler.held_slots(work))
    assert all(len(c.tokens) == 4 and not c.stopped for c in turns.values())
    seen = requests.forced([5] * 3, Source.OBSERVATION)
    second = [
        dataclasses.replace(r, prefix=programs.join([programs.parts(turns[r.id]), seen]))
        for r in first
    ]
    with pytest.raises(ValueError, match="request 0 has other settings"):
        sampler.continue_held(
            made, params(), work, [dataclasses.replace(second[0], temperature=0.5)]
        )
    with pytest.raises(ValueError, match="must begin with the 6 tokens"):
        sampler.continue_held(made, params(), work, [dataclasses.replace(second[0], prefix=seen)])
    if again:
        sampler.release(work, [0, 1, 2])
        sampler.submit(made, work, second)
    else:
        sampler.continue_held(made, params(), work, second)
    assert not sampler.held_slots(work)
    done = sorted(sampler.advance(made, params(), work, version=2), key=lambda c: c.request.id)
    assert [c.version.tolist() for c in done] == [[1] * 4 + [0] * 3 + [2] * 4] * 3
    assert all((c.source == [*[0] * 4, *[2] * 3, *[0] * 4]).all() for c in done)
    return done


@pytest.mark.parametrize("lengths", [(5, 4, 3, 2), (2, 3, 4, 5), (4, 2, 5, 2), (3, 3, 3, 3)])
def test_held_sequences_make_way_for_requests_the_shortest_first(lengths):
    """Of equal ones that of the lower id, and no more than requests need."""
    made, work = start()
    first = [Request(i, (2,) * length, 9, logit_bias=AT_ONCE) for i, length in enumerate(lengths)]
    sampler.submit(made, work, first)
    while work:
        sampler.advance(made, params(), work)
    sampler.release_for_queue(made, work)
    left = sorted(range(4), key=lambda i: lengths[i])
    for name in range(4, 9):
        assert sorted(sampler.held_slots(work)) == sorted(left)
        sampler.submit(made, work, [Request(name, (3, name), 9, logit_bias=AT_ONCE)])
        sampler.release_for_queue(made, work)
        del left[:1]
    assert not sampler.held_slots(work)
