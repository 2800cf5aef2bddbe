"""ScalingInter-RL: the turns that an episode may have grow with the training.

Paper: Xi et al. 2025, "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through
Multi-Turn Reinforcement Learning"
Idea: a policy that may act for long from the start wastes its turns and collapses; begin with short
episodes, in which it learns what its actions do, and lengthen them step by step.
Formula: `h_(t+1) = h_t + delta_h` every so many steps; no episode has more than `h_t` turns
Claim: agents match or surpass commercial models on 27 tasks, and training is stable at long
horizons.
Reading: GRPO on whole episodes, from a random initialisation, in the worlds of the recipe
`keydoor`. The horizons are our own. Held-out episodes have the last one.
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.02),
    stages={
        share: {"task_args.turns": turns} for share, turns in {0: 6, 1 / 3: 9, 2 / 3: 12}.items()
    },
    needs=("environment",),
)
EXAMPLE = Example({"steps": 72}, base="keydoor")
"""Six turns, then nine, then twelve."""
