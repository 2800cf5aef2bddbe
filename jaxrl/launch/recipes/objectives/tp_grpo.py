"""TP-GRPO, on-policy, with the group's own prefixes in place of a judge: rewards for thoughts.

Paper: He et al. 2025, "Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning
Model More Efficient Math Learner"
Idea: an outcome says nothing of where a solution went wrong, and single steps are judged badly.
Take runs of right steps and of wrong ones together as thoughts, reward those, and punish wrong ones
only when the policy can do better.
Formula: `A_t = (r - mean_g r) / std_g r + w D_k ((1 - p) 1[D_k > 0] + p 1[D_k < 0])`, `D_k` the
change of value over the thought of t, p the pass rate
Claim: with its judge and off-policy data, which are not here, higher accuracy from fewer samples
than rewards of outcomes, for models of 1.5B and 7B.
Reading: the paper's generative judge reads signals in the text; here a step is right if the samples
that share it pass more often than those that share what comes before. The weights by the pass rate
are ours. In accounts of the paper, thoughts of right solutions earn `alpha p` or `-alpha p`, and in
wrong solutions the thoughts that the answer did not adopt are not punished. Off-policy data are
left out. The ablation rewards outcomes alone.
Source: none found (cs-holder/tp_grpo was not to be had; accounts of the paper were read)
Fidelity: partial: prefixes in place of a judge, seldom shared on free text; weights ours
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(advantage="tp_grpo"))
EXAMPLE = Example()
"""The quickstart with rewards for thoughts."""
