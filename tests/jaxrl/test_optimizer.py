"""Optimizers and schedules, against their formulas in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import mesh, optimizer, placement
from jaxrl.mesh import MeshConfig
from jaxrl.optimizer import OptimizerConfig
from jaxrl.types import TrainState
from models import decoder
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
    params = {"embed": rng.normal(size=(4, 4)), "layers": {"up": rng.normal(size=(4, 4))}}
    params = jax.tree.map(jnp.float32, params)
    grads = jax.tree.map(lambda x: x + 1, params)

    def updates(**config: object) -> dict:
        config = OptimizerConfig(learning_rate=RATE, weight_decay=0.5, **config)
        method = optimizer.make(config, 10)
        return method.update(grads, method.init(params), params)[0]

    got, plain = updates(rates={"emb*": 0.1, "*": 0.5, "embed": 7.0}), updates()
    np.testing.assert_allclose(got["embed"], 0.1 * plain["embed"], rtol=1e-6)
    np.testing.assert_allclose(got["layers"]["up"], 0.5 * plain["layers"]["up"], rtol=1e-6)
    with pytest.raises(ValueError, match=r"optimizer\.rates has 'up', which matches none of embed"):
        updates(rates={"up": 2.0})


def test_moments_on_the_host_give_the_same_updates():
    optimize = optimizer.make(OptimizerConfig(learning_rate=RATE), 10)

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
            update = placement.settled(step, like)
            state = placement.fresh_state(decoder.init(MODEL, jax.random.key(0)), optimize, like)
            for _ in range(2):
                state, _ = update(state)
        kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.opt_state)}
        assert kinds == {"pinned_host" if offload else "device"}
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.params)} == {"device"}
        states.append(state)
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_norms_are_never_decayed():
    params = {"norm": {"weight": jnp.ones(4)}, "head": jnp.ones((4, 4))}
    method = optimizer.make(OptimizerConfig(weight_decay=1.0, learning_rate=RATE), 1)
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = method.update(zero, method.init(params), params)
    assert np.all(updates["norm"]["weight"] == 0)
    np.testing.assert_allclose(updates["head"], -RATE)


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


def test_muon_without_a_model_is_refused():
    with pytest.raises(ValueError, match="needs the model's shape"):
        optimizer.make(OptimizerConfig(method="muon"), 10)
