"""ReLIFT in one loss, not interleaved: RL, and imitation of what no sample answers.

Paper: Ma et al. 2025, "Learning What Reinforcement Learning Can't: Interleaved Online Fine-Tuning
for Hardest Questions"
Idea: RL sharpens what the policy can do, imitation brings in what it cannot. A question whose group
has failed altogether gets its solution, and is imitated; everything else is RL.
Formula: `L_GRPO` on samples, `-log pi(y*)` on solutions of questions with pass rate 0
Claim: 5.2 points above zero-RL models with 13% of the demonstrations.
Reading: imitation is a term of the same update with equal weight, in place of an update of its own
when enough hard questions have gathered. The ablation learns nothing from the solutions.
Source: TheRoadQaQ/ReLIFT@eb95454f45eb84bf8f8efa3728f4839548426f5f
relift/verl/verl/relift/trainer.py:436
Fidelity: partial: one loss in place of updates in turns
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="chord", policy_args={"mu": 0.5}, advantage="sampled_advantages"
    ),
    extensions={"guidance": GuidanceConfig("expert_on_failure")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with solutions to what has failed."""
