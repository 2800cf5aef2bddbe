"""The critic against plain computations of values, advantages and loss; and it learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import critic
from jaxrl.config import CriticConfig
from jaxrl.optimizer import OptimizerConfig
from jaxrl.packing import PackingConfig, pack
from jaxrl.types import TrainState
from losses import value as losses
from models import decoder, value
from models.value import ValueConfig
from tests.jaxrl.batches import MODEL, batch

WIDE = PackingConfig(micro_batch_tokens=4096, row_length=64)
NARROW = PackingConfig(micro_batch_tokens=64, row_length=64)
HEADS = {"scalar": ValueConfig(), "histogram": ValueConfig(bins=7, low=-1.0, high=2.0)}


def config(head="scalar", **changes):
    fast = OptimizerConfig(learning_rate=0.01)
    return CriticConfig(use=True, optimizer=fast, head=HEADS[head], **changes)


def begun(made):
    """A critic whose head is not zero any more."""
    policy = decoder.init(MODEL, jax.random.key(0))
    state = critic.begun(made, MODEL, 100, TrainState(policy, (), jnp.int32(0)))
    head = state.critic.params["value"]
    head["weight"] = 0.1 * jax.random.normal(jax.random.key(1), head["weight"].shape)
    return state


def plain_outputs(params, data):
    """[N, T, bins]: each sequence in a row of its own; of the state before each token."""
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    hidden = decoder.hidden(
        MODEL, params["decoder"], data.tokens, position, jnp.full((count, width), width)
    )
    return jnp.pad(value.outputs(params["value"], hidden), ((0, 0), (1, 0), (0, 0)))[:, :-1]


@pytest.mark.parametrize("head", HEADS)
def test_values_are_those_of_separate_rows(head):
    made, data = config(head), batch(0)
    state = begun(made)
    found = critic.make_values(made, MODEL)(state.critic.params, pack(data, NARROW)[0])
    expected = value.values(made.head, plain_outputs(state.critic.params, data))
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


@pytest.mark.parametrize("head", HEADS)
def test_an_update_is_that_of_the_plain_loss_and_learns(head):
    made, data = config(head, clip=0.0), batch(0, failed=(2,))
    update = critic.beside(lambda s, *_: (s, {}), made, MODEL, 100, "none")
    values = critic.make_values(made, MODEL)
    state = begun(made)
    ready = critic.estimate(made, data, values(state.critic.params, pack(data, WIDE)[0]), None)
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

    expected = float(plain_loss(state.critic.params))
    after = {}
    for name, packing in {"wide": WIDE, "narrow": NARROW}.items():
        changed, metrics = update(begun(made), ready, pack(ready, packing)[0], None)
        assert float(metrics["value_loss"]) == pytest.approx(expected, rel=1e-4)
        after[name] = changed.critic.params
    # Adam's first step has the gradient's sign, so compare the loss that it leads to.
    losses_after = {name: float(plain_loss(p)) for name, p in after.items()}
    assert losses_after["wide"] == pytest.approx(losses_after["narrow"], rel=1e-3)
    state, packed = begun(made), pack(ready, WIDE)[0]
    for _ in range(40):
        state, _ = update(state, ready, packed, None)

    def error(params):
        return np.square(values(params, packed) - ready.returns)[mask].mean()

    assert error(state.critic.params) < 0.5 * error(begun(made).critic.params)
