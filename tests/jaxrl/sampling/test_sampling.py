"""The draw and the truncations, against their definitions."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxrl.sampling import requests, sampling
from jaxrl.types import Request
from tests.jaxrl.sampler_oracle import distribution

VOCAB, DRAWS = 300, 3000  # more than one block of the vocabulary
SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "hot": {"temperature": 3.0, "top_p": 0.95},
}
LOGITS = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    """Draws under every setting, all in one batch."""
    items = [Request(0, (1,), 1, **s) for s in SETTINGS.values() for _ in range(DRAWS)]
    rows = len(items)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(3), np.arange(rows))
    out = jax.jit(sampling.sample, static_argnames=("truncate", "top"))(
        np.broadcast_to(LOGITS, (rows, VOCAB)),
        requests.settings_of(items, VOCAB, rows, 0),
        keys,
        truncate=True,
    )
    return dict(zip(SETTINGS, np.asarray(out.token).reshape(-1, DRAWS), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_frequencies(drawn, name):
    """Chi-squared, fixed seed; rare tokens are pooled, impossible ones never drawn."""
    probs = np.exp(distribution(LOGITS, Request(0, (1,), 1, **SETTINGS[name]), []))
    counts = np.bincount(drawn[name], minlength=VOCAB)
    assert not counts[probs == 0].any()
    common = probs * DRAWS >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probs[common], probs[~common].sum()) * DRAWS
    filled = expected > 0
    assert filled.sum() > 2
    assert stats.chisquare(observed[filled], expected[filled]).pvalue > 1e-3


def test_frequencies_can_fail(drawn):
    """The test above tells a temperature of 0.6 from one of 0.65."""
    probs = np.exp(distribution(LOGITS, Request(0, (1,), 1, temperature=0.65), []))
    counts = np.bincount(drawn["temperature"], minlength=VOCAB)
    common = probs * DRAWS >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probs[common], probs[~common].sum()) * DRAWS
    assert stats.chisquare(observed, expected).pvalue < 1e-6


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.9),
)
def test_truncation_by_definition(seed, temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).normal(0, 2, 40).astype(np.float32)
    request = Request(0, (1,), 1, temperature, top_k, top_p, min_p)
    row = requests.settings_of([request], 40, 1, 0)
    got = np.asarray(jax.nn.log_softmax(PROCESS(logits[None], row)))[0]
    expected = distribution(logits, request, [])
    kept = got > -np.inf
    # One token may go either way where rounding decides whether the mass has reached p.
    assert (kept != (expected > -np.inf)).sum() <= 1
    if (kept == (expected > -np.inf)).all():
        np.testing.assert_allclose(got[kept], expected[kept], atol=1e-4)


PROCESS = jax.jit(lambda logits, row: sampling.process(logits, row, truncate=True))


def test_ties_are_kept():
    """Two tokens as likely as each other both survive top_k=1."""
    logits = np.array([[1.0, 3.0, 3.0, 0.0]], np.float32)
    row = requests.settings_of([Request(0, (1,), 1, top_k=1)], 4, 1, 0)
    assert (np.asarray(PROCESS(logits, row))[0] > -np.inf).tolist() == [False, True, True, False]
