"""NLPO: PPO that only chooses among tokens which an earlier copy of the policy finds likely.

Paper: Ramamurthy et al. 2023, "Is Reinforcement Learning (Not) for Natural Language Processing:
Benchmarks, Baselines, and Building Blocks for Natural Language Policy Optimization"
Idea: text as a Markov decision process has as many actions as there are words. PPO with a critic
and a penalty on each token for leaving the first policy (RL4LMs) learns from any reward; NLPO masks
what lies outside the nucleus of a copy of the policy, renewed at an interval of updates, in
sampling and in the loss.
Formula: `r_t = R 1[t = T] - beta (log pi - log pi_0)`; `pi'(a) ~ pi(a) 1[a in top_p(pi_masking)]`
Claim: RL aligns better than supervised training, and NLPO is more stable and better than PPO.
Reading: beta is fixed, and the divergence is that of the masked policy, where the authors' code has
the unmasked one. Held-out answers of the effect are the most likely ones:
a first look drew them at temperature 1, also from what the mask had kept from being trained (0.723
against 0.853). The ablation is PPO without the mask.
Source: allenai/RL4LMs@97df0bd2f7406a906206c9610aea795fbf52884c rl4lms/algorithms/nlpo/nlpo.py:27
Fidelity: partial: the divergence is of the masked policy
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.nucleus import NucleusConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    extensions={
        "critic": CriticConfig(optimizer=OptimizerConfig(learning_rate=0.001), kl_coef=0.05),
        "nucleus": NucleusConfig(mass=0.9, every=10),
    }
)
EXAMPLE = Example()
"""The quickstart by PPO with a critic, a penalty on every token, and the mask."""
