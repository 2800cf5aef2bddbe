"""SimpleRL-Zoo's choice of data: plain zero RL on prompts within the base model's reach.

Paper: Zeng et al. 2025, "SimpleRL-Zoo: Investigating and Taming Zero Reinforcement Learning for
Open Base Models in the Wild"
Idea: whether zero RL works on a base model is a matter of two choices: a reward of correctness
alone, where rigid formats keep a weak model from exploring, and queries that it can solve now and
then.
Formula: GRPO, reward 1 if correct else 0, on the prompts of pass rate nearest to 1/2
Claim: gains on ten base models; with data too hard for them, weak ones learn nothing.
Reading: the paper chooses among data sets of three difficulties; here prompts are, by the base
model's own pass rates. What is measured is that choice: the ablation takes as many of the hardest.
The other choice has no arm, as answers in the lab have no format apart from what they say. A first
look, where domains had symbols in common and the hardest prompts were not hopeless, went against
the claim: -0.232 [-0.378, -0.085].

    jaxrl train quickstart --run-dir runs/before --curriculum.choose jaxrl.data.curriculum:passes
    jaxrl train simplerl_zoo --curriculum.history runs/before
"""

import dataclasses

from jaxrl.config import Config, CurriculumConfig
from jaxrl.launch.lab import Arm, Effect, arm, hard_prompts
from jaxrl.launch.recipes import quickstart


def config() -> Config:
    """The quickstart, to be given the history of another; without one it trains on all."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="simplerl_zoo",
        curriculum=CurriculumConfig(score="within_reach", keep=256),
    )


def effect() -> Effect:
    """A quarter of the prompts: those within reach, or the hardest, which are never solved."""
    passes = CurriculumConfig("passes")
    before = Arm(steps=32, learning_rate=0.0, curriculum=passes)  # the base model, twice each
    method = arm(config(), sizes={"curriculum.keep": 64}, steps=60, before=before)
    hardest = dataclasses.replace(method.curriculum, score="difficulty")
    return Effect(
        claim="prompts within reach teach a weak policy more than the hardest",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, curriculum=hardest),
    )
