"""Several adapters at once: every row as with its own adapter alone."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.models import decoder, lora, lora_stack
from jaxrl.models.config import DecoderConfig, Experts, Latent
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy
from jaxrl.sampling import sampler
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Request

SMALL = dict(vocab_size=17, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4)
DENSE = DecoderConfig(**SMALL, num_kv_heads=2, head_dim=8)
MIXED = DecoderConfig(  # latent attention, a dense layer below experts
    **SMALL,
    num_kv_heads=4,
    head_dim=12,
    latent=Latent(kv_rank=16, q_rank=None, nope_dim=8, rope_dim=4, v_dim=8),
    experts=Experts(num_experts=4, per_token=2, size=16, shared_size=16, dense_layers=1),
)
RANK, PLACES, ROWS, TOKENS = 6, 4, 5, 7
TARGETS = (("*/attention/*", "*/mlp/*"), ("*/attention/q", "*/attention/o"), ("*/mlp/down",))


def trained(model, params, config, seed):
    """Adapters that change much."""
    fresh = lora.init(jax.random.key(seed), model, params, config)
    keys = iter(jax.random.split(jax.random.key(seed + 100), 100))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), fresh)


@functools.cache
def base(model=DENSE):
    return decoder.init(model, jax.random.key(0))


@functools.cache
def room(model=DENSE):
    """The base with empty places."""
    params = policy.sampling_params(base(model), "float32")
    return lora_stack.attach(
        model, params, list(lora_stack.matrices(model)), count=PLACES, rank=RANK
    )


@functools.partial(jax.jit, static_argnums=0)
def states(model, params, tokens, rows):
    params = lora_stack.choose(params, rows)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    cache = decoder.empty_cache(model, *tokens.shape)
    return decoder.extend(model, params, tokens, positions, cache)[0]


def alone(model, config, adapters):
    """The sampler's parameters of one adapter, added into its base."""
    params = base(model)
    if config is not None:
        params = lora.attach(model, params, adapters, config)
    return policy.sampling_params(params, "float32")


@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, RANK), st.sampled_from(TARGETS)), min_size=1, max_size=PLACES
    ),
    st.permutations(range(1, PLACES + 1)),
    st.lists(st.integers(0, PLACES), min_size=ROWS, max_size=ROWS),
)
def test_every_row_is_as_with_its_adapter_alone(adapters, places, rows):
    """Whatever the ranks, the matrices, the places and the order of rows; empty places are the
    base, and neither neighbours nor places change a bit."""
    tokens = jax.random.randint(jax.random.key(7), (ROWS, TOKENS), 0, 17)
    params, by_place = room(), {}
    for seed, (place, (rank, targets)) in enumerate(zip(places, adapters, strict=False)):
        config = LoraConfig(rank=rank, alpha=4.0, targets=targets)
        by_place[place] = config, trained(DENSE, base(), config, seed)
        params = lora_stack.put(DENSE, params, place, by_place[place][1], config)
    together = states(DENSE, params, tokens, jnp.array(rows, jnp.int32))
    for i, place in enumerate(rows):
        config, small = by_place.get(place, (None, None))
        expected = states(DENSE, alone(DENSE, config, small), tokens, jnp.zeros(ROWS, jnp.int32))
        np.testing.assert_allclose(together[i], expected[i], atol=1e-5)
        if config is not None:  # in another place, among rows of the base
            other = place % PLACES + 1
            single = lora_stack.put(DENSE, room(), other, small, config)
            single_rows = jnp.where(jnp.arange(ROWS) == i, other, 0)
            np.testing.assert_array_equal(
                together[i], states(DENSE, single, tokens, single_rows)[i]
            )


def test_a_place_is_emptied_and_takes_another():
    tokens = jax.random.randint(jax.random.key(7), (ROWS, TOKENS), 0, 17)
    rows = jnp.full(ROWS, 2, jnp.int32)
    config = LoraConfig(rank=RANK, targets=("*/attention/*",))
    small = LoraConfig(rank=1, targets=("*/mlp/up",))
    second = trained(DENSE, base(), small, 1)
    full = lora_stack.put(DENSE, room(), 2, trained(DENSE, base(), config, 0), config)
    empty = lora_stack.put(DENSE, full, 2, None)
    np.testing.assert_array_equal(
        states(DENSE, empty, tokens, rows), states(DENSE, room(), tokens, 0 * rows)
    )
    after = lora_stack.put(DENSE, full, 2, second, small)
    directly = lora_stack.put(DENSE, room(), 2, second, small)
    np.testing.assert_array_equal(
        states(DENSE, after, tokens, rows), states(DENSE, directly, tokens, rows)
    )
    with pytest.raises(IndexError, match="places 1 to 4"):
        lora_stack.put(DENSE, full, 5, None)


SIX = SamplerConfig(slots=8, prefill_rows=4, chunk=4, bucket=32)


def sample(model, params, requests):
    done = sampler.generate(
        model, params, requests, stop_ids=[], key=jax.random.key(3), sampler=SIX,
        max_prompt=16, max_length=32,
    )  # fmt: skip
    return {c.request.id: c for c in done}


def filled(count=3):
    """Places 1, 2 and 4 with adapters of ranks 1, 2 and 3."""
    params, by_place = room(), {0: (None, None)}
    for seed, place in enumerate((1, 2, 4)[:count]):
        config = LoraConfig(rank=seed + 1, targets=TARGETS[seed])
        by_place[place] = config, trained(DENSE, base(), config, seed)
        params = lora_stack.put(DENSE, params, place, by_place[place][1], config)
    return params, by_place


def test_requests_of_several_adapters_share_the_slots():
    """More requests than slots, the same prompts under different adapters: each is sampled as
    alone, and its bits do not depend on what is sampled beside it."""
    params, by_place = filled()
    places = [0, 1, 2, 4, 4, 0, 1, 2, 1, 4, 2, 0]
    requests = [
        Request(i, prompt=(1 + i % 3, 2, 3), max_new_tokens=9, adapter=place)
        for i, place in enumerate(places)
    ]
    together = sample(DENSE, params, requests)
    assert len(together) == len(requests)
    for place, (config, small) in by_place.items():
        few = [r for r in requests if r.adapter == place]
        plain = [dataclasses.replace(r, adapter=0) for r in few]
        merged = sample(DENSE, alone(DENSE, config, small), plain)
        for r in few:
            np.testing.assert_array_equal(together[r.id].tokens, merged[r.id].tokens)
            np.testing.assert_allclose(together[r.id].logp, merged[r.id].logp, atol=1e-5)
    mine = sample(DENSE, params, [requests[3]])[3]
    np.testing.assert_array_equal(mine.tokens, together[3].tokens)
    assert len({tuple(c.tokens) for c in together.values()}) > 4
