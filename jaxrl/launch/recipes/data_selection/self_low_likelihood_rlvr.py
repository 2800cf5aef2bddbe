"""SELF, its KL recalled: train on what the base model hardly solves, under a forward KL.

Paper: Nguyen et al. 2025, "The Reasoning Boundary Paradox: How Reinforcement Learning Constrains
Language Models"
Idea: RL makes likely successes likelier and, by interference, unlikely ones less so: pass@k
shrinks. Train on the problems of low likelihood only; a forward KL keeps what there was.
Formula: GRPO on the prompts of lowest positive pass rate, `+ beta KL(pi_ref || pi)`
Claim: pass@k above standard RLVR's on mathematics.
Reading: the abstract names the data alone; the KL, its weight and the share kept are recalled or
ours. Prompts that the base model never solves come last. The ablation is GRPO on all prompts.

    jaxrl train quickstart --run-dir runs/before --curriculum.choose
    jaxrl.data.selection.curriculum:passes jaxrl train self_low_likelihood_rlvr
    --curriculum.history runs/before
"""

import jax

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method
from jaxrl.losses.divergence import f_divergence
from jaxrl.training.objective import ObjectiveConfig


def forward_kl(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """`KL(pi_ref || pi)` [N, T], estimated on the policy's own tokens."""
    return f_divergence.sampled(logp, ref_logp, kind="forward_kl")


METHOD = Method(
    objective=ObjectiveConfig(kl_coef=0.05, kl=f"{__name__}:forward_kl"),
    curriculum=CurriculumConfig(score="least_solved", keep=256),
)
EXAMPLE = Example()
"""The quickstart, to be given the history of another; without one it trains on all."""
