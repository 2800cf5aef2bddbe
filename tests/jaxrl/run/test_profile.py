"""Costs of a trace: by hand, and of a program that is known."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl.run import profile
from jaxrl.run.context import Callbacks


def event(op, start, length, thread=1, **more):
    args = {"hlo_op": op, "hlo_module": "jit_f"}
    return {"ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args} | more


def test_an_operation_is_not_charged_for_what_it_contains():
    events = [
        event("while", 0, 100),
        event("dot", 10, 30),
        event("dot", 50, 20),
        event("add", 55, 5),
        event("dot", 0, 7, thread=2),
        event("dot", 100, 1),  # begins as the loop ends
        {"ph": "M", "name": "process_name"},
        event("python", 0, 1000, args={}),
    ]
    found = {cost.operation: (cost.calls, cost.seconds) for cost in profile.tally(events)}
    assert found == {
        "while": (1, pytest.approx(50e-6)),
        "dot": (4, pytest.approx((30 + 15 + 7 + 1) * 1e-6)),
        "add": (1, pytest.approx(5e-6)),
    }


def test_a_trace_of_some_steps(tmp_path):
    notes, steps = [], []
    callbacks = Callbacks(step=lambda step, metrics: steps.append(step), note=notes.append)
    watch = profile.profiled(callbacks, tmp_path, first=2, steps=2)

    @jax.jit
    def wave(x):
        return jnp.tanh(x @ x).sum()

    x = jnp.ones((64, 64))
    for step in range(21, 26):
        wave(x).block_until_ready()
        watch.step(step, {})
    assert steps == [21, 22, 23, 24, 25]
    (note,) = notes
    assert "trace of 2 steps" in note and "wave" in note
    assert {cost.calls for cost in profile.costs(tmp_path)} == {2}


def test_bad_requests_are_refused(tmp_path):
    with pytest.raises(ValueError, match="first=1"):
        profile.profiled(Callbacks(), tmp_path, first=1)
    with pytest.raises(FileNotFoundError, match="no trace"):
        profile.costs(tmp_path)
