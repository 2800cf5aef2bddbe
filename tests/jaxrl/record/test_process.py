"""Memory and compilations, against what a process is made to take; exempt objects of a run."""

import gc
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.record import process


def test_a_new_shape_is_counted_and_a_known_one_is_not():
    @jax.jit
    def double(x):
        return x * 2.0

    three, four = jnp.ones(3), jnp.ones(4)
    with process.count_compilations() as used:
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
    found = process.memory()["memory/host"]
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found == pytest.approx(1024 * int(peak[1]), rel=0.02)
    assert found > held.nbytes


def test_objects_are_exempt_after_steady_steps_until_the_run_ends():
    """Steady: once nothing more is compiled."""
    gc.unfreeze()
    with process.exempting() as stepped:
        for compiled in (5.0, 7.0, *[8.0] * process._STEADY):
            stepped(compiled)
            assert gc.get_freeze_count() == 0
        stepped(8.0)
        assert gc.get_freeze_count() > 0
        stepped(9.0)  # a new program: its objects are exempt after as many steps again
        before = gc.get_freeze_count()
        kept = [[n] for n in range(1000)]
        for _ in range(process._STEADY):
            stepped(9.0)
        assert gc.get_freeze_count() > before + len(kept) // 2
    assert gc.get_freeze_count() == 0
