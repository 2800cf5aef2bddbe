"""Lite PPO: of all the tricks two, advantages in units of the batch and a loss by token.

Paper: Liu et al. 2025, "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning"
Idea: the group's own deviation blows up the noise of groups that nearly agree; the batch's does
not. A mean over all tokens gives long answers their share. With plain PPO clip nothing else is
needed.
Formula: `A = (r - mean_g r) / (std_batch r + eps)`; the mean of `ppo_clip` over all tokens
Claim: the two together beat GRPO and DAPO, from base models of 4B and 8B.
Reading: both clip widths are 0.2. The regime that shows the first is a noisy reward on prompts of
very unequal difficulty; the ablation is GRPO.
Source: paper, section 5; paper, section 4.3
Fidelity: verified against equations
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage_args={"scale": "batch"}, aggregation="token-mean")
)
EXAMPLE = Example()
"""The quickstart with the two techniques."""
