"""Does a form that is filled in at first teach what a reward at its end alone does not?"""

from __future__ import annotations

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control.environments import form
from jaxrl.data.offline.statistics import Bounds


def experiment() -> Experiment:
    """Forms of four fields, 0 where every form is sent wrong and 100 where every one is right."""

    def make() -> Setting:
        return Setting(form.make(4), Bounds(-1.0, 1.0))

    online = {"worlds": 4, "updates": 2, "warmup": 2500, "discount": 0.95, "batch_size": 64}
    arms = (
        Arm("QWeb", "qweb"),
        Arm("QWeb, never filled in", "qweb", {"prefill": (0.0,), "warmup": 2500}),
        Arm("DQN, never filled in", "dqn", online),
    )
    claims = (
        Claim(
            "fields filled in at first beat the reward alone (Gur et al. 2019)",
            "QWeb",
            "QWeb, never filled in",
        ),
        Claim("QWeb is above DQN (Gur et al. 2019)", "QWeb", "DQN, never filled in"),
    )
    note = (
        "All take 20,000 steps and 2500 at random. An episode that sends nothing scores 50; it is "
        "what a policy learns that has only met the penalty of a wrong form."
    )
    title = "Online, discrete: forms with a reward at the end"
    return Experiment(title, make, arms, claims, note, points=5, episodes=64)
