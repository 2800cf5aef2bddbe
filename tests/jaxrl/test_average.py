"""The moving average of parameters, by hand."""

import jax.numpy as jnp
import numpy as np

from jaxrl import average
from jaxrl.config import AverageConfig
from jaxrl.trainable import WHOLE, Part
from jaxrl.types import TrainState

CONFIG = AverageConfig(decay=0.75)


def climb(state, *_):
    """Every parameter one up."""
    return state.replace(params={name: x + 1 for name, x in state.params.items()}), {}


def begun(part, **params):
    state = TrainState({name: jnp.float32(x) for name, x in params.items()}, (), jnp.int32(0))
    return average.begun(CONFIG, part, state)


def test_it_follows_the_parameters_by_its_decay():
    state = begun(WHOLE, a=0.0)
    update = average.beside(climb, CONFIG, WHOLE)
    for expected in (0.25, 0.75 * 0.25 + 0.25 * 2, 0.75 * 0.6875 + 0.25 * 3):
        state, _ = update(state, None, None, None)
        np.testing.assert_allclose(state.average["a"], expected)
    assert average.params(WHOLE, state) == state.average
    assert state.params["a"] == 3


def test_it_is_kept_of_the_trained_part_alone():
    half = Part(lambda p: ({"a": p["a"]}, {"b": p["b"]}), lambda trained, rest: trained | rest)
    state, _ = average.beside(climb, CONFIG, half)(begun(half, a=0.0, b=5.0), None, None, None)
    assert state.average == {"a": 0.25}
    assert average.params(half, state) == {"a": 0.25, "b": 6.0}


def test_without_a_decay_there_is_none():
    state = TrainState({"a": jnp.ones(())}, (), jnp.int32(0))
    assert average.begun(AverageConfig(), WHOLE, state) is state
    assert average.beside(climb, AverageConfig(), WHOLE) is climb
