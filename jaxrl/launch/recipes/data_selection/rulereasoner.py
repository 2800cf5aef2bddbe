"""Dads: each batch is shared out among domains by how far their rewards fall short.

Paper: Liu et al. 2025, "RuleReasoner: Reinforced Rule-based Reasoning via Domain-aware Dynamic
Sampling"
Idea: no mixture set in advance: keep a smoothed reward of each domain, and draw more from those
below the target; every domain keeps a floor.
Formula: `w_d = softmax(max(0, target - r_d) / tau)`, mixed with the uniform
Claim: 4.1 points on eight tasks and 10.4 on three out of distribution above o1, with less compute
than sampling that filters prompts.
Reading: formula and tau are those of the authors' code. There, a domain's reward is a mean over the
last four batches, which weigh less the older they are; here it is a moving average. The floor is
ours. The ablation shares evenly.
Source: bigai-nlco/RuleReasoner@c6df0212c4e4abe682183dccd684737302d217fa
verl/verl/trainer/ppo/ray_trainer.py:1050;
bigai-nlco/RuleReasoner@c6df0212c4e4abe682183dccd684737302d217fa scripts/train/train_mix.sh:57
Fidelity: partial: a moving average in place of a buffer, whose decay takes shortfalls to 25/48
"""

from jaxrl.config import BanditConfig
from jaxrl.launch.method import Example, Method
from jaxrl.launch.recipes.data_selection import dump

METHOD = Method(
    bandit=BanditConfig("dads", {"temperature": 0.3, "floor": 0.1}, signal="reward"),
    needs=("domains",),
)
EXAMPLE = Example({"domains": dump.sums()})
"""The quickstart on sums of three sizes."""
