"""Does RIQL stand corrupted data better than IQL?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import point_mass
from jaxrl.data.offline.corrupt import ELEMENTS, corrupt
from jaxrl.launch import offline_sets


def experiment() -> Experiment:
    """Point mass, medium-replay, an element of 30% of the steps corrupted at random."""

    def make() -> Setting:
        env = point_mass.make()
        made = offline_sets.tiers(env)
        clean = made.sets["medium_replay"]
        sets = {e: corrupt(clean, e, rate=0.3, scale=1.0) for e in ELEMENTS}
        return Setting(env, made.bounds, {"clean": clean, **sets})

    arms = tuple(
        Arm(f"{label}, {data}", algorithm, {"steps": 6000, "batch_size": 64}, data)
        for data in ("clean", *ELEMENTS)
        for label, algorithm in (("IQL", "iql"), ("RIQL", "riql"))
    )
    claims = tuple(
        Claim(
            f"RIQL is above IQL with 30% of the {e.replace('_', ' ')} corrupted (Yang et al. 2023)",
            f"RIQL, {e}",
            f"IQL, {e}",
        )
        for e in ELEMENTS
    )
    return Experiment("Offline, corrupted data", make, arms, claims, points=4)
