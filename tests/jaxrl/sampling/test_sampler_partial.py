"""Prefixes, budgets, weight updates and turns: sequences that are continued."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxrl.models import decoder
from jaxrl.sampling import requests, sampler
from jaxrl.types import Completion, Request, Source
from tests.jaxrl import sampler_oracle as oracle

INF = float("inf")
OLD, NEW = 0, 1  # seeds of weights


def setup(**changes) -> sampler.Setup:
    given = {"max_prompt": 32, "max_length": 64, "features": oracle.ALL, **changes}
    layout = sampler.SamplerConfig(slots=8, prefill_piece=16, chunk=16, bucket=64)
    return sampler.Setup(oracle.CONFIG, oracle.KEY, oracle.STOPS, sampler=layout, **given)


def params(seed: int = OLD) -> decoder.Params:
    return decoder.unstack(oracle.weights(seed))


def drain(made: sampler.Setup, work: sampler.Work, seed: int = OLD, version: int = 0):
    done: dict[int, Completion] = {}
    while work:
        done |= {
            c.request.id: c for c in sampler.advance(made, params(seed), work, version=version)
        }
    return done


@pytest.fixture(scope="module")
def whole():
    """Twelve requests, sampled without interruption."""
    return oracle.run(oracle.requests(12, temperature=0.9, top_p=0.95))


def interrupted(budget: int) -> tuple[sampler.Setup, sampler.Work, list[Completion], int]:
    made, work = setup(), sampler.Work()
    sampler.submit(made, work, oracle.requests(12, temperature=0.9, top_p=0.95))
    done = sampler.advance(made, params(), work, budget=budget)
    taken = sum(len(c.tokens) for c in [*done, *sampler.unfinished(made, work)])
    return made, work, done, taken


@pytest.mark.exact("sampling that is interrupted and continued gives the same tokens")
def test_the_budget_is_kept_and_work_continues(whole):
    made, work, done, taken = interrupted(30)
    assert 0 < taken <= 30
    standing = sampler.unfinished(made, work)
    assert len(standing) + len(done) == 12
    assert not any(c.finished or c.stopped for c in standing)
    assert any(len(c.tokens) for c in standing) and any(not len(c.tokens) for c in standing)
    done = {c.request.id: c for c in done} | drain(made, work)
    for name, c in whole.items():
        np.testing.assert_array_equal(done[name].tokens, c.tokens)


@pytest.mark.exact("sampling resumed from stored tokens gives the same tokens")
def test_resuming_from_what_was_stored(whole):
    """Another process, given the tokens alone, samples the same rest."""
    made, work, done, _ = interrupted(40)
    again = [requests.resume(c) for c in sampler.unfinished(made, work)]
    del work
    resumed = {c.request.id: c for c in done} | oracle.run(again)
    assert len(resumed) == 12
    for name, c in whole.items():
        np.testing.assert_array_equal(resumed[name].tokens, c.tokens)
        np.testing.assert_allclose(resumed[name].logp, c.logp, atol=1e-5)
        assert resumed[name].actions.all()


@pytest.mark.exact("after a weight update each log-prob is that of the version that sampled it")
@pytest.mark.parametrize("anew", [True, False])
def test_weight_update_halfway(anew):
    """Every token carries the version and the log-probability it was sampled under."""
    made, work, _, _ = interrupted(40)
    if anew:
        sampler.refresh(made, params(NEW), work)
    late = drain(made, work, NEW, version=5)
    both = [c for c in late.values() if {0, 5} == set(c.version.tolist())]
    assert both and all((np.diff(c.version) >= 0).all() for c in late.values())
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in both]
    old = oracle.forward(sequences, oracle.weights(OLD))[0]
    new = oracle.forward(sequences, oracle.weights(NEW))[0]
    for c, sequence, before, after in zip(both, sequences, old, new, strict=True):
        switch = len(c.request.prompt) + int(np.argmax(c.version)) - 1
        index = np.arange(len(before))[:, None]
        if anew:
            assert oracle.as_expected(c, np.where(index < switch, before, after), sequence)
        else:  # what slots remember is the old weights' work, so only the old part is comparable
            first = dataclasses.replace(
                c, source=np.where(c.version == 0, Source.POLICY, Source.FORCED)
            )
            assert oracle.as_expected(first, before, sequence)
            with pytest.raises(AssertionError):
                oracle.as_expected(c, np.where(index < switch, before, after), sequence)


@pytest.mark.exact("a forced prefix gives the tokens of a prompt that ends with it")
def test_prefix_forcing():
    hint = (4, 9, 9, 30)
    items = [Request(i, (3, 5), 20, prefix=requests.forced(hint)) for i in range(4)]
    done = oracle.run([*items, Request(9, (3, 5, *hint), 16)])
    for i in range(4):
        c = done[i]
        assert c.tokens[:4].tolist() == list(hint) and len(c.tokens) <= 20
        assert c.source.tolist() == [Source.FORCED] * 4 + [Source.POLICY] * (len(c.tokens) - 4)
        assert not c.logp[:4].any() and (c.logp[4:] < 0).all()
    assert oracle.recorded_as_recomputed(list(done.values()), oracle.weights())
    # A hint in the prompt or before the response: the model sees the same.
    same = oracle.run([dataclasses.replace(items[0], id=9)])[9]
    np.testing.assert_array_equal(same.tokens[4:], done[9].tokens)


def test_sample_under_one_prompt_train_under_another():
    hinted = Request(1, (3, 5, 9, 9), 12, scoring_prompt=(3, 5))
    done = oracle.run([hinted, dataclasses.replace(hinted, id=2, scoring_prompt=None)])
    trained = requests.for_training(done[1])
    assert trained.request.prompt == (3, 5)
    np.testing.assert_array_equal(trained.tokens, done[1].tokens)
    assert requests.for_training(done[2]) is done[2]
    assert oracle.recorded_as_recomputed(list(done.values()), oracle.weights())
    with pytest.raises(AssertionError):  # the record is of the prompt it was sampled under
        oracle.recorded_as_recomputed([trained], oracle.weights())


@pytest.mark.exact("a prompt that is read in pieces gives the tokens of one read at once")
def test_long_prompts_are_read_in_pieces():
    rng = np.random.default_rng(4)
    items = [
        Request(i, tuple(rng.integers(1, 40, n).tolist()), 12)
        for i, n in enumerate([31, 3, 17, 32, 16])
    ]
    at_once = oracle.run(items, prefill_piece=32)
    for name, c in oracle.run(items, prefill_piece=16).items():
        np.testing.assert_array_equal(c.tokens, at_once[name].tokens)
    assert oracle.recorded_as_recomputed(list(at_once.values()), oracle.weights())


def test_turns():
    """An environment answers twice; the history is read once and the record is the trainer's."""
    replies = {i: [[i + 1] * 3, [i + 2, 7]] for i in range(5)}
    seen: list[int] = []

    def observe(completion: Completion):
        seen.append(completion.request.id)
        left = replies[completion.request.id]
        return left.pop(0) if left else None

    ends = ((0, 3.0), (11, 3.0))
    items = [Request(i, (3, i + 1), 50, logit_bias=ends) for i in range(5)]
    done = oracle.run(items, slots=4, observe=observe)
    assert sorted(done) == list(range(5)) and len(seen) > 5
    for i, c in done.items():
        marks = c.source == Source.OBSERVATION
        said = c.tokens[marks].tolist()
        assert said == ([i + 1] * 3 + [i + 2, 7])[: len(said)]
        assert not c.logp[marks].any() and (c.logp[~marks] < 0).all()
        # observations follow a stop token, and a turn of the policy follows them
        for t in np.flatnonzero(np.diff(marks.astype(int)) == 1):
            assert c.tokens[t] in oracle.STOPS
        assert not marks[-1]
    assert any(len(c.tokens[c.source == Source.OBSERVATION]) == 5 for c in done.values())
    assert oracle.recorded_as_recomputed(list(done.values()), oracle.weights())


