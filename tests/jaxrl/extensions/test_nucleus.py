"""NLPO's mask: the log-softmax that remains, its gradient, and the copy that it is made from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.extensions.nucleus import NucleusConfig, masked, nucleus
from jaxrl.models import decoder
from jaxrl.record import metrics
from jaxrl.run import loop
from jaxrl.sampling.logits import nucleus_of
from jaxrl.training.logprobs import Restriction, make_score
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import init_state, make_update
from jaxrl.training.trainable import Part
from jaxrl.types import TrainState
from tests.jaxrl import tiny
from tests.jaxrl.batches import MODEL, batch
from tests.jaxrl.extensions.contexts import context

MASS, TEMPERATURE = 0.3, 0.8
SHAPES = [PackingConfig(4096, row_length=64), PackingConfig(32, row_length=24)]


@pytest.fixture(scope="module")
def world():
    """A batch, a policy, and another that says what is likely."""
    init = jax.jit(functools.partial(decoder.init, MODEL))
    own, other = (init(jax.random.key(seed)) for seed in (0, 1))
    return batch(0), own, jax.tree.map(lambda a: 4.0 * a, other)  # opinions


def logits_of(params, data):
    """[N, T - 1, V]: each sequence in a row of its own."""
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    hidden = decoder.hidden(MODEL, params, data.tokens, position, jnp.full((count, width), width))
    return (hidden @ decoder.unembedding(params).T)[:, :-1]


def allowed_by(other, data):
    """[N, T - 1, V] bool, token by token in float64: a nucleus, and what was said."""
    logits = np.asarray(logits_of(other, data), np.float64)
    allowed = np.zeros(logits.shape, bool)
    for n, t in np.ndindex(logits.shape[:2]):
        p = np.exp(logits[n, t] - logits[n, t].max())
        order, p = np.argsort(-p), p / p.sum()
        count = 1 + np.searchsorted(np.cumsum(p[order]), MASS)
        allowed[n, t, order[:count]] = True
        allowed[n, t, data.tokens[n, t + 1]] = True
    return allowed


def plain_logp(params, allowed, data):
    """[N, T]: the log-softmax over what is allowed."""
    logits = logits_of(params, data) / TEMPERATURE
    mass = jnp.sum(jnp.where(allowed, jnp.exp(logits), 0.0), axis=-1)
    said = jnp.take_along_axis(logits, data.tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.where(data.action_mask, jnp.pad(said - jnp.log(mass), ((0, 0), (1, 0))), 0.0)


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("packed log-probs in a nucleus equal a plain computation to 2e-5")
@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities_are_those_among_the_likely(world, shape):
    data, own, other = world
    allowed = allowed_by(other, data)
    assert 1.2 < allowed.sum(axis=-1).mean() < 20
    expected = plain_logp(own, allowed, data)
    score = make_score(MODEL, temperature=TEMPERATURE)
    packed = pack(data, shape)[0]
    got = score(own, packed, Restriction(other, masked, nucleus_of, MASS))
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert np.abs(score(own, packed) - expected).max() > 0.5


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("an update in a nucleus equals the plain gradient to 1e-5")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_update_is_the_gradient_among_the_likely(world, shape):
    """Of `-mean logp` with an entropy bonus, whose gradient must not be nan for what is masked."""
    data, own, other = world
    allowed, mask = allowed_by(other, data), data.action_mask & data.valid[:, None]

    def loss(params):
        logits = logits_of(params, data) / TEMPERATURE
        safe = jnp.where(allowed, logits, 0.0)
        p = jnp.where(allowed, jnp.exp(safe), 0.0)
        p = p / p.sum(axis=-1, keepdims=True)
        entropy = jnp.pad(
            -jnp.sum(jnp.where(allowed, p * jnp.log(p + 1e-30), 0), -1), ((0, 0), (1, 0))
        )
        each = -plain_logp(params, allowed, data) - 0.1 * entropy
        return jnp.sum(jnp.where(mask, each, 0.0)) / mask.sum()

    objective = ObjectiveConfig(policy=f"{__name__}:imitation", entropy_coef=0.1)
    made = nucleus(NucleusConfig(mass=MASS))
    sgd = optax.sgd(1.0)
    update = make_update(
        MODEL, objective, sgd, temperature=TEMPERATURE, max_new_tokens=9, remat="none",
        restriction=functools.partial(made.provides["restriction"], context()),
    )  # fmt: skip
    copied = functools.partial(jax.tree.map, jnp.array)
    state = init_state(copied(own), sgd).with_extra(nucleus=copied(other))
    after, _ = update(state, data, pack(data, shape)[0], None)
    for old, new, slope in zip(
        *map(jax.tree.leaves, (own, after.params, jax.jit(jax.grad(loss))(own))), strict=True
    ):
        np.testing.assert_allclose(old - new, slope, atol=1e-5)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (after.extra["nucleus"], other))))


def imitation(logp):
    return -logp, {}


def test_the_copy_is_of_the_trained_part_and_renewed_on_schedule():
    half = Part(lambda p: ({"a": p["a"]}, {"b": p["b"]}), lambda trained, rest: trained | rest)
    made, ctx = nucleus(NucleusConfig(mass=0.5, every=2)), context(part=half)
    state = TrainState({"a": jnp.float32(1), "b": jnp.float32(5)}, (), jnp.int32(0))
    state = made.init(ctx, state)
    state = state.replace(params={"a": jnp.float32(2), "b": jnp.float32(6)})
    assert made.provides["restriction"](ctx, state).params == {"a": 1, "b": 6}
    assert made.provides["restriction"](ctx, state).args == 0.5
    assert made.provides["restriction"](ctx, made.after(ctx, state, 1)).params == {"a": 1, "b": 6}
    assert made.provides["restriction"](ctx, made.after(ctx, state, 2)).params == {"a": 2, "b": 6}


@pytest.mark.broad
def test_the_loop_samples_and_learns_under_one_mask(tmp_path):
    """The copy is renewed after step 2; step 3 samples and learns under the new one."""
    given = {"eval.every": 0, "optimizer.learning_rate": 0.03}
    loop.train(tiny.config(tmp_path / "plain", steps=1, **given))
    masked = {"nucleus.mass": 0.5, "nucleus.every": 2}
    loop.train(tiny.config(tmp_path / "masked", steps=3, **given, **masked))
    plain, rows = (metrics.read(tmp_path / name) for name in ("plain", "masked"))
    assert all(row["logp_gap_max"] < 1e-4 and row["skipped"] == 0 for row in rows)
    assert rows[0]["entropy"] < 0.8 * plain[0]["entropy"]
