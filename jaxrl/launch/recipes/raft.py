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
"""

import dataclasses
from collections.abc import Callable

import jax

from experiments.lab import Arm, Effect, Sampled, arm, cipher, with_objective
from jaxrl.config import Config
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with RAFT's objective."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="raft",
        objective=ObjectiveConfig(policy="raft", aggregation="seq-mean-token-sum"),
    )


def effect() -> Effect:
    """Best of 8 against any of 8, at equal samples."""
    method = arm(config(), steps=60)
    samples = method.prompts * method.group_size
    sizes = {f"best of {k}": groups_of(k, samples) for k in (4, 16)}
    rest = ObjectiveConfig(policy="expert_iteration", aggregation="seq-mean-token-sum")
    return Effect(
        claim="keeping the best of 8 beats keeping any",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, rewards=nothing),
        further=sizes | {"every right sample": with_objective(rest)},
    )


def groups_of(size: int, samples: int) -> Callable[[Arm], Arm]:
    """The method with groups of this size, at as many samples a step."""
    return lambda method: dataclasses.replace(method, prompts=samples // size, group_size=size)


def nothing(batch: Sampled) -> jax.Array:
    """The same reward for all, so that the first of a group is kept."""
    return batch.rewards * 0.0
