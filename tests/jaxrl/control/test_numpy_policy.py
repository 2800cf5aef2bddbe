"""Every algorithm's policy, written in NumPy, is the one that was trained."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl.control import algorithms, environments, numpy_policy


@pytest.mark.parametrize("name", algorithms.names())
def test_a_policy_in_numpy_is_the_policy(name):
    module = algorithms.load(name)
    kinds = {True: ["cartpole"], False: ["point_mass"], None: ["cartpole", "point_mass"]}
    for kind in kinds[getattr(module, "DISCRETE", False)]:
        env = environments.get(kind)
        config = module.config()
        if hasattr(config, "hidden"):
            config = dataclasses.replace(config, hidden=(8, 8))
        algorithm = module.programs(env, config)[-1].algorithm
        if algorithm.observe(env) is not env:
            pytest.skip("a policy that sees a history is not exported")
        params = algorithm.init(jax.random.PRNGKey(1)).params
        act = jax.jit(lambda x, a=algorithm, p=params: a.best(jax.random.PRNGKey(0), p, x))
        source, constants = numpy_policy.write(act, env.space.observation)
        held = {"np": np}
        exec(source, held)
        rows = np.random.default_rng(0).normal(size=(100, env.space.observation))
        for row in rows.astype(np.float32):
            np.testing.assert_allclose(held["act"](row, constants), act(row), atol=1e-5)


def test_an_operation_without_numpy_is_named():
    with pytest.raises(ValueError, match="cumsum"):
        numpy_policy.write(lambda x: x.cumsum(), 3)
