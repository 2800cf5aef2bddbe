"""Beam search against enumeration and greedy decoding; best of n."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxrl.models import decoder
from jaxrl.sampling import search
from jaxrl.types import Request
from tests.jaxrl import sampler_oracle as oracle

PROMPT = (3, 17, 8)


def run(width, budget, penalty=0.0):
    return search.beam(
        oracle.CONFIG,
        decoder.unstack(oracle.weights()),
        PROMPT,
        width=width,
        max_new_tokens=budget,
        stop_ids=oracle.STOPS,
        length_penalty=penalty,
    )


def every_response() -> dict[tuple[int, ...], float]:
    """All responses of up to two tokens with their log-probabilities, uncached."""
    vocab = range(oracle.CONFIG.vocab_size)
    scores = oracle.forward([(*PROMPT, t) for t in vocab], oracle.weights())[0]
    logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    found = {(t,): logp[0, 2, t] for t in oracle.STOPS}
    for a, b in itertools.product(set(vocab) - set(oracle.STOPS), vocab):
        found[a, b] = logp[0, 2, a] + logp[a, 3, b]
    return found


@pytest.mark.exact("a beam as wide as the tree finds the best of all sequences")
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all(penalty):
    everything = every_response()
    best = sorted(everything, key=lambda r: -everything[r] / len(r) ** penalty)
    beams = run(40, 2, penalty)
    assert len(beams) == 40
    # Every first token is kept, so only responses of a kept beam can be missing: none of the best.
    for expected, got in zip(best[:10], beams, strict=False):
        assert tuple(got.tokens.tolist()) == expected
        assert got.logp == pytest.approx(everything[expected], abs=1e-4)
        assert got.score == pytest.approx(everything[expected] / len(expected) ** penalty, abs=1e-4)
        assert got.stopped == (expected[-1] in oracle.STOPS)


@pytest.mark.exact("beam search with one beam equals greedy decoding")
def test_one_beam_is_greedy():
    (got,) = run(1, 20)
    greedy = oracle.run([Request(0, PROMPT, 20, temperature=0.0)])[0]
    np.testing.assert_array_equal(got.tokens, greedy.tokens)
    assert got.logp == pytest.approx(greedy.logp.sum(), abs=1e-4)


def test_a_wider_beam_is_no_worse_and_ranks():
    beams = run(4, 20)
    scores = [b.score for b in beams]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] >= run(1, 20)[0].score - 1e-4
    assert len({tuple(b.tokens.tolist()) for b in beams}) == len(beams)


def test_beam_refuses():
    for changes in ({"width": 0}, {"max_new_tokens": 62}, {"prompt": ()}):
        given = {"prompt": PROMPT, "width": 2, "max_new_tokens": 4, "stop_ids": (0,), **changes}
        with pytest.raises(ValueError, match="max_positions=64"):
            search.beam(oracle.CONFIG, {}, **given)


def test_beam_search_reports_nan():
    broken = decoder.unstack(oracle.weights())
    broken["head"] = broken["head"].at[3].set(np.nan)
    given = {"width": 4, "max_new_tokens": 20, "stop_ids": oracle.STOPS}
    with pytest.raises(FloatingPointError, match="nan in the weights"):
        search.beam(oracle.CONFIG, broken, PROMPT, **given)


def test_best_of_n():
    items = search.copies(Request(0, PROMPT, 12), 6, first_id=100)
    done = list(oracle.run(items).values())
    assert {c.request.id for c in done} == set(range(100, 106))
    best = search.best_of(done, lambda c: float(c.logp.mean()))
    assert best.logp.mean() == max(c.logp.mean() for c in done)
    only = search.best_of(done, lambda c: 1.0 if c.request.id == 103 else None)
    assert only.request.id == 103
    with pytest.raises(ValueError, match="no completion has a score"):
        search.best_of(done, lambda c: None)
