"""Drafts that are verified several at a time give the tokens of one pass a token."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl.models import decoder
from jaxrl.sampling import drafts, logits, requests, sampler
from jaxrl.sampling.slots import Features
from jaxrl.types import Completion, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampling.test_sampler import MIXED
from tests.models.test_extend import FAMILIES


def text(tokens):
    return "".join(chr(64 + t) for t in tokens)


def looked_up(tokens: list[int], count: int) -> list[int] | None:
    """By the definition, place by place: what `drafts.lookup` should give."""
    size = len(tokens)
    for run in range(4, 1, -1):
        for place in range(size - 2, run - 2, -1):
            if tokens[place - run + 1 : place + 1] == tokens[size - run :] and run <= size:
                after = tokens[place + 1 :]
                return [after[i % len(after)] for i in range(count)]
    return None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(0, 2))
def test_lookup_is_the_last_longest_match(tokens, beyond):
    padded = np.full(24, beyond, np.int32)
    padded[: len(tokens)] = tokens
    draft, present = drafts.lookup(jnp.asarray(padded), jnp.int32(len(tokens)), 5)
    expected = looked_up(tokens, 5)
    assert bool(present) == (expected is not None)
    assert expected is None or draft.tolist() == expected


def test_drafts_of_the_past_are_judged():
    row = [1, 2, 3, 1, 2, 3, 1, 2, 5, 1, 2]
    predictions = [(looked_up(row[:i], 1), row[i]) for i in range(1, len(row))]
    judged = [(p[0] == token) for p, token in predictions if p is not None]
    tried, right = drafts.judge(jnp.asarray([row + [0] * 5]), jnp.asarray([len(row)]))[0].tolist()
    assert (tried, right) == (len(judged), sum(judged)) and 0 < right < tried


LAYOUT = {"slots": 8, "bucket": 64}
DRAFTS = {"drafts": "lookup", "draft_tokens": 3}
PRICES = {"always": 1.0, "where it pays": 1.5, "never": float("inf")}
NEVER_ENDS = tuple((token, -float("inf")) for token in oracle.STOPS)
KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.5},
    {"temperature": 0.0, "logit_bias": ((7, 6.0), (9, 6.0))},
    {"temperature": 0.4, "top_p": 0.8, "top_logprobs": 2},
    {"temperature": 0.0, "stop": ("GG", "II"), "logit_bias": ((7, 6.0), (9, 5.8))},
    *MIXED,
]


def repetitive(count: int, kinds: list[dict]) -> list[Request]:
    """Requests whose prompts repeat themselves, so that there are drafts from the start."""
    rng = np.random.default_rng(0)
    prompts = [tuple(np.tile(rng.integers(1, 40, 3 + i % 3), 4).tolist()) for i in range(count)]
    budgets = rng.integers(8, 40, count).tolist()
    return [Request(i, prompts[i // 2], budgets[i], **kinds[i % len(kinds)]) for i in range(count)]


def setup(*, hold: bool = False, **layout) -> sampler.Setup:
    features = dataclasses.replace(oracle.ALL, support=True)
    config = sampler.SamplerConfig(**LAYOUT | layout)
    return sampler.Setup(
        oracle.CONFIG, oracle.KEY, oracle.STOPS, 64, 64, config, features, text=text, hold=hold
    )


def sampled(items: list[Request], **layout) -> tuple[dict[int, Completion], tuple[int, int]]:
    """Completions by id, and the drafts that were verified and their tokens that were accepted."""
    params, work, done = decoder.unstack(oracle.weights()), sampler.Work(), {}
    made = setup(**layout)
    sampler.submit(made, work, items)
    while work:
        done |= {c.request.id: c for c in sampler.advance(made, params, work)}
    return done, (work.verified, work.accepted)


def check_equal(expected: Completion, other: Completion) -> None:
    """Tokens and supports to the last bit, what is computed of the logits to 1e-5."""
    assert expected.tokens.tolist() == other.tokens.tolist(), expected.request.id
    assert expected.stopped == other.stopped
    np.testing.assert_array_equal(expected.support, other.support)
    for field in ("logp", "entropy", "top_logp"):
        if getattr(expected, field) is not None:
            np.testing.assert_allclose(
                getattr(other, field), getattr(expected, field), 1e-5, 1e-5, err_msg=field
            )


ITEMS = repetitive(30, KINDS)


@pytest.fixture(scope="module")
def plain():
    """What is sampled without drafts."""
    return sampled(ITEMS, chunk=16)[0]


@pytest.mark.exact("drafts change no token, over any mix of settings, slots and chunks")
@pytest.mark.parametrize("paying", PRICES)
def test_tokens_are_those_of_one_pass_a_token(monkeypatch, plain, paying):
    monkeypatch.setattr(drafts, "price", lambda *_: PRICES[paying])
    done, (verified, accepted) = sampled(ITEMS, chunk=16, **DRAFTS)
    assert done.keys() == plain.keys()
    for name, completion in done.items():
        check_equal(plain[name], completion)
    if paying == "never":
        assert verified == accepted == 0
    else:
        assert accepted > 50 and verified > 20


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_in_any_company_and_with_breaks(monkeypatch, plain, data):
    """Some requests in any order, with any chunks, budgets, and prices, which may change at every
    call, and continued from what was stored."""
    params = decoder.unstack(oracle.weights())
    chosen = data.draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=12, unique=True))
    chunk = data.draw(st.integers(1, 20))
    made, work, done, calls = setup(chunk=chunk, **DRAFTS), sampler.Work(), {}, 0
    sampler.submit(made, work, chosen)
    while work:
        cost = data.draw(st.sampled_from(list(PRICES.values())))
        monkeypatch.setattr(drafts, "price", lambda *_: cost)  # noqa: B023
        before = lengths(work)
        budget = data.draw(st.sampled_from([None, None, 5, 40]))
        ended = sampler.advance(made, params, work, budget=budget)
        done |= {c.request.id: c for c in ended}
        grown = {name: size - before.get(name, size) for name, size in lengths(work).items()}
        assert max(grown.values(), default=0) <= chunk
        calls += 1
        if calls % 3 == 0:
            again = [requests.resume(c) for c in sampler.unfinished(made, work)]
            work = sampler.Work()
            sampler.submit(made, work, again)
    assert done.keys() == {r.id for r in chosen}
    for name, completion in done.items():
        assert completion.tokens.tolist() == plain[name].tokens.tolist()
        np.testing.assert_allclose(completion.logp, plain[name].logp, 1e-5, 1e-5)
        np.testing.assert_array_equal(completion.support, plain[name].support)


def lengths(work: sampler.Work) -> dict[int, int]:
    return {seat.request.id: seat.length for seat in work.seats if seat is not None}


@pytest.mark.broad
@pytest.mark.exact("drafts change no token of turns with observations between them")
def test_turns(monkeypatch):
    """Slots are held, and an observation is read over what a draft had left in the caches."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    items = [
        Request(i, (3, 5, 8, 3, 5, 8, 3, 5), 40, temperature=0.4, turn_tokens=9) for i in range(5)
    ]

    def played(**layout):
        made, work, params, done = (
            setup(hold=True, **layout),
            sampler.Work(),
            decoder.unstack(oracle.weights()),
            {},
        )
        sampler.submit(made, work, items)
        while work:
            for c in sampler.advance(made, params, work):
                done[c.request.id] = c
                if len(c.tokens) < 30:
                    sampler.extend(made, params, work, {c.request.id: [3, 5, 8, 3]})
        return done, work.accepted

    expected, _ = played()
    done, accepted = played(**DRAFTS)
    assert accepted > 10
    for name, completion in done.items():
        check_equal(expected[name], completion)
        assert completion.source.tolist() == expected[name].source.tolist()


