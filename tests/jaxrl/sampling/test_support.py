"""The recorded support of a draw: as bits, against transformers' warpers, and as sampled."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder
from jaxrl.sampling import requests, sampler, sampling, support
from jaxrl.sampling.slots import Features
from jaxrl.training.logprobs import make_score
from jaxrl.training.packing import PackingConfig, pack, trajectory
from jaxrl.types import Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampler_oracle import CONFIG, KEY, STOPS

CUTS = {
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "k and p": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}
RECORDED = Features(truncate=True, support=True)
SAMPLE = jax.jit(sampling.sample, static_argnames=("truncate", "record_support"))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 97])
def test_bits_hold_any_set_and_zeros_all_tokens(vocab_size):
    rng = np.random.default_rng(vocab_size)
    kept = rng.random((3, 5, vocab_size)) < 0.3
    kept[..., rng.integers(vocab_size)] = True
    bits = support.to_words(jnp.asarray(kept))
    assert (bits.shape, bits.dtype) == ((3, 5, support.words(vocab_size)), jnp.uint32)
    np.testing.assert_array_equal(support.of_words(bits, vocab_size), kept)
    beyond = support.of_words(bits, vocab_size + 40)[..., vocab_size:]
    assert not beyond.any(), "padding of the vocabulary is in no support"
    assert support.of_words(jnp.zeros_like(bits), vocab_size + 40).all()


def test_the_gradient_outside_of_a_support_is_zero():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=40), jnp.float32)
    kept = jnp.arange(40) % 3 == 0

    def logp(logits):
        return jax.nn.log_softmax(support.restrict(logits, support.to_words(kept)))[6]

    slope = jax.grad(logp)(logits)
    assert not slope[~kept].any()
    assert (slope[kept] != 0).all()


def recorded(logits, settings):
    """Which tokens [N, V] a draw from each row of logits could give."""
    items = [Request(n, (1,), 1, **settings) for n in range(len(logits))]
    rows, vocab_size = logits.shape
    keys = jax.random.split(KEY, rows)
    row = requests.settings_of(items, vocab_size, rows, 0)
    drawn = SAMPLE(logits, row, keys, truncate=True, record_support=True)
    kept = np.asarray(support.of_words(drawn.support, vocab_size))
    assert kept[np.arange(rows), drawn.token].all()
    return kept


@pytest.mark.parity
@pytest.mark.parametrize("name", CUTS)
def test_the_support_is_that_of_transformers(name):
    """Temperature, top-k, top-p, min-p: its order, with ties among logits cut by top-k alone."""
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as theirs

    logits = np.random.default_rng(1).normal(0, 2, (64, 300)).astype(np.float32)
    if name == "top_k":
        logits = logits.round()  # others cut ties as they happen to be sorted
    cuts = CUTS[name]
    scores = torch.tensor(logits) / cuts.get("temperature", 1.0)
    for field, warper in {
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }.items():
        if field in cuts:
            scores = warper(cuts[field])(None, scores)
    np.testing.assert_array_equal(recorded(logits, cuts), torch.isfinite(scores).numpy())


def test_top_k_alone_keeps_k_where_the_last_have_no_mass():
    logits = np.array([[0.0, -40.0, -50.0, -60.0, -70.0]], np.float32)
    assert recorded(logits, {"top_k": 4}).tolist() == [[True] * 4 + [False]]


@pytest.fixture(scope="module")
def completions():
    """Of requests that truncate in different ways, and of one that does not."""
    items = [
        dataclasses.replace(request, **settings)
        for request, settings in zip(
            oracle.requests(6, temperature=0.9), [*CUTS.values(), {}], strict=True
        )
    ]
    return [c for _, c in sorted(oracle.run(items, features=RECORDED).items())]


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("log-probs over the recorded support equal those of the sampler to 1e-4")
@pytest.mark.parametrize("shape", [PackingConfig(4096), PackingConfig(64, row_length=64)])
def test_a_trainer_agrees_over_the_recorded_support(completions, shape):
    assert all(c.support.shape == (len(c.tokens), 2) for c in completions)
    for temperature in {c.request.temperature for c in completions}:
        chosen = [c for c in completions if c.request.temperature == temperature]
        batch = trajectory(chosen, [1.0] * len(chosen), range(len(chosen)), length=64)
        score = make_score(CONFIG, temperature=temperature)
        packed = pack(batch, shape)[0]
        scored = score(oracle.weights(), packed)
        np.testing.assert_allclose(scored, batch.behavior_logp, atol=1e-4)
        if temperature != 0.9:
            full = score(oracle.weights(), packed.replace(support=None))
            assert np.abs(full - batch.behavior_logp).max() > 0.1


@pytest.mark.exact("the support of a sequence that was interrupted is that of an uninterrupted one")
def test_support_is_carried_over_an_interruption(completions):
    items = [c.request for c in completions]
    setup = sampler.Setup(
        CONFIG, KEY, STOPS, 64, 64, sampler.SamplerConfig(8, chunk=16, bucket=64), RECORDED
    )
    params, work = decoder.unstack(oracle.weights()), sampler.Work()
    sampler.submit(setup, work, items)
    done = sampler.advance(setup, params, work, budget=18)
    standing = sampler.unfinished(setup, work)
    assert any(len(c.tokens) for c in standing)
    fresh = sampler.Work()
    sampler.submit(setup, fresh, [requests.resume(c) for c in standing])
    standing = sampler.unfinished(setup, fresh)
    assert all(c.support is not None or not len(c.tokens) for c in standing)
    while fresh:
        done += sampler.advance(setup, params, fresh)
    for c in done:
        uninterrupted = completions[c.request.id]
        np.testing.assert_array_equal(c.tokens, uninterrupted.tokens)
        np.testing.assert_array_equal(c.support, uninterrupted.support)


def test_given_tokens_have_the_whole_support():
    request = Request(0, (1, 5), 9, top_k=3, prefix=requests.forced([4, 6]))
    completion = oracle.run([request], features=RECORDED, stop_ids=[])[0]
    assert not completion.support[:2].any()
    counts = support.of_words(jnp.asarray(completion.support[2:]), 40).sum(axis=-1)
    assert (counts == 3).all()


def test_nothing_is_recorded_unless_asked_for():
    (completion,) = oracle.run([Request(0, (1, 5), 3, top_k=3)]).values()
    assert completion.support is None
    assert trajectory([completion], [1.0], [0], length=8).support is None
