"""Sharpness-aware updates against their formula, in a plain computation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.config import Config
from jaxrl.extensions.sharpness import SharpnessConfig, sharpness, uphill
from jaxrl.models import decoder
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import init_state, make_update
from tests.jaxrl.batches import MODEL, batch
from tests.jaxrl.extensions.contexts import context
from tests.jaxrl.training.test_train_step import TEMPERATURE, params, plain_loss, tree_max


def test_the_move_uphill_by_hand():
    """`|theta g|` is the root of 9 + 4 + 4; each entry moves by `theta^2 g` over it."""
    given = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
    grads = {"a": jnp.array([3.0, 1.0]), "b": jnp.array([-4.0])}
    got = uphill(given, grads, 0.1)
    unit = 0.1 / np.sqrt(17.0)
    np.testing.assert_allclose(got["a"], [1 + 3 * unit, -2 + 4 * unit], rtol=1e-6)
    np.testing.assert_allclose(got["b"], [0.5 - unit], rtol=1e-6)


def plain_divergence(now, before, data):
    """Mean KL(before || now) over actions, from whole rows and float64 probabilities."""
    count, width = data.tokens.shape
    place = np.broadcast_to(np.arange(width), (count, width))
    until = np.full((count, width), width)

    def logits(params):
        hidden = decoder.hidden(MODEL, params, data.tokens, place, until)
        return hidden @ decoder.unembedding(params).T

    logp, theirs = (
        np.asarray(jax.nn.log_softmax(jax.jit(logits)(p))[:, :-1], np.float64)
        for p in (now, before)
    )
    acted = (data.action_mask & data.valid[:, None])[:, 1:]
    return (np.exp(theirs) * (theirs - logp)).sum(axis=-1)[acted].mean()


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("a sharpness-aware update is the plain gradient at the moved parameters")
@pytest.mark.parametrize("radius", [0.0, 0.05])
def test_the_update_is_the_gradient_at_the_moved_parameters(radius):
    """In several micro-batches; with a radius of 0, the policy was another one before."""
    data = batch(0, failed=(2,))
    noise = np.random.default_rng(3)
    before = jax.tree.map(lambda p: p + 0.1 * noise.normal(size=p.shape).astype("f"), params())
    made = sharpness(SharpnessConfig(radius, scale=2.0))
    ctx = context(Config())
    update = make_update(
        MODEL, ObjectiveConfig(policy_args={"clip_low": 0.2, "clip_high": 0.2}), optax.sgd(1.0),
        temperature=TEMPERATURE, max_new_tokens=9, remat="none",
        ascent=functools.partial(made.provides["ascent"], ctx),
    )  # fmt: skip
    state = init_state(jax.tree.map(jnp.array, params()), optax.sgd(1.0))
    state = state if radius else state.with_extra(sharpness=before)
    packed = pack(data, PackingConfig(96, row_length=32))[0]
    after, metrics = jax.jit(made.update(ctx, update))(state, data, packed, None)

    wanted = radius or 2.0 * plain_divergence(params(), before, data)
    assert wanted > 1e-3
    np.testing.assert_allclose(metrics["ascent_radius"], wanted, rtol=1e-4)
    slope = jax.jit(jax.grad(functools.partial(plain_loss, data=data)))
    theta, first = (jax.tree.map(np.float64, tree) for tree in (params(), slope(params())))
    norm = np.sqrt(
        sum(
            ((p * g) ** 2).sum() for p, g in zip(*map(jax.tree.leaves, (theta, first)), strict=True)
        )
    )
    moved = jax.tree.map(lambda p, g: np.float32(p + wanted * p**2 * g / norm), theta, first)
    change = jax.tree.map(jnp.subtract, params(), after.params)
    assert tree_max(change, slope(moved)) < 2e-5 < tree_max(slope(params()), slope(moved))
    if not radius:
        assert tree_max(after.extra["sharpness"], params()) == 0


def test_nothing_was_before_the_first_update():
    """So the first radius is 0."""
    state = init_state(params(), optax.sgd(1.0))
    started = sharpness(SharpnessConfig()).init(context(), state)
    assert tree_max(started.extra["sharpness"], params()) == 0
    assert not sharpness(SharpnessConfig(0.05)).init(context(), state).extra


@pytest.mark.parametrize(
    ("settings", "config", "says"),
    [
        (SharpnessConfig(radius=-1.0), Config(), "radius=-1.0"),
        (SharpnessConfig(scale=0.0), Config(), "scale=0.0"),
        (SharpnessConfig(), Config(labels=1), "set a radius"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, config, says):
    with pytest.raises(ValueError, match=says):
        sharpness(settings).check(config)
