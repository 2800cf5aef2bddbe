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
Source: WooooDyy/AgentGym-RL@82402a99c62a293735a3f412fb8ac9a600673bc0
examples/train/ScalingInter-RL/babyai_train.sh:43
Fidelity: partial: shorter horizons, KL penalty left out
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.02),
    stages={step: {"task_args.turns": turns} for step, turns in {0: 6, 24: 9, 48: 12}.items()},
    steps=72,
)
EXAMPLE = Example(base="keydoor")
"""Six turns, then nine, then twelve."""
