"""The sampler as a whole: what is sampled, what is recorded, what neither may depend on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax import monitoring
from scipy import stats

from jaxrl.models import decoder
from jaxrl.sampling import admission, drafts, logits, prefixes, requests, sampler, warm_up
from jaxrl.types import Request
from tests.jaxrl import sampler_oracle as oracle

INF = float("inf")
ENDLESS = tuple((token, -INF) for token in oracle.STOPS)
MIXED = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0, "top_logprobs": 2},
    {"top_k": 5},
    {"top_p": 0.8, "top_logprobs": 3},
    {"min_p": 0.1},
    {"repetition_penalty": 1.8},
    {"logit_bias": ((3, 2.5), (5, -INF), (0, -INF))},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 0.7},
    {"temperature": 0.0, "repetition_penalty": 3.0, "logit_bias": ((7, -INF),)},
]


def mixed(count: int) -> list[Request]:
    return [
        dataclasses.replace(r, **MIXED[i % len(MIXED)])
        for i, r in enumerate(oracle.requests(count))
    ]


@pytest.fixture(scope="module")
def completions():
    return oracle.run(mixed(40))


@pytest.mark.broad
@pytest.mark.exact("log-probs and entropies of the sampler equal those of the trainer")
def test_recorded_logprobs_are_the_trainers(completions):
    """Log-probabilities, entropies and top log-probabilities, under every setting in one batch."""
    assert len(completions) == 40
    assert oracle.recorded_as_recomputed(list(completions.values()), oracle.weights()) > 300


def test_budgets_and_stops(completions):
    for c in completions.values():
        assert c.tokens.dtype == np.int32
        assert len(c.tokens) == len(c.logp) == len(c.entropy) == len(c.version) == len(c.source)
        assert c.stopped == (c.tokens[-1] in oracle.STOPS)
        assert not set(oracle.STOPS) & set(c.tokens[:-1].tolist())
        assert c.finished and (c.stopped or len(c.tokens) == c.request.max_new_tokens)
        assert not {t for t, b in c.request.logit_bias if b == -INF} & set(c.tokens.tolist())
    assert any(c.stopped for c in completions.values())
    assert not all(c.stopped for c in completions.values())


@pytest.mark.sample(2, broad=4)
@pytest.mark.exact("sampled tokens do not depend on other requests, order, slots or chunks")
@pytest.mark.parametrize(
    "changes",
    [
        {"order": -1},
        {"slots": 4},
        {"slots": 16, "chunk": 1},
        {"chunk": 5, "order": -1},
        {"prefill_piece": 16},
        {"take": slice(5, 6)},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_the_batch(completions, changes):
    """Not on company, order, slots, chunks, nor on how prompts are read."""
    changes = dict(changes)
    some = mixed(40)[changes.pop("take", slice(None))][:: changes.pop("order", 1)]
    for name, c in oracle.run(some, **changes).items():
        np.testing.assert_array_equal(c.tokens, completions[name].tokens)
        np.testing.assert_allclose(c.logp, completions[name].logp, atol=1e-5)


@pytest.mark.exact("requests of equal ids and prompts get equal tokens")
def test_equal_ids_are_equal_draws():
    """Of one request, submitted more often than there are slots; none gets lost."""
    params, items = decoder.unstack(oracle.weights()), [Request(4, (5, 6), 9)] * 20
    layout = sampler.SamplerConfig(slots=8, chunk=16)
    done = sampler.generate(
        oracle.CONFIG, params, items, stop_ids=oracle.STOPS, key=oracle.KEY, max_prompt=32,
        max_length=64, features=oracle.ALL, sampler=layout,
    )  # fmt: skip
    tokens = [c.tokens.tolist() for c in done]
    assert len(tokens) == 20 and all(t == tokens[0] for t in tokens)


def test_draws_depend_on_key_and_id(completions):
    """Equal prompts with other ids, and equal ids under another key, are sampled afresh."""
    same = [Request(i, (5, 6), 30) for i in range(3)]
    texts = {tuple(c.tokens.tolist()) for c in oracle.run(same).values()}
    again = {tuple(c.tokens.tolist()) for c in oracle.run(same, key=jax.random.key(8)).values()}
    assert len(texts) == 3 and not texts & again


@pytest.mark.parametrize(
    "drafter",
    [{}, pytest.param({"drafts": "layers", "draft_layers": 1}, marks=pytest.mark.broad)],
    ids=["plain", "drafts"],
)
def test_sampled_frequencies(monkeypatch, drafter):
    """Whole requests against the exact distribution of the first token, of which there is a draft
    where there are drafts; chi-squared."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    kinds, draws = [{}, {"temperature": 0.5, "top_p": 0.9}, {"repetition_penalty": 4.0}], 400
    items = [Request(i, (9, 4, 2), 2, **kinds[i // draws]) for i in range(len(kinds) * draws)]
    done = oracle.run(items, slots=512, **drafter)
    scores = oracle.forward([(9, 4, 2)], oracle.weights())[0][0, 2]
    for k in range(len(kinds)):
        probs = np.exp(oracle.distribution(scores, items[k * draws], (9, 4, 2)))
        tokens = [done[i].tokens[0] for i in range(k * draws, (k + 1) * draws)]
        counts = np.bincount(tokens, minlength=40)
        common = probs * draws >= 5
        observed = np.append(counts[common], counts[~common].sum())
        expected = np.append(probs[common], probs[~common].sum()) * draws
        filled = expected > 0
        assert filled.sum() > 2 and not observed[~filled].any()
        assert stats.chisquare(observed[filled], expected[filled]).pvalue > 1e-3


def test_nothing_is_compiled_after_warm_up():
    """200 requests of mixed lengths and settings, after 200 others."""
    items = [dataclasses.replace(r, top_logprobs=0) for r in mixed(400)]
    oracle.run(items[:200])
    with compilations() as compiled:
        assert len(oracle.run(items[200:])) == 200
        assert not compiled
        jax.jit(lambda x: x + 1)(np.zeros(3))  # the count can rise
        assert compiled


@pytest.mark.broad
@pytest.mark.parametrize("cache", [{}, {"prefix_cache": 1, "prefix_block": 6}], ids=str)
def test_compiled_ahead(cache):
    """After `warm_up` nothing is compiled, whatever number of requests of whatever lengths."""
    layout = {"slots": 8, "chunk": 16, "bucket": 16, "prefill_rows": 4, "prefill_piece": 16} | cache
    plain = {"max_prompt": 32, "max_length": 64, "features": sampler.Features()}
    setup = sampler.Setup(
        oracle.CONFIG,
        oracle.KEY,
        oracle.STOPS,
        sampler=sampler.SamplerConfig(**layout),
        **plain,
    )
    warm_up.warm_up(setup, decoder.unstack(oracle.weights()))
    with compilations() as compiled:
        for count in (1, 3, 40):
            assert (
                len(oracle.run(oracle.requests(count), **layout, features=plain["features"]))
                == count
            )
    assert not compiled


@pytest.mark.broad
def test_prompts_of_more_blocks_than_pages_are_compiled_ahead(monkeypatch):
    """What is left of a prompt behind three blocks may be longer than one."""
    monkeypatch.setattr(prefixes, "pages", lambda *_: 3)
    layout = sampler.SamplerConfig(
        prefill_rows=1, prefill_piece=64, prefix_cache=1, prefix_block=8, slots=1
    )
    setup = sampler.Setup(oracle.CONFIG, oracle.KEY, oracle.STOPS, 64, 96, layout)
    params, none = (decoder.unstack(oracle.weights()),), np.zeros(1, np.int32)
    warm_up._warm_up_prefixes(setup, params, [16, 32, 64])
    with compilations() as compiled:
        for length in (1, 8, 20, 33, 50, 64):
            tokens = np.full((1, setup.prompt_width), length, np.int32)
            admission.prefill_cached(
                setup, params, sampler.Work(), tokens, np.array([length], np.int32), none
            )
    assert not compiled


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Programs that XLA compiles meanwhile."""
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        monitoring.unregister_event_duration_listener(listen)


def test_stop_strings():
    """The response ends with the token that completes the string, whatever the chunk and with a
    prefix cache."""

    def text(tokens):
        return "".join(chr(64 + t) for t in tokens)

    base = [Request(i, (3, 1, 2), 40, logit_bias=ENDLESS) for i in range(6)]
    free = oracle.run(base)
    stops = {i: (text(c.tokens[i + 4 : i + 6]), "~") for i, c in free.items()}
    items = [dataclasses.replace(r, stop=stops[r.id]) for r in base]
    for layout in ({}, {"chunk": 3, "prefix_cache": 1, "prefix_block": 1}):
        for i, c in oracle.run(items, text=text, **layout).items():
            end = text(free[i].tokens).index(stops[i][0]) + 2
            assert text(c.tokens) == text(free[i].tokens)[:end] and c.stopped
    with pytest.raises(ValueError, match="text"):
        oracle.run(items)


def guided(guide: logits.Guide) -> list:
    items = oracle.requests(6, temperature=0.8, top_p=0.95)
    return list(oracle.run(items, guide=guide, slots=4).values())


@pytest.mark.broad
def test_proxy_tuning():
    small = decoder.DecoderConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2,
        num_kv_heads=1, head_dim=8, max_positions=64, tie_embeddings=False,
    )  # fmt: skip
    helpers = [oracle.weights(seed, small) for seed in (1, 2)]
    done = guided(
        logits.Guide(
            logits.proxy_tuning, 1.5, (small, small), tuple(decoder.unstack(p) for p in helpers)
        )
    )
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in done]
    base = oracle.forward(sequences, oracle.weights())[0]
    tuned, untuned = (oracle.forward(sequences, p, small)[0] for p in helpers)
    for c, scores, sequence in zip(done, base + 1.5 * (tuned - untuned), sequences, strict=True):
        assert oracle.as_expected(c, scores, sequence)


def test_value_guided_decoding():
    values = np.random.default_rng(0).normal(0, 0.2, (40, 32)).astype(np.float32)
    done = guided(logits.Guide(logits.value_guided, (values, 2.0)))
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in done]
    base, hidden = oracle.forward(sequences, oracle.weights())
    steered = base + 2.0 * hidden @ values.T.astype(np.float64)
    for c, scores, sequence in zip(done, steered, sequences, strict=True):
        assert oracle.as_expected(c, scores, sequence)


def test_contrastive_decoding():
    amateur = oracle.weights(5)
    done = guided(
        logits.Guide(logits.contrastive, (0.1, 0.5), (oracle.CONFIG,), (decoder.unstack(amateur),))
    )
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in done]
    base = oracle.forward(sequences, oracle.weights())[0]
    weak = oracle.forward(sequences, amateur)[0]
    plausible = base >= base.max(-1, keepdims=True) + np.log(0.1)
    steered = np.where(plausible, 1.5 * base - 0.5 * weak, -INF)
    for c, scores, sequence in zip(done, steered, sequences, strict=True):
        assert oracle.as_expected(c, scores, sequence)


def test_the_nucleus_of_another_policy():
    mask = oracle.weights(5)
    guide = logits.Guide(logits.nucleus_of, 0.6, (oracle.CONFIG,), (decoder.unstack(mask),))
    done = list(oracle.run(oracle.requests(6, temperature=0.8), guide=guide, slots=4).values())
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in done]
    base = oracle.forward(sequences, oracle.weights())[0]
    other = oracle.forward(sequences, mask)[0]
    for c, own, masking, sequence in zip(done, base, other, sequences, strict=True):
        steered = np.full(own.shape, -INF)
        for t, row in enumerate(masking):
            probs = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            order = np.argsort(-probs)
            count = 1 + np.sum(np.cumsum(probs[order]) < 0.6)
            steered[t, order[:count]] = own[t, order[:count]]
        assert oracle.as_expected(c, steered, sequence)


BAD = [
    (Request(3, (), 4), "request 3: prompt is empty"),
    (Request(3, (1,), 0), "max_new_tokens=0"),
    (Request(3, (1,) * 60, 5), "max_positions=64"),
    (Request(3, (1, 40), 5), "token 40"),
    (Request(3, (1, -1), 5), "token -1"),
    (Request(3, (1,), 5, temperature=-0.1), "temperature=-0.1"),
    (Request(3, (1,), 5, temperature=float("nan")), "temperature=nan"),
    (Request(3, (1,), 5, top_k=-1), "top_k=-1"),
    (Request(3, (1,), 5, top_p=0.0), "top_p=0.0"),
    (Request(3, (1,), 5, min_p=1.5), "min_p=1.5"),
    (Request(3, (1,), 5, repetition_penalty=0.0), "repetition_penalty=0.0"),
    (Request(3, (1,), 5, top_logprobs=41), "top_logprobs=41"),
    (Request(3, (1,), 5, stop=("",)), "stop="),
    (Request(3, (1,), 5, logit_bias=((40, 1.0),)), "logit_bias has token 40"),
    (Request(3, (1,), 5, logit_bias=((4, INF),)), "logit_bias"),
    (Request(3, (1,), 5, logit_bias=tuple((t, -INF) for t in range(40))), "every token"),
    (Request(3, (1,), 2, prefix=requests.forced((4, 5))), "max_new_tokens=2"),
]


@pytest.mark.parametrize(("request_", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_requests(request_, message):
    with pytest.raises(ValueError, match=message) as caught:
        oracle.run([Request(0, (1,), 3), request_])
    assert "request 3" in str(caught.value)


def test_no_requests():
    assert oracle.run([]) == {}


def test_bad_guide():
    other = dataclasses.replace(oracle.CONFIG, vocab_size=41)
    with pytest.raises(ValueError, match="vocab_size=41"):
        oracle.run([Request(0, (1,), 3)], guide=logits.Guide(logits.keep, (), (other,), ({},)))
