"""Must fine-tuning retain the offline data?"""

from __future__ import annotations

from jaxrl.control.environments import pendulum
from launch import offline_sets
from launch.experiments import Arm, Claim, Experiment, Setting


def experiment() -> Experiment:
    """Pendulum: offline on medium-replay, then online for 1500 steps; RLPD is online alone."""

    def make() -> Setting:
        env = pendulum.make()
        made = offline_sets.tiers(env, steps=5000)
        return Setting(env, made.bounds, made.sets)

    data, short = "medium_replay", {"steps": 1500, "online_steps": 1500, "critic_updates": 2}
    arms = (
        Arm("WSRL", "wsrl", short, data),
        Arm("WSRL, no warm-up", "wsrl", {**short, "warmup": 1}, data),
        Arm("WSRL, data retained", "wsrl", {**short, "prior": 0.5}, data),
        Arm("RLPD", "rlpd", {"steps": 1500, "critic_updates": 2, "warmup": 500}, data),
        Arm("ResFiT", "resfit", {"steps": 1500, "online_steps": 1500}, data),
        Arm("RO2O", "ro2o", {"steps": 1500, "online_steps": 1500}, data),
        Arm("PA-RL", "pa_rl", {"steps": 1500, "online_steps": 1500}, data),
        Arm("Cal-QL", "cal_ql", {"steps": 1500, "online_steps": 1500}, data),
        Arm("EXPO", "expo", {"steps": 1500}, data),
        Arm("MOORL", "moorl", {"steps": 1500}, data),
        Arm("SAC from nothing", "sac", {"steps": 1500, "warmup": 500}),
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
    note = "Offline updates come first on the axis of those that have an offline phase."
    return Experiment("Offline to online", make, arms, claims, note, points=6)
