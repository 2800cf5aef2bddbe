"""Optimizers and schedules, against their formulas in NumPy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder, lora, value
from jaxrl.models.config import DecoderConfig, Experts, Latent, LayerKinds
from jaxrl.models.lora import LoraConfig
from jaxrl.run import placement
from jaxrl.training import optimizer
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.types import TrainState
from tests.jaxrl.batches import MODEL

RATE = 0.1


def first_update(gradient: np.ndarray, value: np.ndarray, **config: object) -> np.ndarray:
    """The first change of a matrix of the layers."""
    params = {"layers": {"mlp": {"up": jnp.asarray(value)}}}
    method = optimizer.make(OptimizerConfig(learning_rate=RATE, clip_norm=0.0, **config), 10, MODEL)
    grads = {"layers": {"mlp": {"up": jnp.asarray(gradient)}}}
    updates, _ = method.update(grads, method.init(params), params)
    return np.asarray(updates["layers"]["mlp"]["up"])


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (2, 16, 32)  # layers, inputs, outputs
    return rng.normal(size=shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)


def test_adamw_and_lion_begin_with_the_sign_of_the_gradient(drawn):
    gradient, value = drawn
    for method in ("adamw", "lion"):
        update = first_update(gradient, value, method=method, weight_decay=0.5)
        expected = -RATE * (np.sign(gradient) + 0.5 * value)
        np.testing.assert_allclose(update, expected, atol=1e-5)


def test_muon_orthogonalises_each_layer_at_the_size_of_an_adam_step(drawn):
    """U V^T of G = U S V^T by its singular vectors, which Newton-Schulz comes near to."""
    gradient, value = drawn
    update = first_update(gradient, value, method="muon")
    for layer in range(2):
        u, _, vt = np.linalg.svd(gradient[layer], full_matrices=False)
        expected = -RATE * 0.2 * np.sqrt(32) * u @ vt
        cosine = np.sum(update[layer] * expected) / np.linalg.norm(update[layer])
        assert cosine / np.linalg.norm(expected) > 0.97
        assert np.linalg.norm(update[layer]) == pytest.approx(np.linalg.norm(expected), rel=0.2)


def test_adafactor_has_steps_of_the_learning_rate(drawn):
    update = first_update(*drawn, method="adafactor")
    assert np.sqrt(np.mean(update**2)) == pytest.approx(RATE, rel=0.05)
    assert (np.sign(update) == -np.sign(drawn[0])).all()


def test_rates_by_path():
    """The first pattern that matches scales the step and the decay; the rest is as it was."""
    rng = np.random.default_rng(0)
    params = {"embed": rng.normal(size=(4, 4)), "layers": {"mlp": {"up": rng.normal(size=(4, 4))}}}
    params = jax.tree.map(jnp.float32, params)
    grads = jax.tree.map(lambda x: x + 1, params)

    def updates(**config: object) -> dict:
        config = OptimizerConfig(learning_rate=RATE, weight_decay=0.5, **config)
        method = optimizer.make(config, 10, MODEL)
        return method.update(grads, method.init(params), params)[0]

    got, plain = updates(rates={"emb*": 0.1, "*": 0.5, "embed": 7.0}), updates()
    np.testing.assert_allclose(got["embed"], 0.1 * plain["embed"], rtol=1e-6)
    np.testing.assert_allclose(
        got["layers"]["mlp"]["up"], 0.5 * plain["layers"]["mlp"]["up"], rtol=1e-6
    )
    with pytest.raises(ValueError, match=r"optimizer\.rates has 'up', which matches none of embed"):
        updates(rates={"up": 2.0})


@pytest.mark.exact("moments kept on the host give the same updates")
def test_moments_on_the_host_give_the_same_updates():
    optimize = optimizer.make(OptimizerConfig(learning_rate=RATE), 10, MODEL)

    @jax.jit
    def step(state: TrainState) -> tuple[TrainState, dict]:
        updates, moments = optimize.update(state.params, state.opt_state, state.params)
        return state.replace(
            params=optax.apply_updates(state.params, updates), opt_state=moments
        ), {}

    states = []
    for offload in (False, True):
        with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
            like = placement.abstract_state(MODEL, optimize, offload=offload)
            update = placement.with_fixed_layout(step, like)
            state = placement.fresh_state(decoder.init(MODEL, jax.random.key(0)), optimize, like)
            for _ in range(2):
                state, _ = update(state)
        kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.opt_state)}
        assert kinds == {"pinned_host" if offload else "device"}
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.params)} == {"device"}
        states.append(state)
    jax.tree.map(np.testing.assert_array_equal, *states)


MATRICES = {
    "embed", "head", "q", "k", "v", "o", "q_down", "q_up", "kv_down", "kv_up", "router", "gate",
    "up", "down", "a", "b", "value/weight",
}  # fmt: skip
VECTORS = {
    "norm/weight", "attention_norm/weight", "attention_post_norm/weight", "mlp_norm/weight",
    "mlp_post_norm/weight", "q_norm/weight", "k_norm/weight", "kv_norm/weight", "q_bias", "k_bias",
    "v_bias", "o_bias", "gate_bias", "up_bias", "down_bias", "router_bias", "correction",
    "magnitude", "shared_gate", "value/bias",
}  # fmt: skip


def is_matrix(path: tuple[str, ...]) -> bool:
    """By the lists above, of which each parameter must be on exactly one."""
    names = {path[-1], "/".join(path[-2:])}
    assert bool(names & MATRICES) != bool(names & VECTORS), path
    return bool(names & MATRICES)


@st.composite
def decoders(draw: st.DrawFn) -> DecoderConfig:
    """A decoder with any of the parts that a family turns on."""
    flag, latent, experts = st.booleans(), None, None
    if draw(flag):
        latent = Latent(
            kv_rank=2, q_rank=draw(st.sampled_from([None, 2])), nope_dim=2, rope_dim=2, v_dim=2
        )
    if draw(flag):
        experts = Experts(
            num_experts=2, per_token=1, size=2, shared_size=draw(st.sampled_from([0, 2])),
            dense_layers=draw(st.sampled_from([0, 1])), correction_bias=draw(flag),
            biases=draw(flag),
        )  # fmt: skip
        if experts.shared_size:
            experts = dataclasses.replace(experts, shared_gate=draw(flag))
    plain = latent is None
    return DecoderConfig(
        vocab_size=4, hidden_size=4, intermediate_size=4, num_layers=2, num_heads=2,
        num_kv_heads=2, head_dim=4 if latent else 2, latent=latent, experts=experts,
        tie_embeddings=draw(flag), qkv_bias=plain and draw(flag), o_bias=plain and draw(flag),
        mlp_bias=draw(flag), pre_norm=draw(flag), post_norm=draw(flag),
        qk_norm=draw(st.sampled_from(["none", "head", "flat"])) if plain else "none",
    )  # fmt: skip


def trained(model: DecoderConfig, trains: str, of_critic: bool) -> dict:
    """Shapes of what a run trains: a decoder or its adapters, alone or below a value head."""
    params = decoder.abstract(model)[0]
    if trains != "whole":
        targets = ("*/attention/*",) if trains == "dora" else ("*/attention/*", "*/mlp/*")
        params = lora.abstract(model, LoraConfig(rank=2, dora=trains == "dora", targets=targets))[0]
    if not of_critic:
        return params
    head = jax.eval_shape(lambda: value.init(value.ValueConfig(), model.hidden_size))
    return {"decoder": params, "value": head}


@pytest.mark.broad
@pytest.mark.exact("weight decay applies to matrices, and to no vector, for any decoder or adapter")
@settings(max_examples=20, deadline=None)
@given(decoders(), st.sampled_from(["whole", "lora", "dora"]), st.booleans())
def test_exactly_the_matrices_are_decayed(model, trains, of_critic):
    params = trained(model, trains, of_critic)
    for path, found in jax.tree_util.tree_leaves_with_path(optimizer.matrices(model, params)):
        assert found == is_matrix(tuple(step.key for step in path)), path


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("method", ["adamw", "lion", "muon", "adafactor"])
def test_every_method_decays_the_matrices_alone(method):
    """Where gradients are zero, an update is the decay."""
    model = dataclasses.replace(MODEL, qkv_bias=True, num_layers=1)
    params = jax.tree.map(lambda s: jnp.ones(s.shape), trained(model, "whole", True))
    config = OptimizerConfig(method=method, weight_decay=0.5, learning_rate=RATE)
    optimize = optimizer.make(config, 1, model)

    @jax.jit
    def step(params):
        zero = jax.tree.map(jnp.zeros_like, params)
        return optimize.update(zero, optimize.init(params), params)[0]

    for path, update in jax.tree_util.tree_leaves_with_path(step(params)):
        expected = -RATE * 0.5 if is_matrix(tuple(step.key for step in path)) else 0.0
        np.testing.assert_allclose(update, expected, atol=1e-7, err_msg=str(path))


@pytest.mark.sample(1, broad=3)
@pytest.mark.parametrize("method", ["adamw", "lion", "muon", "adafactor"])
def test_the_factor_of_a_layer_is_fixed(method):
    """It is a buffer in transformers; a step with weight decay leaves all its bits."""
    model = DecoderConfig(4, 4, 4, 2, 2, 1, 2, post_norm=True, kinds=LayerKinds(4, 1))
    params = decoder.init(model, jax.random.key(0))
    params["layers_0"]["layer_scale"] += jnp.float32(0.1)
    config = OptimizerConfig(method=method, weight_decay=0.5, learning_rate=RATE)
    optimize = optimizer.make(config, 1, model)
    tokens, index = jnp.zeros((1, 3), jnp.int32), jnp.arange(3)[None]

    def loss(params):
        return jnp.sum(decoder.hidden(model, params, tokens, index, jnp.full_like(index, 3))[:, 1])

    @jax.jit
    def step(params):
        updates, _ = optimize.update(jax.grad(loss)(params), optimize.init(params), params)
        return optax.apply_updates(params, updates)

    old, new = params["layers_0"], step(params)["layers_0"]
    assert jnp.any(old["mlp"]["up"] != new["mlp"]["up"])
    np.testing.assert_array_equal(old["layer_scale"], new["layer_scale"])


def test_muon_trains_the_matrices_of_a_critic():
    """Whose decoder lies one level deeper than a policy's."""
    params = decoder.abstract(MODEL)[0]
    of_policy = optimizer._axes(MODEL, params)
    assert optimizer._axes(MODEL, {"decoder": params}) == {"decoder": of_policy}
    assert of_policy["layers"]["mlp"]["up"] is not None and of_policy["embed"] is None


