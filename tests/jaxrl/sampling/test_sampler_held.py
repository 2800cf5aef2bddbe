"""Held sequences, whatever is done with them: turns, limits and full slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.sampling import sampler
from jaxrl.types import Completion, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampling.test_sampler_partial import params, setup

INF = float("inf")
LIKELY = ((0, 4.0), (11, 4.0))
AT_ONCE = ((0, 1e9),)
NEVER = tuple((token, -INF) for token in oracle.STOPS)
SLOTS = sampler.SamplerConfig(slots=4, prefill_piece=16, chunk=16, bucket=64)


def start() -> tuple[sampler.Setup, sampler.Work]:
    return setup(hold=True)._replace(sampler=SLOTS), sampler.Work()


@pytest.mark.exact("log-probabilities of every turn are the uncached model's, within 1e-4")
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_turns_in_any_order(data):
    """Extended and released at random, over four slots: all come to their end, `blocked` says when
    nothing can go on, and each record is that of the uncached model."""
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
    """It fills the cache; the others, and those that wait, go on."""
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


def test_slots_that_are_all_held_are_told():
    made, work = start()
    sampler.submit(made, work, [Request(i, (2, i), 9, logit_bias=AT_ONCE) for i in range(1, 7)])
    assert len(sampler.advance(made, params(), work)) == 4
    assert sampler.blocked(made, work)
    with pytest.raises(sampler.SlotsHeld, match=r"2 requests wait.*\[1, 2, 3, 4\].*slots=4"):
        sampler.advance(made, params(), work)
    sampler.release(work, [3])
    assert not sampler.blocked(made, work)
    assert [c.request.id for c in sampler.advance(made, params(), work)] == [5]
