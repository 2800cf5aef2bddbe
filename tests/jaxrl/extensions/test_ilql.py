"""ILQL against its formulas in float64, and against a plain gradient on rows of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.config import Config
from jaxrl.extensions import ilql
from jaxrl.extensions.ilql import IlqlConfig
from jaxrl.models import decoder, head
from jaxrl.models.lora import LoraConfig
from jaxrl.sampling.logits import Context
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.types import TrainState
from tests import broad_except
from tests.jaxrl.batches import MODEL, batch
from tests.jaxrl.extensions.contexts import context

SETTINGS = IlqlConfig(discount=0.8, tau=0.7, conservatism=0.3, rate=0.25, beta=2.0)
KINDS = ("td", "returns")
SHAPES = {"wide": PackingConfig(4096, row_length=64), "narrow": PackingConfig(48, row_length=24)}


def settings(kind):
    return IlqlConfig(**{**vars(SETTINGS), "targets": kind})


def test_targets_by_hand():
    """Two actions, an observation and an action; the next state is that of the next action."""
    mask = jnp.array([[False, True, True, False, True], [False, True, False, False, False]])
    rewards = jnp.array([[9.0, 0, 1, 9, 2], [0, 3, 0, 0, 0]])
    v = jnp.array([[9.0, 5, 6, 9, 7], [9, 4, 9, 9, 9]])
    td = [[0, 0.8 * 6, 1 + 0.8 * 7, 0, 2], [0, 3, 0, 0, 0]]
    np.testing.assert_allclose(ilql.targets(SETTINGS, rewards, v, mask=mask), td, rtol=1e-6)
    earned = [[0, 0.8 * (1 + 0.8 * 2), 1 + 0.8 * 2, 0, 2], [0, 3, 0, 0, 0]]
    found = ilql.targets(settings("returns"), rewards, v, mask=mask)
    np.testing.assert_allclose(found, earned, rtol=1e-6)


def plain_loss(made, q, v, action, backed, expected):
    """Of one action, in float64, with loops."""
    total = 0.0
    for values in q:
        total += 0.5 * (values[action] - backed) ** 2
        normal = np.log(sum(np.exp(each) for each in values))
        total += made.conservatism * (normal - values[action])
    if made.targets == "td":
        above = expected >= v
        total += 0.5 * (made.tau if above else 1 - made.tau) * (expected - v) ** 2
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_the_formula(kind):
    rng = np.random.default_rng(0)
    heads, count = 1 + (kind == "td"), 5
    q, v = rng.normal(size=(heads, count, 4)), rng.normal(size=count)
    actions, backed = rng.integers(4, size=count), rng.normal(size=count)
    expected = v + np.array([1.0, -1, 0.5, -0.2, 0])
    made = settings(kind)
    wanted = [
        plain_loss(made, q[:, i], v[i], actions[i], backed[i], expected[i]) for i in range(count)
    ]
    arrays = (jnp.asarray(x, jnp.float32) for x in (q, v))
    given = {"backed": jnp.asarray(backed), "expected": jnp.asarray(expected)}
    found = ilql.losses(made, *arrays, jnp.asarray(actions, jnp.int32), **given)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def started(made, seed=0):
    """Values whose heads and slow copy are not zero or equal any more."""
    policy = decoder.init(MODEL, jax.random.key(seed))
    state = ilql.ilql(made).init(context(Config(steps=4)), TrainState(policy, (), jnp.int32(0)))
    values = state.extra["ilql"]

    def moved(tree, seed):
        leaves, form = jax.tree.flatten(tree)
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        pairs = zip(leaves, keys, strict=True)
        return jax.tree.unflatten(form, [x + 0.1 * jax.random.normal(k, x.shape) for x, k in pairs])

    return state, values.replace(params=moved(values.params, 1), target=moved(values.target, 2))


def read(params, data):
    """Q [H, N, T, V] and V [N, T] before each token, each sequence in a row of its own."""
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    whole = jnp.full((count, width), width)
    hidden = decoder.hidden(MODEL, params["decoder"], data.tokens, position, whole)
    hidden = jnp.pad(hidden, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    q = jnp.einsum("ntd,hvd->hntv", hidden, params["q"])
    if "value" not in params:
        return q, None
    return q, (hidden @ params["value"]["weight"])[..., 0] + params["value"]["bias"][0]


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("an update of ILQL's values equals the plain gradient to 2e-5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", broad_except(["narrow"], SHAPES))
def test_an_update_is_the_plain_gradient(kind, shape):
    made, data = settings(kind), batch(0, failed=(2,))
    mask = np.asarray(data.action_mask & data.valid[:, None])
    rewards = np.where(mask, np.random.default_rng(3).normal(size=mask.shape), 0).astype("f4")
    data = data.replace(extra={"turn_rewards": rewards})
    _, values = started(made)
    taken = functools.partial(jnp.take_along_axis, indices=data.tokens[None, ..., None], axis=-1)
    slow, (_, v) = read(values.target, data)[0], read(values.params, data)
    lowest = np.asarray(jnp.min(taken(slow)[..., 0], axis=0), np.float64)
    backed = np.zeros(mask.shape)
    for n, row in enumerate(mask):
        later = 0.0
        for t in np.flatnonzero(row)[::-1]:
            backed[n, t] = rewards[n, t] + made.discount * later
            later = float(v[n, t]) if kind == "td" else backed[n, t]

    @jax.jit
    def plain(params):
        q, v = read(params, data)
        a = taken(q)[..., 0]
        each = 0.5 * (a - backed) ** 2
        each += made.conservatism * (jax.nn.logsumexp(q, axis=-1) - a)
        each = each.sum(axis=0)
        if kind == "td":
            weight = jnp.where(lowest >= v, made.tau, 1 - made.tau)
            each += 0.5 * jax.lax.stop_gradient(weight) * (lowest - v) ** 2
        return jnp.sum(jnp.where(mask, each, 0)) / mask.sum()

    sgd = optax.sgd(1.0)
    values = values.replace(opt_state=sgd.init(values.params))
    packed = pack(data, SHAPES[shape])[0]
    update = jax.jit(ilql.make_update(made, MODEL, sgd, "none"))
    after, metrics = update(values, data, packed)
    assert float(metrics["value_loss"]) == pytest.approx(float(plain(values.params)), rel=1e-5)
    slopes = jax.jit(jax.grad(plain))(values.params)
    for old, new, slope in zip(
        *map(jax.tree.leaves, (values.params, after.params, slopes)), strict=True
    ):
        np.testing.assert_allclose(old - new, slope, atol=2e-5)
    for name in ("decoder", "q"):
        for old, new, slow in zip(
            *map(jax.tree.leaves, (values.target[name], after.params[name], after.target[name])),
            strict=True,
        ):
            np.testing.assert_allclose(slow, 0.75 * old + 0.25 * new, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_guide_adds_the_smaller_of_the_slow_values(kind):
    made = settings(kind)
    state, values = started(made)
    state = state.with_extra(ilql=values)
    guide = ilql.ilql(made).provides["steering"](context(), state, lambda params: params)
    data = batch(0, groups=1, size=2)
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    scores = []
    for model, params in zip(guide.models, guide.params, strict=True):
        whole = jnp.full((count, width), width)
        hidden = decoder.hidden(model, params, data.tokens, position, whole)[:, 4]
        scores.append(head.logits(hidden, decoder.unembedding(params), softcap=None))
    q = read(values.target, data)[0][:, :, 5]
    np.testing.assert_allclose(jnp.stack(scores), q, atol=1e-5)
    logits = jax.random.normal(jax.random.key(0), (count, MODEL.vocab_size))
    seen = Context(None, data.tokens, None, tuple(scores))
    wanted = np.asarray(logits, np.float64) + 2.0 * np.asarray(q, np.float64).min(axis=0)
    np.testing.assert_allclose(guide.process(logits, seen, guide.args), wanted, atol=1e-5)
    assert len(guide.models) == (2 if kind == "td" else 1)


def test_without_a_weight_the_policy_is_alone():
    assert ilql.ilql(IlqlConfig(beta=0.0)).provides["steering"](context(), None, None) is None


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"task": "arithmetic"}, "one turn"), ({"lora": LoraConfig(rank=2)}, r"lora\.rank=2")],
)
def test_what_has_no_values_is_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        ilql.ilql(IlqlConfig()).check(Config(**{"task": "keydoor", **changes}))
