"""Which offline algorithms get more out of a learner's replay than imitation does?"""

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
            ("BC", "bc", {}),
            ("10%BC", "bc", {"share": 0.1}),
            ("AWR", "awr", {}),
            ("AWAC", "awac", {}),
            ("IQL", "iql", {}),
            ("XQL", "xql", {}),
            ("f-DVL", "f_dvl", {}),
            ("TD3+BC", "td3_bc", {"steps": 750}),
            ("ReBRAC", "rebrac", {"steps": 750}),
        )
    )
    claims = (
        Claim("IQL is above BC on medium-replay (Kostrikov et al. 2021)", "IQL", "BC"),
        Claim("%BC is above BC on mixed data (Chen et al. 2021)", "10%BC", "BC"),
        Claim("TD3+BC is above BC on medium-replay (Fujimoto & Gu 2021)", "TD3+BC", "BC"),
        Claim("ReBRAC is above TD3+BC (Tarasov et al. 2023)", "ReBRAC", "TD3+BC"),
        Claim("f-DVL is above XQL (Sikchi et al. 2023)", "f-DVL", "XQL"),
    )
    note = "A step of TD3+BC and ReBRAC is two updates of the critics."
    return Experiment("Offline, medium-replay", make, arms, claims, note, points=5)
