"""The weight of the divergence to the reference follows what is measured, and is then used."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import Config, DataConfig
from jaxrl.extensions import critic
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.kl_control import KLControlConfig, kl_control
from jaxrl.training import objective
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Packed, TrainState, Trajectory
from tests.jaxrl.extensions.contexts import context

ZIEGLER = KLControlConfig("proportional_kl_coefficient", {"target": 0.5, "rate": 0.1})
CONTROLLED = Config(objective=ObjectiveConfig(kl_coef=0.2))
MADE = kl_control(ZIEGLER)


def batch(behavior_logp, mask, valid):
    n, t = mask.shape
    return Trajectory(
        tokens=np.zeros((n, t), np.int32),
        action_mask=mask,
        behavior_logp=behavior_logp,
        policy_version=np.zeros((n, t), np.int32),
        rewards=np.arange(n, dtype=np.float32),
        valid=valid,
        group_ids=np.zeros(n, np.int32),
    )


def packed(computed):
    nothing = np.zeros((1, 1, 1), np.int32)
    return Packed(*[nothing] * 8, np.array(computed), np.int32(1))


def identity(state, batch, packed, ref_logp):
    return state.replace(step=state.step + 1), {}


def test_the_weight_moves_by_what_the_counted_tokens_say():
    """Ziegler et al. 2019, equation 3 by hand; prompts, failed rows and what is left out of the
    update do not count, whatever stands there."""
    mask = np.array([[False, True, True], [False, True, True], [False, True, False]])
    logp = np.array([[7.0, -1.0, -2.0], [np.nan] * 3, [0.0, -3.0, 0.0]], np.float32)
    ref = np.array([[0.0, -1.5, -2.1], [0.0] * 3, [0.0, -3.9, 5.0]], np.float32)
    data = batch(logp, mask, np.array([True, False, True]))
    run = MADE.update(context(CONTROLLED), identity)
    start = MADE.init(context(CONTROLLED), TrainState({}, {}, jnp.int32(0)))
    kl = (0.5 + 0.1 + 0.9) / 3
    state, metrics = run(start, data, packed([True] * 3), ref)
    np.testing.assert_allclose(metrics["kl_sampled"], kl, rtol=1e-6)
    assert float(metrics["kl_coef"]) == np.float32(0.2)  # of this update; the next has another
    np.testing.assert_allclose(
        state.coefficients["kl_coef"], 0.2 * (1 + 0.1 * (kl / 0.5 - 1)), rtol=1e-6
    )
    written = data.replace(expert=np.array([False, False, True]))  # no policy sampled the last
    _, metrics = run(start, written, packed([True] * 3), ref)
    np.testing.assert_allclose(metrics["kl_sampled"], 0.3, rtol=1e-6)
    _, metrics = run(state, data, packed([True, True, False]), ref)
    np.testing.assert_allclose(metrics["kl_sampled"], 0.3, rtol=1e-6)


def test_a_measurement_that_is_not_finite_leaves_the_weight():
    mask = np.ones((1, 2), bool)
    data = batch(np.full((1, 2), np.nan, np.float32), mask, np.array([True]))
    state = TrainState({}, {}, jnp.int32(0), coefficients={"kl_coef": jnp.float32(0.3)})
    run = MADE.update(context(CONTROLLED), identity)
    state, _ = run(state, data, packed([True]), np.zeros((1, 2), np.float32))
    assert float(state.coefficients["kl_coef"]) == np.float32(0.3)


def test_the_weight_in_force_is_the_one_used():
    """By the loss, and by the rewards that a critic estimates from; the config's is its start."""
    rng = np.random.default_rng(0)
    mask = np.ones((2, 3), bool)
    logp, ref, values = (rng.normal(-2, 0.5, (2, 3)).astype(np.float32) for _ in range(3))
    data = batch(logp, mask, np.ones(2, bool))

    def loss(fixed, weight=None):
        config = ObjectiveConfig(kl_coef=fixed)
        whole = objective.whole_batch(config, data, 3)
        moved = {} if weight is None else {"kl_coef": weight}
        given = (jnp.asarray(logp), jnp.zeros((2, 3)), jnp.asarray(ref), 0, moved)
        return float(objective.objective(config, data, whole, mask, *given)[0])

    assert loss(9.0, jnp.float32(0.3)) == loss(0.3) != loss(9.0)

    def returns(fixed, weight=None):
        settings = CriticConfig(kl_coef=fixed, whiten=False)
        return np.asarray(critic.estimate(settings, data, values, ref, weight).returns)

    np.testing.assert_array_equal(returns(9.0, jnp.float32(0.3)), returns(0.3))
    assert not np.allclose(returns(9.0), returns(0.3))


def test_the_critics_weight_is_moved_where_it_is_the_one():
    config = Config(extensions={"critic": CriticConfig(kl_coef=0.4)})
    state = MADE.init(context(config), TrainState({}, {}, jnp.int32(0)))
    assert state.coefficients == {"critic_kl_coef": np.float32(0.4)}


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (Config(), ZIEGLER, "it moves one weight"),
        (
            dataclasses.replace(CONTROLLED, extensions={"critic": CriticConfig(kl_coef=0.1)}),
            ZIEGLER,
            "it moves one weight",
        ),
        (CONTROLLED, KLControlConfig("jaxrl.losses.policy.objectives:nothing"), "does not exist"),
        (CONTROLLED, dataclasses.replace(ZIEGLER, args={}), "needs 'target'"),
        (
            dataclasses.replace(CONTROLLED, data=DataConfig(path="f", kinds=("completion",))),
            ZIEGLER,
            "kl_control with data.path='f'",
        ),
    ],
)
def test_what_cannot_work_is_refused(config, settings, message):
    MADE.check(CONTROLLED)
    with pytest.raises(ValueError, match=message):
        kl_control(settings).check(config)
