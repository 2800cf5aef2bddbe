"""Observations longer than one block of attention, appended to held sequences."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, head
from jaxrl.sampling import sampler
from jaxrl.types import Request, Source
from tests.jaxrl import sampler_oracle as oracle


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, tokens):
    index = jnp.arange(tokens.shape[1])[None]
    hidden = decoder.hidden(config, params, tokens, index, jnp.full_like(index, tokens.shape[1]))
    return head.logits(hidden, decoder.unembedding(params))


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("a log-prob sampled after a long observation equals the uncached one to 1e-4")
@pytest.mark.parametrize("observed", [129, 200, 230])
def test_log_probs_after_a_long_observation(observed):
    """At the default `prefill_piece` the cache is 256 wide and so is the observation's bucket."""
    rng = np.random.default_rng(observed)
    config = dataclasses.replace(oracle.CONFIG, max_positions=512)
    layout = sampler.SamplerConfig(slots=4, chunk=16)
    everything = tuple(range(config.vocab_size))  # the first turn ends with its first token
    made = sampler.Setup(config, oracle.KEY, everything, 256, 320, sampler=layout, hold=True)
    params, work = oracle.weights(), sampler.Work()
    given, prompt = decoder.unstack(params), tuple(rng.integers(1, 40, 20).tolist())
    sampler.submit(made, work, [Request(1, prompt, 280)])
    (turn,) = sampler.advance(made, given, work)
    assert len(turn.tokens) == 1
    sampler.extend(made, given, work, {1: rng.integers(1, 40, observed).tolist()})
    made = made._replace(stop_ids=())
    while not (turn := sampler.advance(made, given, work)):
        pass
    (done,) = turn
    sequence = np.array([*prompt, *done.tokens.tolist()], np.int32)
    scores = np.asarray(_logits(config, params, sequence[None])[0], np.float64)
    logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    chosen = np.flatnonzero(done.source == Source.POLICY)
    assert len(chosen) == 280 - observed and (done.source == Source.OBSERVATION).sum() == observed
    at = len(prompt) + chosen
    np.testing.assert_allclose(done.logp[chosen], logp[at - 1, sequence[at]], atol=1e-4)
