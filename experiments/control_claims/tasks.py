"""Can a sequence model find out, within an episode, which task it is in?

Not in this setting. At the start no goal is more likely than another, and the data is from policies
that saw the goal. The first action of least squared error is then the mean over all goals: not to
move, which reveals nothing. A solution needs an earlier episode as a prompt (Meta-DT has one, which
is left out here), histories of learning, or a policy that explores.
"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import point_goals
from jaxrl.launch import offline_sets


def experiment() -> Experiment:
    """A point mass with a hidden goal; the data are of policies that saw it."""

    def make() -> Setting:
        env = point_goals.make()
        made = offline_sets.tiers(point_goals.make(shown=True))
        data = made.sets["medium_expert"]
        seen = env.space.observation
        hidden = data._replace(
            observations=data.observations[:, :seen],
            next_observations=data.next_observations[:, :seen],
        )
        return Setting(env, made.bounds, {"hidden": hidden})

    asked = {"target": 40.0, "window": 16, "steps": 800}
    arms = (
        Arm("BC", "bc", {"steps": 1500}, "hidden"),
        Arm("DT", "dt", asked, "hidden"),
        Arm("Meta-DT", "meta_dt", {**asked, "model_steps": 800}, "hidden"),
    )
    claims = (
        Claim("Meta-DT is above Decision Transformer (Wang et al. 2024)", "Meta-DT", "DT"),
        Claim("a history tells more than a state", "DT", "BC"),
    )
    note = (
        "100 is a policy that is shown the goal. At first no arm moves, as nothing of the goal can "
        "be seen; the arms are no test of what a history tells."
    )
    return Experiment("Offline, tasks not named", make, arms, claims, note, points=4)
