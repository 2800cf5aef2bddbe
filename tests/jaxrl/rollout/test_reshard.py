"""Sampling on devices of its own changes nothing but where; damage on the way is reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.config import SamplingConfig
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.rollout import reshard
from tests.jaxrl import tiny

TREE = {"w": jnp.arange(6.0).reshape(2, 3), "layers": ({"b": jnp.ones(4, jnp.bfloat16)},)}


def place(path, leaf):
    return NamedSharding(mesh.make(MeshConfig()), P())


@pytest.mark.exact("parameters reach the sampling devices to the last bit")
def test_every_leaf_arrives_as_it_was():
    sent = reshard.transfer(TREE, place)
    assert jax.tree.structure(sent) == jax.tree.structure(TREE)
    jax.tree.map(np.testing.assert_array_equal, sent, TREE)


def test_the_host_waits_once_and_for_the_sums_alone(monkeypatch):
    """After all leaves have been sent; what it reads does not grow with the leaves' sizes."""
    events, put, get = [], jax.device_put, jax.device_get

    def read(tree):
        events.append(sum(x.nbytes for x in jax.tree.leaves(tree)))
        return get(tree)

    monkeypatch.setattr(jax, "device_put", lambda *a: events.append("put") or put(*a))
    monkeypatch.setattr(jax, "device_get", read)
    for name in ("__int__", "__bool__"):
        monkeypatch.setattr(type(jnp.ones(1)), name, None)
    reshard.transfer({"a": jnp.ones(2), "b": jnp.ones(3000), "c": jnp.ones(4)}, place)
    assert events == ["put"] * 3 + [2 * 3 * 4]


def test_a_leaf_that_arrives_otherwise_is_named(monkeypatch):
    put = jax.device_put

    def damaged(x, where):
        return put(x.at[0].add(1) if x.ndim == 1 else x, where)

    monkeypatch.setattr(jax, "device_put", damaged)
    with pytest.raises(RuntimeError, match=r"\['layers'\]\[0\]\['b'\] arrived"):
        reshard.transfer(TREE, place)


def test_one_device_cannot_be_divided():
    with pytest.raises(ValueError, match=r"sampling\.devices=1 of 1 devices"):
        reshard.meshes(MeshConfig(), SamplingConfig(devices=1))


@pytest.mark.exact("sampling on devices of its own draws the tokens of one device")
@pytest.mark.slow
def test_four_devices_train_and_four_sample_as_one_does_both(tmp_path):
    """fp32: the same tokens, parameters within rounding."""
    run = {"warm_start.steps": 4, "steps": 3}
    apart = {"mesh.fsdp": 2, "sampling.devices": 4, "sampling.mesh.tensor": 2}
    tiny.finish(tiny.start(tmp_path / "one", **run))
    tiny.finish(tiny.start(tmp_path / "apart", devices=8, **run, **apart))
    one, other = (tiny.artefacts(tmp_path / name) for name in ("one", "apart"))
    for a, b in zip(one["rows"], other["rows"], strict=True):
        assert (a["reward/mean"], a["tokens"]) == (b["reward/mean"], b["tokens"])
        assert b["logp_gap_max"] < 1e-4
    for name, bits in one["arrays"].items():
        if name.startswith("['params']"):
            a, b = (np.frombuffer(x, np.float32) for x in (bits, other["arrays"][name]))
            np.testing.assert_allclose(a, b, atol=1e-4)
