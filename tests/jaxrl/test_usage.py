"""Memory and compilations, against what a process is made to take."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import usage


def test_a_new_shape_is_counted_and_a_known_one_is_not():
    @jax.jit
    def double(x):
        return x * 2.0

    three, four = jnp.ones(3), jnp.ones(4)
    with usage.counted() as used:
        assert used()["compilations"] == 0
        double(three)
        assert used()["compilations"] == 1
        double(three)
        assert used()["compilations"] == 1
        double(four)
        assert used()["compilations"] == 2
    double(jnp.ones(5))
    assert used()["compilations"] == 2


def test_memory_is_a_peak_in_bytes():
    before = usage.memory()["memory/host"]
    assert before > 50e6  # an interpreter with JAX takes more
    held = np.ones(int(before) // 8 + 25_000_000)
    grown = usage.memory()["memory/host"]
    assert grown - before > 100e6
    del held
    assert usage.memory()["memory/host"] == grown
