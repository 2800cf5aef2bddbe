"""Optimizers and schedules, against their formulas in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import mesh, optimizer, placement
from jaxrl.mesh import MeshConfig
from jaxrl.optimizer import OptimizerConfig
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
