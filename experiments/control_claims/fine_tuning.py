"""Must fine-tuning retain the offline data?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting, tiered
from jaxrl.control.environments import pendulum


def experiment() -> Experiment:
    """Pendulum: offline on medium-replay, then online for 1500 steps; RLPD is online alone."""

    def make() -> Setting:
        return tiered(pendulum.make(), steps=5000)

    data, small = "medium_replay", {"batch_size": 64}
    both = {**small, "steps": 1500, "online_steps": 1500}
    alone = {**small, "steps": 1500, "warmup": 500}
    ensemble = {"members": 3, "critic_updates": 2}
    arms = (
        Arm("WSRL", "wsrl", {**both, **ensemble}, data),
        Arm("RLPD", "rlpd", {**alone, **ensemble}, data),
        Arm("SAC from nothing", "sac", alone),
        Arm("WSRL, data retained", "wsrl", {**both, **ensemble, "prior": 0.5}, data),
        Arm("WSRL, no warm-up", "wsrl", {**both, **ensemble, "warmup": 1}, data),
        Arm("Cal-QL", "cal_ql", both, data),
        Arm("RO2O", "ro2o", {**both, "members": 3}, data),
        Arm("ResFiT", "resfit", both, data),
        Arm("EXPO", "expo", {**alone, "members": 2}, data),
        Arm("MOORL", "moorl", alone, data),
    )
    claims = (
        Claim(
            "WSRL, without the data, matches RLPD with it (Zhou et al. 2024)",
            "WSRL",
            "RLPD",
            "matches",
        ),
        Claim(
            "WSRL matches itself with the data retained", "WSRL", "WSRL, data retained", "matches"
        ),
        Claim("RLPD is above SAC at the same steps (Ball et al. 2023)", "RLPD", "SAC from nothing"),
    )
    note = (
        "Offline updates come first on the axis of those that have an offline phase. WSRL and RLPD "
        "take two updates a step, MOORL four, the others one, ResFiT half."
    )
    return Experiment("Offline to online", make, arms, claims, note, points=6)
