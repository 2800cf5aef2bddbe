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

from jaxrl.models import decoder, head, lora, lora_stack, quantize
from jaxrl.models.checkpoints import peft
from jaxrl.models.config import DecoderConfig, Experts, Latent
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy
from jaxrl.sampling import drafts, sampler
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


@pytest.mark.exact(
    "rows of several adapters equal those of each alone to 1e-5, and to the last bit whatever "
    "their neighbours and places are"
)
@settings(max_examples=2, deadline=None)
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


LAYOUT = SamplerConfig(slots=8, prefill_rows=4, chunk=4, bucket=32)


def sample(model, params, requests):
    done = sampler.generate(
        model, params, requests, stop_ids=[], key=jax.random.key(3), sampler=LAYOUT,
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


@pytest.mark.broad
def test_drafts_are_verified_with_the_adapters_of_their_rows(monkeypatch):
    """Those of the output head too: several draws of a row in one pass."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    paths = [*lora_stack.matrices(DENSE), lora_stack.HEAD]
    params = policy.sampling_params(base(), "float32")
    params = lora_stack.attach(DENSE, params, paths, count=3, rank=2)
    config = LoraConfig(rank=2)
    for place in (1, 3):
        parts = trained(DENSE, base(), config, place)
        keys = jax.random.split(jax.random.key(place), 2)
        parts["head"] = {
            "a": 0.1 * jax.random.normal(keys[0], (32, 2)),
            "b": 0.1 * jax.random.normal(keys[1], (2, 17)),
        }
        params = lora_stack.put(DENSE, params, place, parts, config)
    requests = [
        Request(i, (1 + i % 3, 2, 3) * 4, 18, temperature=float(i % 2), adapter=i % 4)
        for i in range(16)
    ]

    def sampled(**fields):
        layout = dataclasses.replace(LAYOUT, **fields)
        setup = sampler.Setup(DENSE, jax.random.key(3), (), 16, 32, layout)
        work, done = sampler.Work(), {}
        sampler.submit(setup, work, requests)
        while work:
            done |= {c.request.id: c for c in sampler.advance(setup, params, work)}
        return done, work.accepted

    plain, _ = sampled()
    drafted, accepted = sampled(drafts="lookup", draft_tokens=3)
    assert accepted > 10
    for name, completion in plain.items():
        np.testing.assert_array_equal(completion.tokens, drafted[name].tokens)
        np.testing.assert_allclose(completion.logp, drafted[name].logp, atol=1e-4)


@pytest.mark.broad
def test_what_a_held_sequence_observes_is_read_with_its_adapter():
    """Turn after turn, as alone."""
    params, by_place = filled()
    setup = sampler.Setup(DENSE, jax.random.key(3), (), 16, 32, LAYOUT, hold=True)

    def turns(params, requests):
        work, ended = sampler.Work(), {}
        sampler.submit(setup, work, requests)
        while work:
            done = sampler.advance(setup, params, work)
            ended |= {c.request.id: c for c in done}
            held = sampler.held_slots(work)
            more = {i: [5, 6, 7] for i in held if len(ended[i].tokens) < 8}
            sampler.release(work, [c.request.id for c in done if c.request.id not in more])
            sampler.extend(setup, params, work, more)
        return ended

    requests = [
        Request(i, (1, 2, 3), 14, turn_tokens=4, adapter=place)
        for i, place in enumerate((1, 0, 4, 2))
    ]
    together = turns(params, requests)
    for r in requests:
        merged = alone(DENSE, *by_place[r.adapter])
        single = turns(merged, [dataclasses.replace(r, adapter=0)])[r.id]
        np.testing.assert_array_equal(together[r.id].tokens, single.tokens)
        np.testing.assert_allclose(together[r.id].logp, single.logp, atol=1e-4)
        assert (single.source > 0).sum() >= 3


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_output_head_has_an_adapter_for_each_row(softcap):
    """Apart from the embedding, to which the base's head is tied."""
    model, rank = dataclasses.replace(DENSE, tie_embeddings=True), 3
    keys = jax.random.split(jax.random.key(0), 3)
    params = policy.sampling_params(decoder.init(model, keys[0]), "float32")
    small = {
        "a": jax.random.normal(keys[1], (32, rank)),
        "b": jax.random.normal(keys[2], (rank, 17)),
    }
    stack = lora_stack.attach(model, params, [lora_stack.HEAD], count=3, rank=RANK)
    config = LoraConfig(rank=rank, alpha=2.0)
    stack = lora_stack.put(model, stack, 2, {"head": small}, config)
    assert stack["embed"] is params["embed"]
    hidden = jax.random.normal(keys[0], (3, 32))
    rows = jnp.array([0, 2, 1], jnp.int32)
    got = head.logits(hidden, decoder.unembedding(lora_stack.choose(stack, rows)), softcap=softcap)
    full = params["embed"] + config.scale * (small["a"] @ small["b"]).T
    expected = jnp.where((rows == 2)[:, None], hidden @ full.T, hidden @ params["embed"].T)
    expected = expected if softcap is None else softcap * jnp.tanh(expected / softcap)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.broad
def test_adapters_stand_beside_a_quantised_base():
    """Of int8, whose own rounding the merge would not keep."""
    base_params = quantize.quantize(DENSE, base(), "int8")
    config = LoraConfig(rank=2)
    small = trained(DENSE, base_params, config, 0)
    unstacked = policy.sampling_params(base_params, "float32")
    stack = lora_stack.attach(DENSE, unstacked, list(lora_stack.matrices(DENSE)), count=2, rank=2)
    stack = lora_stack.put(DENSE, stack, 1, small, config)
    tokens = jax.random.randint(jax.random.key(7), (2, TOKENS), 0, 17)
    got = states(DENSE, stack, tokens, jnp.array([1, 0], jnp.int32))
    single = decoder.unstack(lora.attach(DENSE, base_params, small, config))
    for row, params in enumerate((single, unstacked)):
        expected = states(DENSE, params, tokens, jnp.zeros(2, jnp.int32))
        np.testing.assert_allclose(got[row], expected[row], atol=1e-5)


def test_an_adapter_that_overflows_reaches_no_other_row():
    config = LoraConfig(rank=2, targets=("*/mlp/up",))
    huge = jax.tree.map(lambda x: jnp.full(x.shape, 3e38), trained(DENSE, base(), config, 0))
    stack = lora_stack.put(DENSE, room(), 1, huge, config)
    tokens = jax.random.randint(jax.random.key(7), (2, TOKENS), 0, 17)
    got = states(DENSE, stack, tokens, jnp.array([1, 2], jnp.int32))
    off = states(DENSE, room(), tokens, jnp.array([0, 0], jnp.int32))
    assert not jnp.isfinite(got[0]).all()
    np.testing.assert_array_equal(got[1], off[1])


def test_adapters_without_a_place_are_refused():
    """Naming the field, its value and what to do."""
    every = list(lora_stack.matrices(DENSE))

    def refused(words, config, *, model=DENSE, paths=every, rank=RANK, change=lambda a: a):
        adapters = change(lora.init(jax.random.key(0), model, base(model), config))
        with pytest.raises(ValueError, match=words):
            lora_stack.check(model, "mine", config, adapters, paths, rank)

    q = ("*/attention/q",)
    refused("'mine' has use_dora=True", LoraConfig(rank=2, dora=True, targets=q))
    refused("rank 7, and there is room for ranks of 1 to 6", LoraConfig(rank=7))
    refused(
        "changes layers/attention/q, and there is room for changes of layers/mlp/up",
        LoraConfig(rank=2, targets=q),
        paths=[("layers", "mlp", "up")],
    )
    refused(
        r"layers/attention/q/a has shape \(2, 31, 2\), and this base needs \(2, 32, 2\)",
        LoraConfig(rank=2, targets=q),
        change=lambda tree: jax.tree.map(lambda x: x[:, :31] if x.shape[1] == 32 else x, tree),
    )
    refused(
        "nan or infinite",
        LoraConfig(rank=2, targets=q),
        change=lambda tree: jax.tree.map(lambda x: x * jnp.nan, tree),
    )
    experts = lora_stack.matrices(MIXED)
    for pattern in ("layers/mlp/up", "layers/attention/kv_up", "layers/mlp/shared/up"):
        refused(
            f"changes {pattern}, which cannot differ from row to row",
            LoraConfig(rank=2, targets=(pattern,)),
            model=MIXED,
            paths=list(experts),
        )
    assert ("dense_layers", "mlp", "up") in experts and ("layers", "attention", "o") in experts


def test_a_request_of_a_place_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="request 0: adapter=5, but the parameters have 4"):
        sample(DENSE, room(), [Request(0, (1, 2), 4, adapter=5)])
    plain = policy.sampling_params(base(), "float32")
    with pytest.raises(ValueError, match="request 0: adapter=1, but the parameters have 0"):
        sample(DENSE, plain, [Request(0, (1, 2), 4, adapter=1)])


