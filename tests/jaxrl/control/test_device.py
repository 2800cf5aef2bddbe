"""A device by hand, and the filters of DigiRL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control import rollout
from jaxrl.control.algorithms.text import digirl
from jaxrl.control.environments import device
from jaxrl.control.environments.device import BACK, Device
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import critics, mlp

KEY = jax.random.PRNGKey(0)


def at(path, target, blocked=False):
    """A device on the screen of a path."""
    return Device(jnp.array(path), jnp.array(target), jnp.asarray(blocked))


@pytest.mark.parametrize(
    ("path", "blocked", "action", "after", "opened"),
    [
        ([4, 4, 4], False, 2, [2, 4, 4], False),
        ([2, 4, 4], False, 1, [2, 1, 4], True),
        ([2, 1, 3], False, BACK, [2, 1, 4], True),
        ([2, 1, 3], False, 0, [2, 1, 3], False),
        ([4, 4, 4], False, BACK, [4, 4, 4], False),
        ([2, 4, 4], True, 1, [2, 4, 4], False),
        ([2, 4, 4], True, BACK, [2, 4, 4], False),
    ],
)
def test_buttons_open_screens_and_back_leaves_them(path, blocked, action, after, opened):
    env = device.make(popups=0.0)
    out = env.step(KEY, at(path, [2, 1, 4], blocked), jnp.array(action))
    np.testing.assert_array_equal(out.state.path, after)
    assert bool(out.terminal) == opened == bool(out.reward)
    assert bool(out.state.blocked) == (blocked and action != BACK)


def test_the_instruction_stands_last():
    seen = device.observed(at([4, 4, 4], [2, 1, 4], blocked=True))
    target = jnp.argmax(seen[-device.INSTRUCTION :].reshape(3, 5), axis=-1)
    np.testing.assert_array_equal(target, [2, 1, 4])
    assert seen[device.INSTRUCTION] == 1 and seen.shape == (device.make().space.observation,)


def test_the_skilled_open_every_screen_and_refuse_no_popup():
    def play(env):
        skilled = lambda key, params, seen: device.skilled(seen)  # noqa: E731
        return rollout.evaluate(env, skilled, None, KEY, episodes=64)

    clear, rude = play(device.make(popups=0.0)), play(device.make(popups=0.3))
    np.testing.assert_array_equal(clear.returns, 1.0)
    assert clear.lengths.max() == 3 and rude.lengths.max() > 3 and rude.returns.mean() > 0.9
    with pytest.raises(ValueError, match="popups"):
        device.make(popups=1.0)


def test_the_best_share_of_what_is_known_is_kept():
    ahead = jnp.array([0.5, 1.0, -jnp.inf, 0.75, 0.5])
    np.testing.assert_array_equal(digirl.best(ahead, 0.4), [False, True, False, True, False])
    np.testing.assert_array_equal(digirl.best(ahead, 0.6), [True, True, False, True, True])
    np.testing.assert_array_equal(digirl.best(ahead, 1.0), [True, True, False, True, True])
    np.testing.assert_array_equal(digirl.best(ahead, 0.01), [False, True, False, False, False])


@pytest.mark.parametrize(
    ("part", "settings", "kept"),
    [  # of two steps of a success, one of a failure, and one whose outcome is not known yet
        ("offline", {"share": 0.25, "step_value": False}, 2),
        ("offline", {"share": 0.25, "margin": 9.0}, 0),
        ("offline", {"share": 0.25, "margin": -9.0}, 2),
        ("online", {"share": 0.75, "step_value": False}, 3),
    ],
)
def test_an_update_imitates_what_the_filters_keep(part, settings, kept):
    space = device.make().space
    learner = digirl.make(space, digirl.Config(hidden=(8,), **settings))
    seen = jnp.stack([device.observed(at([4, 4, 4], [k, 1, 4])) for k in range(4)])
    rows = Transitions(
        seen, jnp.array([0, 1, 2, 3]), jnp.array([0.0, 1.0, 0.0, 0.0]), seen,
        jnp.array([0.0, 1.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 1.0, 0.0]),
        {"return_to_go": jnp.array([0.5, 1.0, 0.0, -jnp.inf])},
    )  # fmt: skip
    before = learner.init(KEY)
    after, metrics = learner.update(KEY, before, {part: rows})
    assert float(metrics["kept"]) == kept / 4
    assert np.isfinite(float(metrics["value_loss"] + metrics["instruction_loss"]))
    moved = jax.tree.map(
        lambda a, b: bool(jnp.any(a != b)),
        before.params["actor"]["net"],
        after.params["actor"]["net"],
    )
    assert any(jax.tree.leaves(moved)) == (kept > 0)


def test_a_negative_temperature_is_refused():
    with pytest.raises(ValueError, match=r"temperature=-1\.0: give 0"):
        digirl.make(device.make().space, digirl.Config(temperature=-1.0))


def test_weights_in_place_of_filters_are_those_of_awr():
    """Of a success, a failure and a step whose outcome is not known, by hand."""
    space = device.make().space
    learner = digirl.make(space, digirl.Config(hidden=(8,), temperature=0.2))
    seen = jnp.stack([device.observed(at([4, 4, 4], [k, 1, 4])) for k in range(3)])
    none, actions = jnp.zeros(3), jnp.array([0, 1, 2])
    extra = {"return_to_go": jnp.array([0.5, 0.0, -jnp.inf])}
    rows = Transitions(seen, actions, none, seen, none, none, extra)
    before = learner.init(KEY)
    after, metrics = learner.update(KEY, before, {"offline": rows})
    value = jax.nn.sigmoid(critics.values(after.params["value"], seen)).min(axis=0)
    weight = np.minimum(np.exp((np.array([1.0, 0.0]) - value[:2]) / 0.2), 20.0)
    logits = mlp.apply(before.params["actor"]["net"], seen, activation=jnp.tanh)
    logp = np.asarray(jax.nn.log_softmax(logits))[[0, 1], [0, 1]]
    assert float(metrics["actor_loss"]) == pytest.approx(-np.sum(weight * logp) / 3, rel=1e-5)
    assert float(metrics["kept"]) == pytest.approx(2 / 3)
