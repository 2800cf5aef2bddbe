"""DPH-RL: a mass-covering divergence to the initial policy in place of the reverse KL.

Paper: Li et al. 2025, "The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse
in Reinforcement Learning with Verifiable Reward"
Idea: the reverse KL lets the policy give up all modes but one. Forward KL or Jensen-Shannon make
every mode that is lost costly: they rehearse what the initial policy could do.
Formula: `J - beta D_f(pi_ref, pi)`, with `f(u) = -log u` (forward KL) or Jensen-Shannon's
Claim: mends the fall of pass@k, raises pass@1 and pass@k in and out of the domain.
Reading: the divergence is estimated on the policy's own tokens (`f_divergence.sampled`), not on
stored samples of the initial policy, and all prompts have it, not the near-perfect alone. The
ablation is the reverse KL at the same weight.
"""

import dataclasses

import jax

from jaxrl.config import Config
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, arm, cipher
from launch.recipes import quickstart
from losses import f_divergence


def forward_kl(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Forward KL [N, T] by tokens of the policy."""
    return f_divergence.sampled(logp, ref_logp, kind="forward_kl")


def reverse_kl(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Reverse KL [N, T] by the same estimator."""
    return f_divergence.sampled(logp, ref_logp, kind="kl")


def config() -> Config:
    """The quickstart with a forward KL to its start."""
    objective = ObjectiveConfig(kl_coef=0.1, kl="launch.recipes.dph_rl:forward_kl")
    return dataclasses.replace(quickstart.config(), recipe="dph_rl", objective=objective)


def effect() -> Effect:
    """Forward against reverse KL where three answers to each symbol are right."""
    method = arm(config(), steps=80)
    reverse = dataclasses.replace(method.objective, kl="launch.recipes.dph_rl:reverse_kl")
    return Effect(
        claim="the forward KL keeps more of the right answers alive than the reverse KL",
        task=cipher(((6, 0.8), (2, 0.4)), (((2, 1), 1.0),), modes=3),
        method=method,
        ablation=dataclasses.replace(method, objective=reverse),
        statistic="distinct",
    )
