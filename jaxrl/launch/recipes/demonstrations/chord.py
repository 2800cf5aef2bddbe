"""CHORD-mu: imitation of an expert beside each group, as an annealed term of the RL loss.

Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised Fine-Tuning
and Reinforcement Learning via Dynamic Weighting"
Idea: an expert's solution stands beside the policy's samples of every prompt. It is imitated with
weight mu, the samples are trained by GRPO with weight 1 - mu, and mu falls along half a cosine from
imitation to exploration. Per token, imitation may also be weighted by p (1 - p).
Formula: `L = (1 - mu) L_GRPO + mu L_SFT`; `phi_t = sg(p_t (1 - p_t))` before each `log p_t`
Claim: stable learning, and gains over SFT, RL and SFT-then-RL.
Reading: as in the authors' code, each term is a mean over its own tokens. This is CHORD-mu;
`jaxrl.losses.policy.mixed:chord` with `phi` and its constant mu is CHORD-phi. The effect's mu falls
over 60 steps, the run's over 200. The ablation samples beside the same experts and learns nothing
from them. Beside it stand a constant mu of 0.1, and with that CHORD-phi.
Source: modelscope/Trinity-RFT@b458e2c26ff13b2f538ecbc819a2e0a40e98fc73
trinity/algorithm/policy_loss_fn/chord_policy_loss.py:188
Fidelity: verified against code
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="chord_annealed", advantage="sampled_advantages", aggregation="source-mean"
    ),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with an expert in each group."""
