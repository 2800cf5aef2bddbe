"""RAFT: supervised fine-tuning on the best of each prompt's samples, again and again.

Paper: Dong et al. 2023, "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment"
Idea: sample K responses of each prompt, keep the one that the reward ranks first, raise its
likelihood, repeat. There is no negative gradient, no baseline and no ratio, so sampling and
training may be as far apart as one likes.
Formula: `L = -mean_g log pi(argmax_(i in g) r_i)`
Claim: more stable and simpler than RL, at its strength.
Reading: ties keep the first, as in the authors' code, which also throws away samples that look
broken and fine-tunes on packed texts with their prompts, where the loss here is of the response.
The KL term in the ranking (recalled as optional) is left out. The ablation keeps a sample of each
group whatever its reward, which is K = 1. Beside the best of 8 stand the best of 4 and of 16, at as
many samples a step, and ReST's rule, which keeps every right sample.
Source: OptimalScale/LMFlow@f3597dba134e8bb3d2cfedeaaae6fc7296ace924
src/lmflow/pipeline/raft_aligner.py:456-463
Fidelity: partial: a sum over the response, not a mean over packed texts with prompts
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(policy="raft", aggregation="seq-mean-token-sum"))
EXAMPLE = Example()
"""The quickstart with RAFT's objective."""
