"""Which offline algorithms get more out of a learner's replay than imitation does?"""

from __future__ import annotations

from jaxrl.control.environments import point_mass
from launch import offline_sets
from launch.experiments import Arm, Claim, Experiment, Setting

DATA = "medium_replay"


def experiment() -> Experiment:
    """Point mass, all that an SAC run saw on its way to a medium policy."""

    def make() -> Setting:
        env = point_mass.make()
        made = offline_sets.tiers(env)
        return Setting(env, made.bounds, made.sets)

    arms = (
        Arm("BC", "bc", {"steps": 1500}, DATA),
        Arm("10%BC", "bc", {"steps": 1500, "share": 0.1}, DATA),
        Arm("AWR", "awr", {"steps": 1500}, DATA),
        Arm("AWAC", "awac", {"steps": 1500}, DATA),
        Arm("IQL", "iql", {"steps": 1500}, DATA),
        Arm("XQL", "xql", {"steps": 1500}, DATA),
        Arm("RIQL", "riql", {"steps": 1500}, DATA),
        Arm("TD3+BC", "td3_bc", {"steps": 750}, DATA),
        Arm("ReBRAC", "rebrac", {"steps": 750}, DATA),
        Arm("CQL", "cql", {"steps": 1500}, DATA),
        Arm("Cal-QL", "cal_ql", {"steps": 1500}, DATA),
        Arm("SAC-N", "edac", {"steps": 1500, "diversity": 0.0}, DATA),
        Arm("EDAC", "edac", {"steps": 1500}, DATA),
        Arm("f-DVL", "f_dvl", {"steps": 1500}, DATA),
        Arm("FQL", "fql", {"steps": 1500}, DATA),
        Arm("PA-RL", "pa_rl", {"steps": 1500}, DATA),
        Arm("RO2O", "ro2o", {"steps": 1500}, DATA),
        Arm("MOPO", "mopo", {"steps": 1500}, DATA),
        Arm("COMBO", "combo", {"steps": 1500}, DATA),
        Arm("DT", "dt", {"steps": 600, "target": 46.0}, DATA),
    )
    claims = (
        Claim("IQL is above BC on medium-replay (Kostrikov et al. 2021)", "IQL", "BC"),
        Claim("%BC is above BC on mixed data (Chen et al. 2021)", "10%BC", "BC"),
        Claim("IQL is above Decision Transformer on medium-replay", "IQL", "DT"),
        Claim("TD3+BC is above BC on medium-replay (Fujimoto & Gu 2021)", "TD3+BC", "BC"),
        Claim("ReBRAC is above TD3+BC (Tarasov et al. 2023)", "ReBRAC", "TD3+BC"),
        Claim("COMBO is above MOPO (Yu et al. 2021)", "COMBO", "MOPO"),
        Claim("EDAC with 10 critics is above SAC-N with 10 (An et al. 2021)", "EDAC", "SAC-N"),
    )
    note = "A step of TD3+BC and ReBRAC is two updates of the critics."
    return Experiment("Offline, medium-replay", make, arms, claims, note, points=5)
