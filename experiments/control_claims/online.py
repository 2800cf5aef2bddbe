"""How fast do the online algorithms swing a pendulum up?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import pendulum
from jaxrl.data.offline.statistics import Bounds


def experiment() -> Experiment:
    """Pendulum-v1's task, 0 at the random policy's return and 100 at -150."""

    def make() -> Setting:
        return Setting(pendulum.make(), Bounds(-1220.0, -150.0))

    arms = (
        Arm("SAC", "sac", {"steps": 3000, "warmup": 500}),
        Arm("TD3", "td3", {"steps": 3000, "warmup": 500}),
        Arm("DSAC-T", "dsac_t", {"steps": 3000, "warmup": 500}),
        Arm("REDQ", "redq", {"steps": 1500, "warmup": 500}),
        Arm("DroQ", "droq", {"steps": 1500, "warmup": 500}),
        Arm("SAC, half the steps", "sac", {"steps": 1500, "warmup": 500}),
        Arm("PPO", "ppo", {"steps": 100_000}),
    )
    claims = (
        Claim("REDQ is above SAC at the same steps (Chen et al. 2021)", "REDQ", _HALF),
        Claim("DSAC-T matches SAC or is above it (Duan et al. 2023)", "DSAC-T", "SAC", "matches"),
        Claim("DroQ matches REDQ (Hiraoka et al. 2021)", "DroQ", "REDQ", "matches"),
    )
    note = "Steps of the environment; PPO takes 33 times as many."
    return Experiment("Online, pendulum", make, arms, claims, note, points=6)


_HALF = "SAC, half the steps"
