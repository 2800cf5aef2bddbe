"""Does a reward learnt from late answers find a goal that the task's own reward hides?

In a first look the annotator's level was the reward, and none of the arms ever came to the goal.
"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import maze
from jaxrl.data.offline.statistics import Bounds


def experiment() -> Experiment:
    """A maze that pays at its end alone; the score is the share of episodes that reach it."""

    def make() -> Setting:
        return Setting(maze.make("medium"), Bounds(0.0, 1.0))

    short = {"steps": 6000}
    arms = (
        Arm("ONI", "oni", short),
        Arm("ONI, answers 1000 updates late", "oni", {**short, "lag": 1000}),
        Arm("no annotator", "oni", {**short, "weight": 0.0}),
    )
    claims = (
        Claim("ONI is above the sparse reward alone (Zheng et al. 2024)", "ONI", "no annotator"),
        Claim("late answers do as well", arms[1].label, "ONI", "matches"),
    )
    return Experiment("Online, sparse reward: an annotator", make, arms, claims, points=6)
