"""SimpleRL-Zoo's two choices for zero RL: prompts within the base model's reach, and no format.

Paper: Zeng et al. 2025, "SimpleRL-Zoo: Investigating and Taming Zero Reinforcement Learning for
Open Base Models in the Wild"
Idea: whether zero RL works on a base model is a matter of two choices: a reward of correctness
alone, where rigid formats keep a weak model from exploring, and queries that it can solve now and
then.
Formula: GRPO, reward 1 if correct else 0, on the prompts of pass rate nearest to 1/2
Claim: gains on ten base models; with data too hard for them, weak ones learn nothing.
Reading: the paper chooses among data sets of three difficulties; here prompts are chosen by the
base model's own pass rates, and the ablation takes as many of the hardest. On the task `format` the
ablation rewards a format too: the base model puts fillers between symbols, the verifier ignores
them, and the format forbids them. The rewards are those of the authors' `simplelr_math.py` (`mix`),
whose format is a box. A first look, where domains had symbols in common and the hardest prompts
were not hopeless, went against the claim on data: -0.232 [-0.378, -0.085].
Source: hkust-nlp/simpleRL-reason@cf1c7858bfc145a27aa733e75d930d34f0d318a6
verl/utils/reward_score/simplelr_math.py:166
Fidelity: partial: prompts by pass rates in place of three data sets

    jaxrl train quickstart --run-dir runs/before --curriculum.choose
    jaxrl.data.selection.curriculum:passes jaxrl train simplerl_zoo --curriculum.history runs/before
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(curriculum=CurriculumConfig(score="within_reach", keep=256), needs=("history",))
EXAMPLE = Example()
"""The quickstart, to be given the history of another; without one it trains on all."""
