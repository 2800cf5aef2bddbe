"""Does weighting trajectories help where few of them are good?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import point_mass
from jaxrl.data.offline import transitions
from jaxrl.launch import offline_sets


def experiment() -> Experiment:
    """Point mass, 95% random and 5% expert steps."""

    def make() -> Setting:
        env = point_mass.make()
        made = offline_sets.tiers(env)
        pair = [made.sets["random"], made.sets["expert"]]
        mixed = transitions.mix(pair, (0.95, 0.05), 4000, seed=0)
        return Setting(env, made.bounds, {"mixed": mixed})

    arms = tuple(
        Arm(
            f"{algorithm.upper()}, {kind}",
            "weighted",
            {"steps": 1500, "batch_size": 64, "algorithm": algorithm, "weighting": kind},
            "mixed",
        )
        for algorithm in ("bc", "iql")
        for kind in ("uniform", "return", "advantage")
    )
    arms += (Arm("ReCOIL", "recoil", {"steps": 1500, "batch_size": 64}, "mixed"),)
    claims = tuple(
        Claim(
            f"{algorithm} is better with {kind} weighting (Hong et al. 2023)",
            f"{algorithm}, {kind}",
            f"{algorithm}, uniform",
        )
        for algorithm in ("BC", "IQL")
        for kind in ("return", "advantage")
    )
    claims += (Claim("ReCOIL is above BC (Sikchi et al. 2023)", "ReCOIL", "BC, uniform"),)
    note = "ReCOIL reads no reward: it is told which 4 trajectories are the best."
    return Experiment("Offline, few good trajectories", make, arms, claims, note, points=4)
