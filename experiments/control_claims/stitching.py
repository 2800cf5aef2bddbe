"""Who finds a way through a maze that no trajectory of the data shows whole?

Two looks came before. The first had walks of 12 steps, a quarter of which came to the goal, some
all the way: to imitate the best was enough (10%BC 90, Decision Transformer 93, of 100). And it
weighted IQL's advantages by 10, the paper's for a reward of -1 a step, where one of 0 until the end
makes them 100 times smaller. In the second all had 2000 updates (IQL 0, AWAC 28, FQL 38, 10%BC 0):
too few for a target that follows by 0.005 to carry a value back over the way, which three seeds of
IQL alone then showed with 8000.
"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import maze
from jaxrl.launch import offline_sets


def experiment() -> Experiment:
    """A U-shaped maze with a reward at its end, and short walks between random cells."""

    def make() -> Setting:
        made = offline_sets.walks("u")
        return Setting(maze.make("u"), made.bounds, made.sets)

    long = {"steps": 8000}
    sharp = {**long, "temperature": 0.1}
    arms = (
        Arm("BC", "bc", long, "walks"),
        Arm("10%BC", "bc", {**long, "share": 0.1}, "walks"),
        Arm("DT", "dt", {"steps": 1200, "target": 1.0}, "walks"),
        Arm("AWR", "awr", sharp, "walks"),
        Arm("AWAC", "awac", sharp, "walks"),
        Arm("IQL", "iql", {**long, "temperature": 0.001, "expectile": 0.9}, "walks"),
        Arm("FB, zero-shot", "fb", {"steps": 3000}, "walks"),
        Arm("HILP, zero-shot", "hilp", {"steps": 3000}, "walks"),
        Arm("FQL", "fql", {**long, "distillation": 0.3}, "walks"),
    )
    claims = (
        Claim("IQL stitches where BC does not (Kostrikov et al. 2021)", "IQL", "BC"),
        Claim("IQL stitches where %BC does not", "IQL", "10%BC"),
        Claim("IQL ends above Decision Transformer", "IQL", "DT"),
        Claim("HILP is above FB (Park et al. 2024)", "HILP, zero-shot", "FB, zero-shot"),
    )
    note = (
        "DT's walks of 5 steps are shorter than its windows of 8: tested, it sees windows that "
        "training never had. Its best point is the first of training; the last are of an "
        "overfitted run, so that the gap to IQL does not show whether DT stitches."
    )
    return Experiment("Offline, stitching in a maze", make, arms, claims, note, points=5)
