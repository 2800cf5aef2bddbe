"""Does a critic trained by classification scale where regression does not?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import cartpole
from jaxrl.data.offline.statistics import Bounds


def experiment() -> Experiment:
    """Cart-pole, 0 at the random policy's return and 100 at the longest episode's."""

    def make() -> Setting:
        return Setting(cartpole.make(), Bounds(22.0, 500.0))

    short = {"steps": 8000}
    sizes = (("32", (32, 32)), ("128", (128, 128)), ("4 x 128", (128,) * 4))
    kinds = (("MSE", "dqn"), ("HL-Gauss", "hl_gauss"))
    arms = tuple(
        Arm(f"{label}, {size}", algorithm, {**short, "hidden": hidden})
        for size, hidden in sizes
        for label, algorithm in kinds
    )
    arms += (
        Arm("C51, 128", "c51", {**short, "hidden": (128, 128)}),
        Arm("PPO, 64", "ppo", {"steps": 60_000}),
    )
    claims = tuple(
        Claim(
            f"HL-Gauss is above MSE at {size} (Farebrother et al. 2024)",
            f"HL-Gauss, {size}",
            f"MSE, {size}",
        )
        for size, _ in sizes
    )
    note = "The regression is Huber's, as DQN has it. PPO takes more steps."
    title = "Online, discrete: regression and classification"
    return Experiment(title, make, arms, claims, note, points=5, episodes=32)
