"""The critic against plain computations of values, advantages and loss; and it learns."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.config import Config
from jaxrl.extensions import critic
from jaxrl.extensions.critic import CriticConfig
from jaxrl.losses import value as losses
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder, lora, value
from jaxrl.models.lora import LoraConfig
from jaxrl.models.value import ValueConfig
from jaxrl.training import trainable
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import init_state
from jaxrl.types import TrainState
from tests import broad_except
from tests.jaxrl.batches import MODEL, batch
from tests.jaxrl.extensions.contexts import context
from tests.jaxrl.training.test_objective import episodes_of

WIDE = PackingConfig(micro_batch_tokens=4096, row_length=64)
NARROW = PackingConfig(micro_batch_tokens=64, row_length=64)
CONTEXT = context(Config(steps=100))
HEADS = {"scalar": ValueConfig(), "histogram": ValueConfig(bins=7, low=-1.0, high=2.0)}


def config(head="scalar", **changes):
    fast = OptimizerConfig(learning_rate=0.01)
    return CriticConfig(optimizer=fast, head=HEADS[head], **changes)


def initial_state(made):
    """A critic whose head is not zero any more."""
    policy = decoder.init(MODEL, jax.random.key(0))
    state = critic.critic(made).init(CONTEXT, TrainState(policy, (), jnp.int32(0)))
    head = state.extra["critic"].params["value"]
    head["weight"] = 0.1 * jax.random.normal(jax.random.key(1), head["weight"].shape)
    return state


def updating(made):
    """The jitted update of the critic alone."""
    update = critic.critic(made).update(CONTEXT, lambda state, *_: (state, {}))
    return jax.jit(update, donate_argnums=0)


def plain_outputs(params, data):
    """[N, T, bins]: each sequence in a row of its own; of the state before each token."""
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    hidden = decoder.hidden(
        MODEL, params["decoder"], data.tokens, position, jnp.full((count, width), width)
    )
    return jnp.pad(value.outputs(params["value"], hidden), ((0, 0), (1, 0), (0, 0)))[:, :-1]


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("values of packed rows equal those of separate rows to 2e-5")
@pytest.mark.parametrize("head", HEADS)
def test_values_are_those_of_separate_rows(head):
    made, data = config(head), batch(0)
    state = initial_state(made)
    found = critic.make_values(made, MODEL)(state.extra["critic"].params, pack(data, NARROW)[0])
    expected = value.values(made.head, plain_outputs(state.extra["critic"].params, data))
    np.testing.assert_allclose(found, np.where(data.action_mask, expected, 0), atol=2e-5)


def test_advantages_by_hand():
    """Two actions, lambda 0.5, gamma 0.9, reward 2 at the end; and a sequence without a score."""
    made = config(discount=0.9, mixing=0.5, whiten=False)
    data = batch(0, groups=1, size=2, failed=(1,))
    mask = np.zeros(data.tokens.shape, bool)
    mask[:, 3:5] = True
    data = data.replace(action_mask=mask, rewards=np.array([2.0, 0.0], np.float32))
    values = np.zeros(mask.shape, np.float32)
    values[:, 3:5] = [0.5, 1.0]
    found = critic.estimate(made, data, values, None)
    last, first = 2.0 - 1.0, 0.9 * 1.0 - 0.5
    first += 0.9 * 0.5 * last
    np.testing.assert_allclose(found.advantages[0, 3:5], [first, last], rtol=1e-6)
    np.testing.assert_allclose(found.returns[0, 3:5], [first + 0.5, last + 1.0], rtol=1e-6)
    assert not np.any(found.advantages[1]) and not np.any(found.advantages[0, 5:])
    made = config(discount=0.9, mixing=0.5, whiten=False, kl_coef=0.1)
    data = data.replace(behavior_logp=np.where(mask, -1.0, 0.0).astype(np.float32))
    punished = critic.estimate(made, data, values, np.where(mask, -3.0, 0.0))
    np.testing.assert_allclose(punished.returns[0, 4], 2.0 - 0.1 * 2.0, rtol=1e-6)


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("credit", ["gae", "turn_gae", "bilevel_gae"])
def test_a_critic_learns_from_shaped_rewards(credit):
    """Others of the batch stay as they are, so that nothing is shaped twice."""
    made = config(credit=credit, bootstrap=False, whiten=False)
    data = episodes_of(batch(0))
    found = []
    for shaping in ("", "tests.jaxrl.training.test_objective:fined"):
        ctx = context(Config(objective=ObjectiveConfig(shaping=shaping)))
        with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
            found.append(critic.critic(made).prepare(ctx, initial_state(made), data))
        np.testing.assert_array_equal(found[-1].rewards, data.rewards)
        for name, array in data.extra.items():
            np.testing.assert_array_equal(found[-1].extra[name], array)
    fined = np.arange(len(data.tokens)) % 3 == 2
    for name in ("returns", "advantages"):
        moved = np.abs(getattr(found[0], name) - getattr(found[1], name)).max(axis=1) > 1.0
        np.testing.assert_array_equal(moved, fined)


def test_a_cut_response_is_bootstrapped_by_hand():
    """Gamma 0.9, lambda 0.5, values 0.5 and 1, reward 2; the first response ends, the second goes
    on in a state worth 3, the third has no action and so no state after one."""
    made = config(discount=0.9, mixing=0.5, whiten=False)
    data = batch(0, groups=1, size=3)
    mask = np.zeros(data.tokens.shape, bool)
    mask[:2, 3:5] = True
    data = data.replace(
        action_mask=mask,
        rewards=np.full(3, 2.0, np.float32),
        stopped=np.array([True, False, False]),
    )
    support = np.ones((*mask.shape, 1), np.uint32)  # of a run that truncates; values need none
    longer = critic.with_last_states(data.replace(support=support))
    assert longer.support is None
    assert longer.action_mask.shape == (3, mask.shape[1] + 1)
    assert np.argwhere(longer.action_mask[:, 5:]).tolist() == [[1, 0]]
    np.testing.assert_array_equal(longer.action_mask[:, :5], mask[:, :5])
    values = np.zeros(longer.action_mask.shape, np.float32)
    values[:, 3:6] = [0.5, 1.0, 3.0]
    last = critic.last_values(data, values)
    assert last.tolist() == [0.0, 3.0, 0.0]
    found = critic.estimate(made, data, values[:, :-1], None, last_value=last)
    for row, after in ((0, 0.0), (1, 3.0)):
        end = 2.0 + 0.9 * after - 1.0
        start = 0.9 * 1.0 - 0.5 + 0.9 * 0.5 * end
        np.testing.assert_allclose(found.advantages[row, 3:5], [start, end], rtol=1e-6)
        np.testing.assert_allclose(found.returns[row, 3:5], [start + 0.5, end + 1.0], rtol=1e-6)


@pytest.mark.broad
@pytest.mark.exact("values of the states after cut responses equal those of separate rows to 2e-5")
def test_the_state_after_the_last_token_has_its_value():
    """Also of a response that fills the array and the row; other values are what they were."""
    made, data = config(), batch(0)
    state, longest = initial_state(made), int(np.max(np.nonzero(data.action_mask)[1])) + 1
    tokens, mask = data.tokens[:, :longest], data.action_mask[:, :longest]
    stopped = np.arange(len(tokens)) % 3 == 0
    stopped[np.argmax(mask[:, -1])] = False
    data = data.replace(tokens=tokens, action_mask=mask, stopped=stopped)
    params = critic.whole(state.params, state.extra["critic"].params)
    evaluate, exact = critic.make_values(made, MODEL), PackingConfig(row_length=longest)
    found = np.asarray(evaluate(params, pack(critic.with_last_states(data), exact)[0]))
    before = evaluate(params, pack(data, exact)[0])
    np.testing.assert_allclose(np.where(mask, found[:, :-1], 0), before, atol=2e-5)
    padded = data.replace(tokens=np.pad(tokens, ((0, 0), (0, 1))))
    plain = value.values(made.head, plain_outputs(state.extra["critic"].params, padded))
    after = longest - np.argmax(mask[:, ::-1], axis=1)
    expected = np.where(stopped, 0, plain[np.arange(len(after)), after])
    np.testing.assert_allclose(critic.last_values(data, found), expected, atol=2e-5)
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        ready = critic.critic(made).prepare(CONTEXT, state, data)
    returns, ended = (
        critic.estimate(made, data, found[:, :-1], None, last_value=last).returns
        for last in (expected.astype(np.float32), None)
    )
    np.testing.assert_allclose(ready.returns, returns, atol=1e-4)
    assert np.abs(returns - ended).max() > 1e-3


@pytest.mark.parametrize("base", broad_except(["plain"], ["plain", "int8", "nf4"]))
def test_under_adapters_the_critic_trains_its_own_on_the_same_base(base):
    """It learns, the policy's parameters stay, and no second copy of them is held."""
    made, data, adapters = config(clip=0.0), batch(0), LoraConfig(rank=2, base=base)
    part = trainable.part(MODEL, adapters, ())
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        params = decoder.init(MODEL, jax.random.key(0))
        params = trainable.attach(MODEL, params, adapters, jax.random.key(1))
        state = init_state(params, optax.adam(0.1), part)
        state = critic.critic(made).init(CONTEXT, state)
        before = jax.tree.map(np.array, state.params)
        evaluate, packed = critic.make_values(made, MODEL), pack(data, WIDE)[0]

        def values(state):
            return evaluate(critic.whole(state.params, state.extra["critic"].params), packed)

        ready = critic.estimate(made, data, values(state), None)
        update = updating(made)
        first = np.array(values(state))
        sizes = [sum(a.nbytes for a in jax.tree.leaves(t)) for t in (state.extra["critic"], before)]
        for _ in range(20):
            state, metrics = update(state, ready, packed, None)
        after = values(state)
    mask = data.action_mask & data.valid[:, None]
    errors = [np.square(v - ready.returns)[mask].mean() for v in (first, after)]
    assert errors[1] < 0.8 * errors[0] and np.isfinite(metrics["value_loss"])
    jax.tree.map(np.testing.assert_array_equal, state.params, before)
    assert {*state.extra["critic"].params["decoder"]} == {"layers"}
    small = sum(a.size for a in jax.tree.leaves(lora.detach(before)[0])) + MODEL.hidden_size + 1
    assert sizes[0] == pytest.approx(3 * 4 * small, abs=16)  # and two moments, of adapters alone
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.extra["critic"].params["decoder"],
                         lora.detach(before)[0])  # fmt: skip
    assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.exact("an update of the critic equals that of the plain loss")