BROAD = ("latent", "hybrid")


@pytest.mark.exact("drafts change no token of any family")
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.broad if name in BROAD else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_families(monkeypatch, family):
    """With recurrent layers too, whose states have not read what was refused of a draft."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    config, features = FAMILIES[family], Features(biases=4)
    stacked = decoder.init(config, jax.random.key(0))
    params = decoder.unstack(stacked)
    items = [
        Request(i, (3, 5, 8 + i) * 4, 20, temperature=0.3 * (i % 2), logit_bias=((2, -1e9),))
        for i in range(6)
    ]

    def finished(**layout):
        layout = sampler.SamplerConfig(slots=4, bucket=64, **layout)
        made, work, done = (
            sampler.Setup(config, oracle.KEY, (2,), 16, 64, layout, features), sampler.Work(), [],
        )  # fmt: skip
        sampler.submit(made, work, items)
        while work:
            done += sampler.advance(made, params, work)
        return sorted(done, key=lambda c: c.request.id), work

    expected, _ = finished()
    done, work = finished(drafts="lookup")
    assert [c.tokens.tolist() for c in done] == [c.tokens.tolist() for c in expected]
    assert 10 < work.accepted < work.verified * 4  # some were refused
    assert oracle.recorded_as_recomputed(done, stacked, config) > 60


@pytest.mark.broad
def test_a_guide_reads_the_drafts(monkeypatch):
    """Whose model has caches of its own, and whose function sees a token and those before it."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    other = decoder.unstack(oracle.weights(1))

    def steered(scores, context, args):
        last = jax.vmap(lambda row, at: row[at])(context.tokens, context.length - 1)
        return scores + args * context.others[0] - 3.0 * jax.nn.one_hot(last, scores.shape[1])

    def tokens(**layout):
        guide = logits.Guide(steered, 0.5, (oracle.CONFIG,), (other,))
        done = oracle.run(ITEMS[:8], guide=guide, text=text, slots=8, **layout)
        return {name: c.tokens.tolist() for name, c in done.items()}

    assert tokens(**DRAFTS) == tokens()
