"""Arrays that go from the devices of one process to those of another."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.rollout.direct import Receiver, Sender
from tests.jaxrl import tiny

HOST = "127.0.0.1"


@pytest.mark.broad
def test_another_process_takes_what_is_offered_and_waits_no_longer_than_its_deadline():
    """It takes a tree of two dtypes bit for bit; of a number that nobody offers it gives up."""
    given = {"a": jnp.arange(1000, dtype=jnp.float32) / 7, "b": [jnp.ones((3, 5), jnp.bfloat16)]}
    sender = Sender(HOST, 60.0)
    offer = sender.offer(given)
    kinds = {"a": [[1000], "float32"], "b": [[3, 5], "bfloat16"]}
    told = [[offer.address, number, kinds] for number in (offer.number, 99)]
    other = tiny.spawn("tests.jaxrl.direct_program", json.dumps(told))
    said = [json.loads(line) for line in tiny.finish(other).splitlines()]
    assert said == [float(np.sum(np.asarray(given["a"], np.float64))) + 15, "TimeoutError"]


def test_what_lies_on_several_devices_is_refused():
    spread = SimpleNamespace(shape=(8,), devices=lambda: {0, 1})
    with pytest.raises(ValueError, match="lies on 2 devices"):
        Sender(HOST, 1.0).offer({"a": spread})
    with pytest.raises(ValueError, match="a mesh of 2 devices"):
        Receiver(SimpleNamespace(size=2), HOST, 1.0)
