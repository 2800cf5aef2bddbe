"""Prompts are read but for their last token, which decoding reads once; and the prefix cache."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl.models import decoder, lora, lora_stack
from jaxrl.models.config import DecoderConfig, Experts, Latent
from jaxrl.models.lora import LoraConfig
from jaxrl.sampling import admission, prefixes, sampler
from jaxrl.types import Completion, Params, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.models.test_extend import FAMILIES

PLAIN = DecoderConfig(
    vocab_size=31, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=2,
    num_kv_heads=1, head_dim=8, max_positions=64,
)  # fmt: skip
CONFIGS = {
    "plain": PLAIN,
    "windows": dataclasses.replace(PLAIN, sliding_window=3, local_layers=(True, False)),
    "experts": dataclasses.replace(PLAIN, experts=Experts(4, 2, 12)),
    "latent": dataclasses.replace(
        PLAIN, num_kv_heads=2, latent=Latent(kv_rank=8, q_rank=6, nope_dim=6, rope_dim=2, v_dim=4)
    ),
}
LENGTHS = np.array([17, 1, 2, 30], np.int32)
WIDTH = 32


@pytest.mark.sample(2, broad=2)
@pytest.mark.exact("a last prompt token that is read once: caches and states to the last bit")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("piece", [8, WIDTH])
def test_the_last_token_is_read_once(name, piece):
    config = CONFIGS[name]
    params = decoder.unstack(decoder.init(config, jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(1, 31, (len(LENGTHS), WIDTH)).astype(np.int32)
    rows, last = np.arange(len(LENGTHS)), LENGTHS - 1

    def read(length):
        return admission.prefill((config,), (params,), tokens, length, piece=piece)[0]

    once, twice = read(LENGTHS), read(LENGTHS + 1)
    for leaf in jax.tree.leaves(once):
        assert not np.asarray(leaf)[rows, :, last].any()
    for leaf in jax.tree.leaves(twice):
        assert np.asarray(leaf)[rows, :, last].any()

    @jax.jit
    def decode(cache):
        ids, positions = tokens[rows, last][:, None], jnp.asarray(last)[:, None]
        return decoder.extend(config, params, ids, positions, cache)

    jax.tree.map(np.testing.assert_array_equal, decode(once), decode(twice))


BLOCK = 4
SYSTEMS = [tuple(range(1, n)) for n in (4, 10, 21)] + [(*range(1, 9), *range(30, 36))]
"""Beginnings of prompts, some of which begin alike."""
CACHED = {"prefix_cache": 1, "prefix_block": BLOCK}


@functools.cache
def unstacked(seed: int = 0) -> Params:
    """The same arrays each time."""
    return decoder.unstack(oracle.weights(seed))


def sampled(
    items: list[Request],
    known: prefixes.Prefixes | None = None,
    params: Params | None = None,
    *,
    config: DecoderConfig = oracle.CONFIG,
    **layout,
) -> tuple[dict[int, Completion], sampler.Work]:
    """Completions by id, of a sampler whose prefix cache holds what is known."""
    layout = {"slots": 4, "prefill_rows": 2, "prefill_piece": 16} | CACHED | layout
    setup = sampler.Setup(
        config, oracle.KEY, oracle.STOPS, 60, 80, sampler.SamplerConfig(**layout), oracle.ALL
    )
    if config == oracle.CONFIG:
        setup = setup._replace(max_prompt=32, max_length=64)
    params = unstacked() if params is None else params
    work, done = sampler.Work(prefixes=known or prefixes.Prefixes()), {}
    sampler.submit(setup, work, items)
    while work:
        done |= {c.request.id: c for c in sampler.advance(setup, params, work)}
    return done, work


def check_equal(expected: dict[int, Completion], other: dict[int, Completion], **error) -> None:
    """To the last bit, or but for an error of what is computed of the logits."""
    assert expected.keys() == other.keys()
    for name, completion in expected.items():
        assert completion.tokens.tolist() == other[name].tokens.tolist()
        for field in ("logp", "entropy", "top_logp"):
            a, b = getattr(completion, field), getattr(other[name], field)
            if error and a is not None:
                np.testing.assert_allclose(b, a, **error)
            else:
                np.testing.assert_array_equal(b, a)


@st.composite
def mixes(draw) -> list[Request]:
    """Requests whose prompts begin alike, some in groups of one prompt."""
    items = []
    for _ in range(draw(st.integers(1, 5))):
        end = draw(st.lists(st.integers(1, 39), min_size=1, max_size=9))
        prompt = (*draw(st.sampled_from(SYSTEMS)), *end)
        for _ in range(draw(st.sampled_from([1, 1, 3]))):
            kind = draw(st.sampled_from([{}, {"temperature": 0.0}, {"top_p": 0.8}]))
            new = draw(st.integers(1, 12))
            items.append(Request(len(items), prompt, new, top_logprobs=2, **kind))
    return items


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=mixes(), items=mixes())
@pytest.mark.parametrize(
    ("pages", "rows"),
    [
        (3, 2),
        pytest.param(1000, 2, marks=pytest.mark.broad),
        pytest.param(1, 4, marks=pytest.mark.slow),
        pytest.param(6, 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.exact("what the prefix cache holds changes no token and no log-prob, to the last bit")
def test_what_the_cache_holds_changes_nothing(monkeypatch, before, items, pages, rows):
    monkeypatch.setattr(prefixes, "pages", lambda *arguments: pages)
    cold, first = sampled(items, prefill_rows=rows)
    _, used = sampled(before, prefill_rows=rows)
    after_others, _ = sampled(items, used.prefixes, prefill_rows=rows)
    again, second = sampled(items, first.prefixes, prefill_rows=rows)
    check_equal(cold, after_others)
    check_equal(cold, again)
    assert len(second.prefixes.shards[0].blocks) <= pages
    if pages == 1000:
        starts = {r.prompt for r in items}
        whole = sum((len(prompt) - 1) // BLOCK * BLOCK for prompt in starts)
        assert second.blocks == 0 and second.cached >= whole
    check_equal(sampled(items, prefix_cache=0, prefix_block=64)[0], cold, rtol=1e-5, atol=1e-5)


SHARING = [Request(i, (*SYSTEMS[2], 30 + i), 6) for i in range(4)]


def test_other_weights_are_other_prefixes():
    """Also in a pool of another size."""
    items = SHARING
    old, new = unstacked(0), unstacked(1)
    first, work = sampled(items, params=old)
    known = work.prefixes
    assert work.cached == 3 * 20 and work.blocks == 5
    changed, work = sampled(items, known, new)
    assert work.blocks == 5
    check_equal(sampled(items, params=new)[0], changed)
    assert any(first[i].logp.tolist() != changed[i].logp.tolist() for i in first)
    back, work = sampled(items, known, old, prefix_cache=2)
    assert work.blocks == 5  # those of the old weights are gone
    check_equal(first, back)
    free = len(known.shards[0].free)
    assert free == prefixes.pages(2, BLOCK, (oracle.CONFIG,)) - 5
    assert jax.tree.leaves(known.pool)[0].shape[0] == free + 5 + 1


def test_blocks_that_were_not_read_are_not_found(monkeypatch):
    """Reading the second block is interrupted."""
    read, known, calls = prefixes.read_block, prefixes.Prefixes(), []

    def interrupt(*arguments, **more):
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read(*arguments, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prefixes, "read_block", interrupt)
        sampled(SHARING, known)
    again, work = sampled(SHARING, known)
    assert work.blocks == 5
    check_equal(sampled(SHARING)[0], again)


@pytest.mark.broad
def test_other_adapters_are_other_prefixes():
    items, old = SHARING, unstacked()
    chosen = LoraConfig(rank=2, targets=("*/attention/*",))
    trained = lora.init(jax.random.key(0), oracle.CONFIG, oracle.weights(), chosen)
    trained = jax.tree.map(lambda x: x + 0.3, trained)
    names = list(lora_stack.matrices(oracle.CONFIG))
    stack = lora_stack.attach(oracle.CONFIG, old, names, count=2, rank=2)
    stack = lora_stack.put(oracle.CONFIG, stack, 2, trained, chosen)
    mixed = [dataclasses.replace(r, id=r.id + 10 * a, adapter=a) for r in items for a in (0, 2)]
    both, work = sampled(mixed, params=stack)
    assert work.blocks == 10
    alone = {}
    for adapter in (0, 2):
        alone |= sampled([r for r in mixed if r.adapter == adapter], params=stack)[0]
    for name, completion in both.items():
        assert completion.tokens.tolist() == alone[name].tokens.tolist()
        np.testing.assert_allclose(completion.logp, alone[name].logp, 1e-5, 1e-5)
    assert any(both[i].logp.tolist() != both[i + 20].logp.tolist() for i in range(4))


@pytest.mark.exact("every family: what the prefix cache holds changes nothing, to the last bit")
@pytest.mark.parametrize(
    "family",
    [
        "hybrid",
        pytest.param("local layers", marks=pytest.mark.broad),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in FAMILIES
            if name not in ("hybrid", "local layers")
        ),
    ],
)
def test_families(family):
    """Recurrent states at the ends of blocks, windows that a prompt is longer than, and the rest;
    what is sampled is what the uncached model says."""
    config = FAMILIES[family]
    weights = jax.jit(decoder.init, static_argnums=0)(config, jax.random.key(0))
    rng = np.random.default_rng(0)
    system = tuple(rng.integers(3, 31, 50).tolist())
    items = [
        Request(i, (*system, *rng.integers(3, 31, 1 + 3 * i).tolist()), 5, temperature=i % 2)
        for i in range(3)
    ]
    layout = {"config": config, "params": decoder.unstack(weights), "prefix_block": 8}
    _, work = sampled(items[:1], **layout)
    assert (work.blocks, work.cached) == (6, 0)
    warm, work = sampled(items, work.prefixes, **layout)
    assert (work.blocks, work.cached) == (1, 3 * 48)
    other, work = sampled(items, **layout)
    assert (work.blocks, work.cached) == (7, 2 * 48)
    check_equal(other, warm)
    assert oracle.recorded_as_recomputed(list(warm.values()), weights, config) >= 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 1), max_size=5)), max_size=30),
    st.integers(5, 9),
)
def test_least_recently_used_blocks_are_evicted(prompts, count):
    """Against a list of beginnings, most recently used last, and a beginning behind its endings."""
    cache, recent = prefixes.ShardBlocks(free=list(range(count, 0, -1))), []
    for adapter, tokens in prompts:
        parts = prefixes.split(tokens, 1, len(tokens))
        path = prefixes.find(cache, adapter, parts)
        starts = [(adapter, tuple(tokens[: n + 1])) for n in range(len(tokens))]
        assert len(path) == sum(start in recent for start in starts)
        while len(path) < len(parts):
            path.append(prefixes.add(cache, adapter, path, parts))
        recent = [start for start in recent if start not in starts] + starts[::-1]
        recent = recent[-count:]
        pages = [block.page for block in cache.blocks.values()]
        assert len(pages) == len(recent) and len({*pages, *cache.free}) == count
        assert not {*pages} & {*cache.free} and 0 not in pages


@pytest.mark.parametrize("size", [1, 64, 500])
def test_the_pool_has_at_most_its_size(size):
    models = (oracle.CONFIG,)
    shape = functools.partial(
        admission.empty_caches, models, prefixes.pages(1, size, models) + 1, size
    )
    leaves = jax.tree.leaves(jax.eval_shape(shape))
    used = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert 0.5 * 2**20 < used <= 2**20


def test_what_the_prefix_cache_has_no_room_for_is_refused():
    items = [Request(0, (1, 2), 4)]
    with pytest.raises(ValueError, match=r"prefix_cache=1 MiB has no room for a block of .*65536"):
        sampled(items, prefix_block=65536)