@pytest.mark.parametrize("head", broad_except(["histogram"], HEADS))
def test_an_update_is_that_of_the_plain_loss_and_learns(head):
    made, data = config(head, clip=0.0), batch(0, failed=(2,))
    update = updating(made)
    values = critic.make_values(made, MODEL)
    state = initial_state(made)
    ready = critic.estimate(
        made, data, values(state.extra["critic"].params, pack(data, WIDE)[0]), None
    )
    mask = data.action_mask & data.valid[:, None]

    @functools.partial(jax.jit)
    def plain_loss(params):
        out = plain_outputs(params, ready)
        if made.head.bins > 1:
            target = losses.hl_gauss(ready.returns, value.support(made.head))
            each = losses.categorical_loss(out, target)
        else:
            each = 0.5 * (out[..., 0] - ready.returns) ** 2
        return jnp.sum(jnp.where(mask, each, 0)) / mask.sum()

    expected = float(plain_loss(state.extra["critic"].params))
    after = {}
    for name, packing in {"wide": WIDE, "narrow": NARROW}.items():
        changed, metrics = update(initial_state(made), ready, pack(ready, packing)[0], None)
        assert float(metrics["value_loss"]) == pytest.approx(expected, rel=1e-4)
        after[name] = changed.extra["critic"].params
    # Adam's first step has the gradient's sign, so compare the loss that it leads to.
    losses_after = {name: float(plain_loss(p)) for name, p in after.items()}
    assert losses_after["wide"] == pytest.approx(losses_after["narrow"], rel=1e-3)
    state, packed = initial_state(made), pack(ready, WIDE)[0]
    for _ in range(40):
        state, _ = update(state, ready, packed, None)

    def error(params):
        return np.square(values(params, packed) - ready.returns)[mask].mean()

    assert error(state.extra["critic"].params) < 0.5 * error(
        initial_state(made).extra["critic"].params
    )


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("head", HEADS)
def test_the_loss_holds_no_array_of_all_sequences_for_each_micro_batch(head):
    """Inside the loop over micro-batches, nothing has the shape of the whole batch."""
    made = config(head, clip=0.0)
    data, state = batch(0), initial_state(made)
    values = critic.make_values(made, MODEL)(state.extra["critic"].params, pack(data, NARROW)[0])
    ready = critic.estimate(made, data, values, None)
    inside = jax.make_jaxpr(updating(made))(state, ready, pack(ready, NARROW)[0], None)
    shape, bins = data.tokens.shape, made.head.bins

    def bodies(jaxpr, looped):
        for equation in jaxpr.eqns:
            if looped:
                yield from (tuple(out.aval.shape) for out in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from bodies(inner, looped or equation.primitive.name in ("while", "scan"))

    made_inside = set(bodies(inside.jaxpr, False))
    assert made_inside and not made_inside & {shape, (*shape, bins), (*shape, 1)}
