"""Gated attention against float64 sums over the keys, and what gates leave as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.gates import Gates, cache_share, gated, most, take

MODEL = DecoderConfig(11, 16, 24, 2, 4, 2, 8)
TOKENS = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6]])
PLACE = jnp.arange(8)[None]


def head(q, k, v, seen, scale):
    """One head in float64: queries and keys [T, H]."""
    scores = np.where(seen, np.float64(q) @ np.float64(k).T * scale, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ np.float64(v)


def test_a_gate_mixes_all_keys_with_the_first_and_the_last():
    """Four queries' heads share two gates; a local head sees position 0 and the last two."""
    rng, alpha = np.random.default_rng(0), np.array([0.25, 0.8])
    q, k, v = (rng.normal(size=(1, 8, n, 4)).astype(np.float32) for n in (4, 2, 2))
    held = Gates(jnp.asarray(alpha), sink=1, recent=2)
    rest, layout = take({"attention": 1, "gates": held}, decoder.Layout())
    got = layout.attend(q, k, v, attention.tree_mask(jnp.full((1, 8), 8), PLACE), scale=0.3)
    place = np.arange(8)
    causal = place[None] <= place[:, None]
    local = causal & ((place[:, None] - place[None] < 2) | (place[None] < 1))
    for n in range(4):
        one = [head(q[0, :, n], k[0, :, n // 2], v[0, :, n // 2], m, 0.3) for m in (causal, local)]
        wanted = alpha[n // 2] * one[0] + (1 - alpha[n // 2]) * one[1]
        np.testing.assert_allclose(got[0, :, n], wanted, atol=1e-5)
    assert rest == {"attention": 1}


@pytest.mark.broad
def test_gates_in_training_and_decoding():
    """Open gates change nothing, closed ones do; a cache gives what the whole pass gives."""
    params = decoder.init(MODEL, jax.random.key(0))
    until = jnp.full_like(PLACE, 8)
    plain = decoder.hidden(MODEL, params, TOKENS, PLACE, until)
    alpha = jnp.array([[1.0, 0.3], [0.0, 0.6]])
    for gates, same in ((jnp.ones((2, 2)), True), (alpha, False)):
        own = gated(params, Gates(gates, 1, 2))
        whole = decoder.hidden(MODEL, own, TOKENS, PLACE, until)
        assert np.allclose(whole, plain, atol=1e-6) == same
        layers, cache, parts = decoder.unstack(own), decoder.empty_cache(MODEL, 1, 8), []
        for start, end in ((0, 5), (5, 6), (6, 8)):
            part = TOKENS[:, start:end], PLACE[:, start:end]
            out, cache = decoder.extend(MODEL, layers, *part, cache)
            parts.append(out)
        np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)
    grads = jax.grad(
        lambda a: decoder.hidden(MODEL, gated(params, Gates(a, 1, 2)), TOKENS, PLACE, until).sum()
    )(alpha)
    assert np.isfinite(grads).all() and (grads != 0).all()


def test_without_gates_the_program_is_the_same():
    params = {"attention": 1}
    layout = decoder.Layout()
    assert take(params, layout) == (params, layout)


def test_choosing_heads_and_what_they_keep():
    """Three full heads of four, and a fourth that keeps 3 of 12 tokens."""
    chosen = most(jnp.array([[0.5, 0.9], [0.1, 0.5]]), 2)
    np.testing.assert_array_equal(chosen, [[1, 1], [0, 0]])  # of equal ones the first
    assert float(cache_share(jnp.array([[1, 1], [0, 1.0]]), 12, 1, 2)) == (3 + 0.25) / 4
    assert float(cache_share(jnp.zeros((1, 1)), 2, 1, 2)) == 1.0