@pytest.mark.exact("rows of several adapters of PEFT give the logits of its merged models to 1e-4")
@pytest.mark.broad
@pytest.mark.parity
def test_several_adapters_of_peft(tiny_model, tmp_path):
    """Of different ranks and matrices, one of them rsLoRA, in one batch."""
    import copy

    import torch

    theirs = pytest.importorskip("peft")
    model, _, config, params = tiny_model("llama")
    tokens = np.arange(3, 15)[None]
    stack = lora_stack.attach(
        config, policy.sampling_params(params, "float32"), list(lora_stack.matrices(config)),
        count=3, rank=8,
    )  # fmt: skip
    with torch.no_grad():
        expected = [model(torch.tensor(tokens)).logits[0].numpy()]
    modules = (["q_proj", "o_proj"], ["down_proj", "v_proj"], ["gate_proj", "k_proj", "up_proj"])
    for place, targets in enumerate(modules, 1):
        options = theirs.LoraConfig(
            r=3 * place - 1, lora_alpha=7, target_modules=targets, use_rslora=place == 2,
            task_type="CAUSAL_LM",
        )  # fmt: skip
        wrapped = theirs.get_peft_model(copy.deepcopy(model), options)
        torch.manual_seed(place)
        with torch.no_grad():
            for name, value in wrapped.named_parameters():
                if "lora_" in name:
                    value.add_(0.2 * torch.randn_like(value))
        wrapped.save_pretrained(tmp_path / str(place))
        how, adapters = peft.load(tmp_path / str(place), config)
        stack = lora_stack.put(config, stack, place, adapters, how)
        with torch.no_grad():
            merged = wrapped.merge_and_unload()(torch.tensor(tokens))
            expected.append(merged.logits[0].numpy())
    rows = np.array([2, 0, 3, 1, 2], np.int32)
    hidden = states(config, stack, jnp.repeat(jnp.asarray(tokens), len(rows), 0), rows)
    matrix = decoder.unembedding(params)
    for row, place in enumerate(rows):
        got = head.logits(hidden[row], matrix, softcap=config.logit_softcap)
        np.testing.assert_allclose(got, expected[place], atol=1e-4)
    assert np.abs(expected[1] - expected[0]).max() > 0.05
