"""ScalingInter-RL: the turns that an episode may have grow with the training.

Paper: Xi et al. 2025, "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through
Multi-Turn Reinforcement Learning"
Idea: a policy that may act for long from the start wastes its turns and collapses; begin with short
episodes, in which it learns what its actions do, and lengthen them step by step.
Formula: `h_(t+1) = h_t + delta_h` every so many steps; no episode has more than `h_t` turns
Claim: agents match or surpass commercial models on 27 tasks, and training is stable at long
horizons.
Reading: GRPO on whole episodes, from a random initialisation, in the worlds of the recipe
`keydoor`. Horizons of 6, 13 and 20 turns, 100 steps each, and the KL penalty of 0.001 are those of
the authors' script for BabyAI; their other four scripts have others. They cut off the episodes of
any environment, which earn what they have earned by then. The small run has shorter ones, which its
worlds keep themselves, and an entropy bonus; its held-out episodes have the last one.
Source: WooooDyy/AgentGym-RL@82402a99c62a293735a3f412fb8ac9a600673bc0
examples/train/ScalingInter-RL/babyai_train.sh:43
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(kl_coef=0.001),
    stages={
        share: {"rollout.max_turns": turns} for share, turns in {0: 6, 1 / 3: 13, 2 / 3: 20}.items()
    },
    needs=("environment",),
)
EXAMPLE = Example(
    {"objective": {"entropy_coef": 0.02}, "steps": 72},
    base="keydoor",
    stages={
        share: {"task_args.turns": turns} for share, turns in {0: 6, 1 / 3: 9, 2 / 3: 12}.items()
    },
)
"""Six turns, then nine, then twelve, with an entropy bonus."""
