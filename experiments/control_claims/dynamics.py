"""Of what use is a simulator that is off, beside a little real data?"""

from __future__ import annotations

import jax

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control import rollout
from jaxrl.control.environment import random_action
from jaxrl.control.environments import pendulum
from jaxrl.data.offline.statistics import Bounds


def experiment() -> Experiment:
    """Pendulum: 1000 random real steps, and a simulator whose gravity is half as strong again."""

    def make() -> Setting:
        env = pendulum.make()
        act = lambda key, params, observation: random_action(key, env.space)  # noqa: E731
        real = rollout.gather(env, act, None, jax.random.PRNGKey(0), steps=1000, worlds=5)
        return Setting(env, Bounds(-1220.0, -150.0), {"real": real})

    online = {"steps": 2500, "simulator": {"gravity": 15.0}}
    arms = (
        Arm("H2O", "h2o", online, "real"),
        Arm("mixed, gap ignored", "h2o", {**online, "aware": False}, "real"),
        Arm("CQL on the real data", "cql", {"steps": 2500}, "real"),
        Arm("MOPO on the real data", "mopo", {"steps": 2500}, "real"),
        Arm("COMBO on the real data", "combo", {"steps": 2500}, "real"),
    )
    claims = (
        Claim("H2O is above a plain mixture (Niu et al. 2022)", "H2O", "mixed, gap ignored"),
        Claim("H2O is above CQL on the real data", "H2O", "CQL on the real data"),
        Claim(
            "MOPO is above CQL where the data are random (Yu et al. 2020)",
            "MOPO on the real data",
            "CQL on the real data",
        ),
        Claim(
            "COMBO is above CQL where the data are random (Yu et al. 2021)",
            "COMBO on the real data",
            "CQL on the real data",
        ),
    )
    return Experiment("Little real data: a simulator, a model", make, arms, claims, points=4)