def test_schedules():
    def at(step: int, **config: object) -> float:
        config = OptimizerConfig(learning_rate=1.0, warmup_steps=2, **config)
        return float(optimizer.learning_rate(config, 12)(step))

    assert [at(0), at(1), at(2), at(11)] == [0.5, 0.75, 1, 1]
    assert at(7, schedule="linear") == pytest.approx(0.5)
    assert at(7, schedule="cosine") == pytest.approx(0.5)
    wsd = [at(i, schedule="wsd", decay_share=0.25) for i in (2, 8, 9, 10, 11, 12)]
    np.testing.assert_allclose(wsd, [1, 1, 1, 2 / 3, 1 / 3, 0], atol=1e-6)


@pytest.mark.parametrize("method", ["adamw", "lion", "muon", "adafactor"])
def test_the_state_of_every_method_has_a_place(method):
    """Shapes alone: the layout of a state equals what the optimizer makes."""
    optimize = optimizer.make(OptimizerConfig(method=method), 10, MODEL)
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        like = placement.abstract_state(MODEL, optimize)
    made = jax.eval_shape(optimize.init, decoder.abstract(MODEL)[0])
    assert jax.tree.structure(made) == jax.tree.structure(like.opt_state)
    assert all(leaf.sharding is not None for leaf in jax.tree.leaves(like))
