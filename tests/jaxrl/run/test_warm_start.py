"""What the warm start trains."""

import jax
import numpy as np
import pytest

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.record import checkpoint
from jaxrl.rollout import policy
from jaxrl.run import loop
from jaxrl.training import trainable
from tests.jaxrl import tiny


@pytest.mark.sample(1)
@pytest.mark.broad
@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({"train": ("layers/mlp/*",), "optimizer.rates": {"layers/mlp/*": 0.5}}, "layers/mlp"),
        ({"train": ("layers/mlp/*",), "compute_dtype": "bfloat16"}, "layers/mlp"),
        ({"lora.rank": 2, "optimizer.rates": {"layers/*/b": 2.0}}, ""),
    ],
)  # fmt: skip
def test_the_warm_start_trains_what_the_run_does(changes, trained, tmp_path):
    """Adapters follow it: they have no part in it, nor have rates that name them."""
    config = tiny.config(tmp_path, steps=1, **{"eval.every": 0, "warm_start.steps": 2}, **changes)
    loop.train(config)
    model, _ = policy.describe(config)
    with jax.set_mesh(mesh.make(MeshConfig())):
        first = policy.first_params(config, model, jax.sharding.get_mesh())
        part = trainable.part(model, config.lora, config.train)
        like = trainable.in_compute_dtype(model, trainable.abstract(model, config.lora), part)
        found, _ = checkpoint.restore_params(tmp_path, like, step=0)
    flat = jax.tree_util.tree_leaves_with_path(first)
    after = {jax.tree_util.keystr(p, simple=True, separator="/"): a
             for p, a in jax.tree_util.tree_leaves_with_path(found)}  # fmt: skip
    moved = set()
    for path, before in flat:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in after and np.any(np.asarray(before.astype(after[name].dtype)) != after[name]):
            moved.add(name)
    assert moved and all(name.startswith(trained) for name in moved)
    assert trained or any(not name.startswith("layers/mlp") for name in moved)
