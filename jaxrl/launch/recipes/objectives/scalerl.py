"""ScaleRL without its asynchronous pipeline: the settings that a large ablation found to scale.

Paper: Khatri et al. 2025, "The Art of Scaling Reinforcement Learning Compute for LLMs"
Idea: most choices move the speed of RL and not where it ends. The recipe: truncated importance
weights on every token (CISPO), means by prompt, advantages in units of the batch, groups without
signal left out, prompts that are all but solved sampled no more, data some steps off-policy.
Formula: `-sg(min(r_t, 5)) A log pi_t`, `A = (r - mean_g r) / std_batch`, mean over a prompt's
tokens and then over prompts
Claim: runs of 100k GPU-hours are foretold by a sigmoid in compute; most details change efficiency.
Reading: in the paper advantages are divided by their own standard deviation over the batch, here by
that of the rewards, which also varies between prompts. Prompts that are all but solved come back
when too few others are left. Not here: the asynchronous pipeline (`rollout.in_flight`), lengths
interrupted rather than cut. The ablation is GRPO: PPO clip, mean by sequence, group's std.
Source: paper, section 4
Fidelity: partial: the deviation of rewards in place of that of advantages
"""

import numpy as np

from jaxrl.config import CurriculumConfig
from jaxrl.data.selection.curriculum import Prompts, pass_rate, uniform
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig


def unsolved(
    state: Prompts, count: int, allowed: np.ndarray, solved: float = 0.9
) -> tuple[Prompts, np.ndarray]:
    """No positive resampling: prompts below `solved`, as long as there are enough of them."""
    open_ = allowed & ~(pass_rate(state) >= solved)
    return uniform(state, count, open_ if open_.sum() >= count else allowed)


METHOD = Method(
    objective=ObjectiveConfig(
        policy="cispo",
        advantage_args={"scale": "batch"},
        rows="jaxrl.losses.advantages.groups:informative",
        aggregation="prompt-mean",
    ),
    updates_per_batch=4,
    curriculum=CurriculumConfig(choose="jaxrl.launch.recipes.objectives.scalerl:unsolved"),
)
EXAMPLE = Example()
"""The quickstart with ScaleRL's settings."""