@pytest.mark.exact("turns resumed from storage give the same tokens")
def test_turns_by_hand_and_again_from_storage():
    """A stored sequence continues as one does that was held in its slot."""
    made, work = setup(hold=True), sampler.Work()
    sampler.submit(made, work, [Request(2, (3, 1), 50, logit_bias=((0, 4.0),))])
    while not (turn := sampler.advance(made, params(), work)):
        pass
    assert turn[0].stopped and not work
    long = [6] * 19  # longer than one piece of 16
    sampler.extend(made, params(), work, {2: long})
    assert work and sampler.unfinished(made, work)[0].tokens[-19:].tolist() == long
    stored = requests.resume(sampler.unfinished(made, work)[0])
    done = drain(made, work)[2]
    assert (done.source == Source.OBSERVATION).sum() == 19
    again = oracle.run([stored])[2]
    np.testing.assert_array_equal(again.tokens, done.tokens)
    np.testing.assert_array_equal(again.source, done.source)
    sampler.release(work, [2])
    assert work.seats.count(None) == len(work.seats)


def test_release_calls_off():
    made, work = setup(), sampler.Work()
    forever = ((0, -INF), (11, -INF), (23, -INF))
    sampler.submit(made, work, [Request(i, (i + 1,), 50, logit_bias=forever) for i in range(12)])
    sampler.advance(made, params(), work, budget=8)
    sampler.release(work, [0, 3, 11])
    done = drain(made, work)
    assert sorted(done) == [i for i in range(12) if i not in (0, 3, 11)]
    assert all(len(c.tokens) == 50 for c in done.values())


def test_refusals():
    made, work = setup(hold=True), sampler.Work()
    one = Request(1, (3,), 4, logit_bias=((0, 30.0),))
    with pytest.raises(ValueError, match="max_prompt=32"):
        sampler.submit(made, work, [Request(1, (3,) * 33, 4)])
    with pytest.raises(ValueError, match="max_length=40"):
        sampler.submit(setup(max_length=40), work, [Request(1, (3,), 40)])
    with pytest.raises(ValueError, match="same id"):
        sampler.submit(made, work, [one, one])
    with pytest.raises(ValueError, match="features="):
        sampler.submit(setup(features=sampler.Features()), work, [one])
    sampler.submit(made, work, [one])
    with pytest.raises(ValueError, match="request 1 is not held"):
        sampler.extend(made, params(), work, {1: [4]})
    (turn,) = sampler.advance(made, params(), work)
    assert turn.tokens.tolist() == [0]
    for tokens in ([], [4] * 3):
        with pytest.raises(ValueError, match="room for 1 to 2"):
            sampler.extend(made, params(), work, {1: tokens})
    with pytest.raises(ValueError, match="held"):
        sampler.refresh(made, params(), work)
