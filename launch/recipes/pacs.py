"""PACS: the verdict as a label, the policy's own score as the classifier's logit.

Paper: Li et al. 2025, "Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR"
Idea: predict whether a response is right by its log-ratio to a reference, less that of the group's
other responses, under binary cross-entropy. The gradient is an actor's and a critic's at once.
Formula: `-R log sigmoid(psi) - (1 - R) log sigmoid(-psi)`, `psi_i = s_i - mean_(j != i) s_j`,
`s = beta sum_t log(pi / pi_ref)`
Claim: 59.8% pass@256 on AIME 2025, 13 points over PPO and 14 over GRPO.
Reading: score and leave-one-out are recalled; without class weights or resets of the reference. The
ablation is the actor alone: REINFORCE with the leave-one-out mean reward as baseline.
The effect is a second look: on plain prompts, pass@1 over the run went against the claim, by -0.031
[-0.055, -0.007].
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, arm, cipher
from launch.recipes import quickstart


def config() -> Config:
    """The quickstart with PACS's objective."""
    objective = ObjectiveConfig(policy="losses.mirror:pacs", aggregation="seq-mean-token-mean")
    return dataclasses.replace(quickstart.config(), recipe="pacs", objective=objective)


def effect() -> Effect:
    """Against the actor term alone."""
    method = arm(config(), steps=60)
    actor = ObjectiveConfig(
        policy="losses.policy:reinforce",
        advantage="losses.advantages:rloo",
        aggregation="seq-mean-token-mean",
    )
    return Effect(
        claim="where prompts accept one of two codes unseen, the coupled loss keeps both alive",
        task=cipher(((6, 0.8), (2, 0.4)), (((2, 1), 1.0),), modes=2, accepted=(0.7, 0.3)),
        method=method,
        ablation=dataclasses.replace(method, objective=actor),
        statistic="pass@8",
    )
