"""Which offline algorithms get more out of a learner's replay than imitation does?"""

from __future__ import annotations

from jaxrl.control.environments import point_mass
from launch import offline_sets
from launch.experiments import Arm, Claim, Experiment, Setting


def experiment() -> Experiment:
    """Point mass, all that an SAC run saw on its way to a medium policy."""

    def make() -> Setting:
        env = point_mass.make()
        made = offline_sets.tiers(env)
        return Setting(env, made.bounds, made.sets)

    arms = (
        Arm("BC", "bc", {}, "medium_replay"),
        Arm("10%BC", "bc", {"share": 0.1}, "medium_replay"),
        Arm("IQL", "iql", {}, "medium_replay"),
    )
    claims = (Claim("IQL is above BC on medium-replay (Kostrikov et al. 2021)", "IQL", "BC"),)
    return Experiment("Offline, medium-replay", make, arms, claims)
