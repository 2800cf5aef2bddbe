"""NLPO: PPO that only chooses among tokens which an earlier copy of the policy finds likely.

Paper: Ramamurthy et al. 2023, "Is Reinforcement Learning (Not) for Natural Language Processing:
Benchmarks, Baselines, and Building Blocks for Natural Language Policy Optimization"
Idea: text as a Markov decision process has as many actions as there are words. PPO with a critic
and a penalty on each token for leaving the first policy (RL4LMs) learns from any reward; NLPO masks
what lies outside the nucleus of a copy of the policy, renewed every so many updates, in sampling
and in the loss.
Formula: `r_t = R 1[t = T] - beta (log pi - log pi_0)`; `pi'(a) ~ pi(a) 1[a in top_p(pi_masking)]`
Claim: RL aligns better than supervised training, and NLPO is more stable and better than PPO.
Reading: beta is fixed. `config()` is the PPO of RL4LMs without the mask. That is
`jaxrl.logits.nucleus_of`, which guides any sampler, but only the laboratory has it in the loss. The
ablation is PPO without the mask.
"""

import dataclasses

from jaxrl.config import Config, CriticConfig, ReferenceConfig
from jaxrl.logits import nucleus_of
from jaxrl.optimizer import OptimizerConfig
from launch.lab import Effect, arm, cipher
from launch.lab.policy import Steer
from launch.recipes import quickstart


def config() -> Config:
    """The quickstart by PPO with a critic and a penalty on every token."""
    critic = CriticConfig(use=True, optimizer=OptimizerConfig(learning_rate=1e-3), kl_coef=0.05)
    return dataclasses.replace(quickstart.config(), recipe="rl4lms_grue_nlpo", critic=critic)


def effect() -> Effect:
    """The mask against none, where most words never fit."""
    method = arm(
        config(),
        steps=80,
        critic=dataclasses.replace(config().critic, kl_coef=0.0),
        reference=ReferenceConfig(every=10),
        steer=Steer(nucleus_of, 0.9),
    )
    return Effect(
        claim="among the likely words of an earlier policy, PPO learns faster",
        task=cipher(((16, 0.8), (8, 0.4)), (((3, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, steer=None),
        over="area",
    )
