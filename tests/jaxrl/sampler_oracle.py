"""What sampling should do: an uncached forward pass, and the definitions in float64 NumPy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import sampler
from jaxrl.sampling.slots import Features
from jaxrl.types import Completion, Request

CONFIG = DecoderConfig(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=64,
    tie_embeddings=False,
)
STOPS = (0, 11, 23)
KEY = jax.random.key(7)
ALL = Features(truncate=True, penalize=True, biases=4, top=3)


@functools.cache
def weights(seed: int = 0, config: DecoderConfig = CONFIG) -> decoder.Params:
    """Fresh parameters, with sharper scores than at initialisation."""
    params = decoder.init(config, jax.random.key(seed))
    return {**params, "head": 2 * params["head"]}


def requests(count: int, **settings) -> list[Request]:
    """Requests of mixed lengths, every other pair of one prompt."""
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(1, 40, rng.integers(1, 15)).tolist()) for _ in range(count)]
    budgets = rng.integers(1, 40, count).tolist()
    return [Request(i, prompts[i // 2], budgets[i], **settings) for i in range(count)]


def run(items: Sequence[Request], *, seed: int = 0, **changes) -> dict[int, Completion]:
    """Completions by id, with compiled shapes that all tests share."""
    names = [field.name for field in dataclasses.fields(sampler.SamplerConfig)]
    layout = {k: changes.pop(k) for k in names if k in changes}
    layout = {"slots": 8, "chunk": 16, "bucket": 64, **layout}
    given = {"stop_ids": STOPS, "key": KEY, "features": ALL, **changes}
    params = decoder.unstack(weights(seed))
    done = sampler.generate(
        CONFIG,
        params,
        items,
        max_prompt=32,
        max_length=64,
        sampler=sampler.SamplerConfig(**layout),
        **given,
    )
    return {c.request.id: c for c in done}


@functools.partial(jax.jit, static_argnums=0)
def _forward(config: DecoderConfig, params: decoder.Params, tokens: jax.Array) -> jax.Array:
    rows, width = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(width), tokens.shape)
    hidden = decoder.hidden(config, params, tokens, positions, jnp.full((rows, width), width))
    scores = head.logits(
        hidden.reshape(rows * width, -1), decoder.unembedding(params), softcap=config.logit_softcap
    )
    return scores.reshape(rows, width, -1), hidden


def forward(
    sequences: Sequence[Sequence[int]], params: decoder.Params, config: DecoderConfig = CONFIG
) -> tuple[np.ndarray, np.ndarray]:
    """Logits [N, T, V] and hidden states, uncached; index t predicts token t + 1. T is a multiple
    of 64."""
    longest = max(len(sequence) for sequence in sequences)
    tokens = np.zeros((len(sequences), -(-longest // 64) * 64), np.int32)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    scores, hidden = jax.device_get(_forward(config, params, tokens))
    return scores.astype(np.float64), hidden.astype(np.float64)


def distribution(logits: np.ndarray, request: Request, before: Sequence[int]) -> np.ndarray:
    """Log-probabilities [V] that a token is sampled with after `before`, by the definitions."""
    scores = logits.astype(np.float64).copy()
    for token, bias in request.logit_bias:
        scores[token] += bias
    for token in set(before):
        factor = request.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    if request.temperature:
        scores /= request.temperature
        order = np.argsort(-scores, kind="stable")
        if request.top_k:
            scores[order[request.top_k :]] = -np.inf
        probs = _softmax(scores)
        mass = 0.0
        cut = False
        for token in order:
            if cut:
                scores[token] = -np.inf
            mass += probs[token]
            cut = cut or mass >= request.top_p
        scores[probs < request.min_p * probs.max()] = -np.inf
    with np.errstate(divide="ignore"):
        return np.log(_softmax(scores))


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def recorded_as_recomputed(
    completions: Sequence[Completion], params: decoder.Params, config: DecoderConfig = CONFIG
) -> int:
    """Check every token the policy chose against the uncached forward pass; how many there were."""
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in completions]
    scores, _ = forward(sequences, params, config)
    return sum(
        as_expected(c, row, sequence)
        for c, row, sequence in zip(completions, scores, sequences, strict=True)
    )


def as_expected(c: Completion, scores: np.ndarray, sequence: Sequence[int]) -> int:
    """Check a completion against logits [T, V] of its sequence."""
    start = len(c.request.prompt)
    chosen = np.flatnonzero(c.actions)
    for t in chosen:
        logp = distribution(scores[start + t - 1], c.request, sequence[: start + t])
        kept = logp > -np.inf
        assert abs(c.logp[t] - logp[c.tokens[t]]) < 1e-4, (c.request, t)
        entropy = -np.sum(np.exp(logp[kept]) * logp[kept])
        assert abs(c.entropy[t] - entropy) < 1e-3, (c.request, t)
        if c.request.temperature == 0:
            assert logp[c.tokens[t]] >= logp.max() - 1e-5
        if c.top_ids is not None:
            best = np.sort(logp)[::-1][: c.request.top_logprobs]
            seen = c.top_logp[t] > -np.inf
            np.testing.assert_array_equal(seen, best > -np.inf)
            np.testing.assert_allclose(c.top_logp[t][seen], best[seen], atol=1e-4)
            np.testing.assert_allclose(logp[c.top_ids[t]][seen], best[seen], atol=1e-4)
    return len(chosen)
