"""The moving average of parameters, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import Config
from jaxrl.extensions.average import AverageConfig, average
from jaxrl.training.trainable import WHOLE, Part
from jaxrl.types import TrainState
from tests.jaxrl.extensions.contexts import context

MADE = average(AverageConfig(decay=0.75, reference=True))


def climb(state, *_):
    """Every parameter one up."""
    return state.replace(params={name: x + 1 for name, x in state.params.items()}), {}


def initial_state(part, **params):
    state = TrainState({name: jnp.float32(x) for name, x in params.items()}, (), jnp.int32(0))
    return MADE.init(context(part=part), state)


def test_it_follows_the_parameters_by_its_decay():
    state = initial_state(WHOLE, a=0.0)
    ctx = context()
    update = MADE.update(ctx, climb)
    for expected in (0.25, 0.75 * 0.25 + 0.25 * 2, 0.75 * 0.6875 + 0.25 * 3):
        state, _ = update(state, None, None, None)
        np.testing.assert_allclose(state.extra["average"]["a"], expected)
    params_of = MADE.provides
    assert params_of["eval_params"](ctx, state) == state.extra["average"]
    assert params_of["reference"](ctx, state) == state.extra["average"]
    assert state.params["a"] == 3


def test_it_is_kept_of_the_trained_part_alone():
    half = Part(lambda p: ({"a": p["a"]}, {"b": p["b"]}), lambda trained, rest: trained | rest)
    ctx = context(part=half)
    state, _ = MADE.update(ctx, climb)(initial_state(half, a=0.0, b=5.0), None, None, None)
    assert state.extra["average"] == {"a": 0.25}
    assert MADE.provides["eval_params"](ctx, state) == {"a": 0.25, "b": 6.0}


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match=r"average\.decay"):
        average(AverageConfig(decay=decay)).check(Config())
