"""Forms by hand, and QWeb's network on pages in another order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control.algorithms.text import qweb
from jaxrl.control.environments import form

KEY = jax.random.PRNGKey(0)


def test_a_form_is_right_where_every_element_holds_the_field_of_its_name():
    env = form.make(fields=2)
    page = form.Form(jnp.array([0, 1]), jnp.array([1, 0]), jnp.array([2, 2]))
    first = env.step(KEY, page, jnp.array(1))  # field 1, whose name is 0, into element 0
    np.testing.assert_array_equal(first.state.typed, [1, 2])
    np.testing.assert_array_equal(form.matching(first.state), [True, False])
    assert first.reward == 0 and not first.terminal
    early = env.step(KEY, first.state, jnp.array(4))
    assert early.reward == -1 and early.terminal
    done = env.step(KEY, first.state, jnp.array(2)).state
    sent = env.step(KEY, done, jnp.array(4))
    assert sent.reward == 1 and sent.terminal
    wrong = env.step(KEY, done, jnp.array(3)).state  # field 1 into element 1, over the right one
    np.testing.assert_array_equal(form.matching(wrong), [True, False])
    names, typed = [1, 0, 0, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1]
    np.testing.assert_array_equal(first.observation, names + typed)


@pytest.mark.parametrize("fields", [1, 2, 5])
def test_an_observation_says_all(fields):
    env = form.make(fields)
    page, seen = env.reset(KEY)
    assert seen.shape == (env.space.observation,)
    elements, named, typed = form.parts(seen[None])
    np.testing.assert_array_equal(jnp.argmax(elements[0], -1), page.elements)
    np.testing.assert_array_equal(jnp.argmax(named[0], -1), page.fields)
    np.testing.assert_array_equal(jnp.argmax(typed[0], -1), page.typed)


def test_elements_are_filled_in_rightly_at_the_rate_that_is_asked_for():
    keys = jax.random.split(KEY, 400)
    for rate in (0.0, 0.6, 1.0):
        pages, _ = jax.vmap(form.make(5, prefill=rate).reset)(keys)
        right = jax.vmap(form.matching)(pages)
        assert float(jnp.mean(right)) == pytest.approx(rate, abs=0.04)
        np.testing.assert_array_equal(right, pages.typed < 5)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="fields=0"):
        form.make(0)
    with pytest.raises(ValueError, match=r"prefill=1\.5"):
        form.make(prefill=1.5)


def test_values_follow_elements_and_fields_wherever_they_stand():
    env, config = form.make(3, prefill=0.5), qweb.Config(hidden=(8,))
    net = qweb.network(config, 3)
    params = net.init(KEY)
    page, seen = env.reset(jax.random.PRNGKey(4))
    q = net.outputs(params, seen)
    assert q.shape == (10,)
    moved, swapped = np.array([2, 0, 1]), np.array([1, 0, 2])
    back = jnp.append(jnp.argsort(swapped), 3)
    other = form.Form(page.elements[moved], page.fields[swapped], back[page.typed[moved]])
    again = net.outputs(params, form.observed(other))
    want = q[:-1].reshape(3, 3)[moved][:, swapped]
    np.testing.assert_allclose(again[:-1].reshape(3, 3), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again[-1], q[-1], rtol=1e-5)
    assert len(np.unique(np.round(np.asarray(q), 5))) > 3


def test_phases_begin_with_less_and_less():
    phases = qweb.programs(form.make(3), qweb.Config(steps=80, prefill=(0.5, 0.0)))
    assert [phase.steps for phase in phases] == [5, 5]  # 40 steps, 8 a cycle
