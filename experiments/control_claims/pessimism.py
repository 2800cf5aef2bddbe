"""What do ensembles, models and generative policies add on a learner's replay?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting, tiered
from jaxrl.control.environments import point_mass

DATA = "medium_replay"


def experiment() -> Experiment:
    """Point mass, all that an SAC run saw on its way to a medium policy."""

    def make() -> Setting:
        return tiered(point_mass.make())

    arms = tuple(
        Arm(label, algorithm, {"steps": 1500, "batch_size": 64, **more}, DATA)
        for label, algorithm, more in (
            ("CQL", "cql", {}),
            ("Cal-QL", "cal_ql", {}),
            ("SAC-N", "edac", {"members": 5, "diversity": 0.0}),
            ("EDAC", "edac", {"members": 5}),
            ("RO2O", "ro2o", {"members": 5}),
            ("MOPO", "mopo", {"members": 3, "model_steps": 1000}),
            ("COMBO", "combo", {"members": 3, "model_steps": 1000}),
            ("FQL", "fql", {}),
            ("PA-RL", "pa_rl", {"members": 2}),
        )
    )
    claims = (
        Claim("EDAC with 5 critics is above SAC-N with 5 (An et al. 2021)", "EDAC", "SAC-N"),
        Claim("COMBO is above MOPO (Yu et al. 2021)", "COMBO", "MOPO"),
        Claim("COMBO is above CQL (Yu et al. 2021)", "COMBO", "CQL"),
    )
    return Experiment("Offline, medium-replay: pessimism", make, arms, claims, points=5)
