"""Arrays that go from the devices of one process to those of another."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.rollout.direct import Offer, Receiver, Sender
from tests.jaxrl import tiny

HOST = "127.0.0.1"


@pytest.mark.broad
def test_another_process_takes_what_is_offered_once():
    """It takes a tree of two dtypes bit for bit, and cannot take it twice, or what was let go."""
    given = {"a": jnp.arange(1000, dtype=jnp.float32) / 7, "b": [jnp.ones((3, 5), jnp.bfloat16)]}
    sender, brief = Sender(HOST, 60.0), Sender(HOST, 0.5)
    offers = [sender.offer(given), brief.offer(given)]
    time.sleep(1.0)
    told = [
        [offer.address, offer.number, {"a": [[1000], "float32"], "b": [[3, 5], "bfloat16"]}]
        for offer in offers
    ]
    other = tiny.spawn("tests.jaxrl.direct_program", json.dumps(told))
    said = [json.loads(line) for line in tiny.finish(other).splitlines()]
    assert said[0] == float(np.sum(np.asarray(given["a"], np.float64))) + 15
    assert said[1:] == ["failed", "failed"]


def test_nobody_at_the_address_is_an_error():
    shapes = {"a": jax.ShapeDtypeStruct((3,), jnp.float32)}
    receiver = Receiver(mesh.make(MeshConfig(), jax.devices()[:1]), HOST, 2.0)
    with pytest.raises(Exception, match=r".") as told:
        receiver.take(Offer(f"{HOST}:1", 1, shapes))
    assert not isinstance(told.value, TypeError | AssertionError)
