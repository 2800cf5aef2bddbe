"""Memory and compilations, against what a process is made to take."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.record import usage


def test_a_new_shape_is_counted_and_a_known_one_is_not():
    @jax.jit
    def double(x):
        return x * 2.0

    three, four = jnp.ones(3), jnp.ones(4)
    with usage.count_compilations() as used:
        assert used()["compilations"] == 0
        double(three)
        assert used()["compilations"] == 1
        double(three)
        assert used()["compilations"] == 1
        double(four)
        assert used()["compilations"] == 2
    double(jnp.ones(5))
    assert used()["compilations"] == 2


def test_memory_is_the_peak_that_the_system_reports():
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    held = np.ones(4_000_000)
    found = usage.memory()["memory/host"]
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found == pytest.approx(1024 * int(peak[1]), rel=0.02)
    assert found > held.nbytes
