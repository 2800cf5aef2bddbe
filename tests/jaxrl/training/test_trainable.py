"""Adapters and chosen parameters: they alone change, and the sampler sees it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder, linear, lora
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy
from jaxrl.run import placement
from jaxrl.training import trainable
from jaxrl.training.logprobs import make_score
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import init_state, make_update
from tests import broad_except
from tests.jaxrl.batches import MODEL, batch

ADAPTERS = LoraConfig(rank=4)
OPTIMIZER = optax.adamw(1e-2)


@functools.cache
def trained(rank: int, patterns: tuple[str, ...], base: str = "plain"):
    """Parameters before, and the state after two updates."""
    adapters = LoraConfig(rank=rank, base=base)
    part = trainable.part(MODEL, adapters, patterns)
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        params = decoder.init(MODEL, jax.random.key(0))
        params = trainable.attach(MODEL, params, adapters, jax.random.key(1))
        before = jax.tree.map(np.array, params)
        state = init_state(params, OPTIMIZER, part)
        like = placement.abstract_state(MODEL, OPTIMIZER, adapters, part)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), like) == jax.tree.map(
            lambda a: (a.shape, a.dtype), state
        )
        update = make_update(
            MODEL,
            ObjectiveConfig(),
            OPTIMIZER,
            temperature=1.0,
            max_new_tokens=9,
            remat="none",
            part=part,
        )
        for seed in range(2):
            data = batch(seed)
            packed, _ = pack(data, PackingConfig(row_length=32))
            state, metrics = update(state, data, packed, None)
            assert metrics["grad_norm"] > 0
    return before, state


@pytest.mark.exact("training adapters leaves their base to the last bit")
@pytest.mark.parametrize("base", broad_except(["nf4"], ["plain", "nf4"]))
def test_adapters_change_and_their_base_does_not(base):
    before, state = trained(4, (), base)
    up = state.params["layers"]["mlp"]["up"].base
    assert isinstance(up, linear.Quantized) == (base == "nf4")
    adapters, base = lora.detach(state.params)
    jax.tree.map(np.testing.assert_array_equal, base, lora.detach(before)[1])
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), adapters, lora.detach(before)[0])
    assert min(jax.tree.leaves(moved)) > 0
    small = sum(a.size for a in jax.tree.leaves(adapters))
    moments = sum(a.size for a in jax.tree.leaves(state.opt_state) if a.ndim)
    assert moments == 2 * small


@pytest.mark.broad
def test_the_sampler_gets_the_adapters():
    _, state = trained(4, ())
    tokens = jnp.arange(8)[None] + 1
    cache = decoder.empty_cache(MODEL, 1, 8)
    params = policy.sampling_params(state.params, "float32")
    assert not any(isinstance(p, lora.Adapted) for p in params["layers"][0]["mlp"].values())
    position = jnp.arange(8)[None]
    out = [
        decoder.extend(MODEL, p, tokens, position, cache, window=8)[0]
        for p in (params, policy.sampling_params(lora.detach(state.params)[1], "float32"))
    ]
    whole = decoder.hidden(MODEL, state.params, tokens, position, jnp.full((1, 8), 8))
    np.testing.assert_allclose(out[0], whole, atol=1e-5)
    assert np.abs(out[1] - whole).max() > 1e-3


@pytest.mark.exact("a policy with its adapters off is as it was")
def test_with_the_adapters_off_the_policy_is_as_it_was():
    before, state = trained(4, ())
    packed, _ = pack(batch(0), PackingConfig(row_length=32))
    score = make_score(MODEL, temperature=1.0)
    reference = score(lora.detach(state.params)[1], packed)
    np.testing.assert_array_equal(reference, score(lora.detach(before)[1], packed))
    assert np.abs(reference - score(state.params, packed)).max() > 1e-3


def test_only_the_named_parameters_change():
    before, state = trained(0, ("layers/mlp/*", "head"))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, state.params)
    names = {
        jax.tree_util.keystr(path, simple=True, separator="/"): changed
        for path, changed in jax.tree_util.tree_leaves_with_path(moved)
    }
    wanted = {"head", "layers/mlp/gate", "layers/mlp/up", "layers/mlp/down"}
    assert {name for name, changed in names.items() if changed} == wanted


WAYS = {
    "all": (LoraConfig(rank=0), ()),
    "adapters": (ADAPTERS, ()),
    "dora on nf4": (LoraConfig(rank=4, dora=True, base="nf4"), ()),
    "chosen": (LoraConfig(rank=0), ("layers/mlp/*",)),
}


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_frozen_parameters_are_held_in_the_compute_dtype(way, dtype):
    """By bytes: 2 for each number that is frozen and no norm, 4 for all others; as is the state."""
    adapters, patterns = WAYS[way]
    model = dataclasses.replace(MODEL, dtype=dtype)
    part = trainable.part(model, adapters, patterns)
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        like = placement.abstract_state(model, OPTIMIZER, adapters, part)
        params = decoder.init(model, jax.random.key(0))
        params = trainable.attach(model, params, adapters, jax.random.key(1))
        state = init_state(trainable.in_compute_dtype(model, params, part), OPTIMIZER, part)
    shapes = functools.partial(jax.tree.map, lambda a: (a.shape, a.dtype))
    assert shapes(like) == shapes(state)
    trained, frozen = part.split(like.params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((trained, like.opt_state))} <= {
        "float32", "int32"
    }  # fmt: skip
    held = jax.tree_util.tree_leaves_with_path(frozen)
    assert held or way == "all"
    for path, leaf in held:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        whole = "norm" in name or name.endswith("scales")
        expected = "uint8" if name.endswith("codes") else "float32" if whole else dtype
        assert leaf.dtype.name == expected, name
    reference = jax.tree.leaves(trainable.in_compute_dtype(model, decoder.abstract(model)[0]))
    norms = sum(a.size for a in reference if a.dtype == np.float32 and dtype == "bfloat16")
    bytes_held = sum(a.size * a.dtype.itemsize for a in reference)
    width = 2 if dtype == "bfloat16" else 4
    assert bytes_held == width * sum(a.size for a in reference) + 2 * norms


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("frozen weights held in bfloat16 give the log-probabilities of float32 ones")
@pytest.mark.parametrize("rank", [0, 4])
def test_what_is_held_in_the_compute_dtype_computes_the_same(rank):
    """As every pass casts what it reads; with adapters on, and of a reference policy."""
    model = dataclasses.replace(MODEL, dtype="bfloat16")
    params = decoder.init(MODEL, jax.random.key(0))
    if rank:
        params = lora.detach(trained(rank, ())[1].params)
        params = lora.attach(model, params[1], params[0], ADAPTERS)
    part = trainable.part(model, LoraConfig(rank=rank), ()) if rank else trainable.FROZEN
    packed, _ = pack(batch(0), PackingConfig(row_length=32))
    score = make_score(model, temperature=1.0)
    held = trainable.in_compute_dtype(model, params, part)
    assert "bfloat16" in {leaf.dtype.name for leaf in jax.tree.leaves(held)}
    np.testing.assert_array_equal(score(held, packed), score(params, packed))


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match=r"lora.rank=4 with train=\('embed',\)"):
        trainable.part(MODEL, ADAPTERS, ("embed",))
    with pytest.raises(ValueError, match=r"lora\.dropout=0\.1"):
        trainable.part(MODEL, LoraConfig(dropout=0.1), ())
    with pytest.raises(ValueError, match="'emned' matches none"):
        trainable.part(MODEL, LoraConfig(rank=0), ("emned",))
