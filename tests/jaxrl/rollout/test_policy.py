"""The decoder that a config describes."""

from __future__ import annotations

import re

import pytest

from jaxrl.config import Config
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.rollout import policy


def test_a_config_says_how_its_model_computes():
    rules = {"vocab": "fsdp+tensor"}
    config = Config(compute_dtype="bfloat16", attention="xla", mesh=MeshConfig(rules=rules))
    model, _ = policy.describe(config)
    assert (model.dtype, model.attention) == ("bfloat16", "xla")
    assert model.rules == (("vocab", "fsdp+tensor"),)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vocab", "tensr", "'tensr' is not a mesh axis; choose of data, fsdp, tensor"),
        ("vocab", "fsdp,tensor", "has 2 entries for a logical axis; give 1"),
        ("vocab", "fsdp+fsdp", "splits over one mesh axis twice"),
        ("layers/mpl/up", "-,-,fsdp", "names neither a logical axis (batch, sequence, embed"),
        ("layers/mlp/up", "fsdp", "has 1 entries for layers/mlp/up of shape (4, 128, 384); give 3"),
    ],
)
def test_rules_that_do_not_fit_are_refused(name, value, message):
    message = re.escape(f"mesh.rules.{name}={value!r}") + ".*" + re.escape(message)
    with pytest.raises(ValueError, match=message):
        policy.describe(Config(mesh=MeshConfig(rules={name: value})))
