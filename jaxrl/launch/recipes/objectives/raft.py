"""RAFT: supervised fine-tuning on the best of each prompt's samples, again and again.

Paper: Dong et al. 2023, "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment"
Idea: sample K responses of each prompt, keep the one that the reward ranks first, raise its
likelihood, repeat. There is no negative gradient, no baseline and no ratio, so sampling and
training may be as far apart as one likes.
Formula: `L = -mean_g log pi(argmax_(i in g) r_i)`
Claim: more stable and simpler than RL, at its strength.
Reading: ties keep the first; the KL term in the ranking (recalled as optional) is left out. The
ablation keeps a sample of each group whatever its reward, which is K = 1. Beside the best of 8
stand the best of 4 and of 16, at as many samples a step, and ReST's rule, which keeps every right
sample.
Source: none found (recalled from the paper; no code was searched)
Fidelity: partial: not compared with a source
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(policy="raft", aggregation="seq-mean-token-sum"))
EXAMPLE = Example()
"""The quickstart with RAFT's objective."""
