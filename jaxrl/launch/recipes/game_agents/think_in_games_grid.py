"""TiG on a grid drawn in text: read off where things are, then move; GRPO on reaching the goal.

Paper: Liao et al. 2025, "Think in Games: Learning to Reason in Games via Reinforcement Learning
with Large Language Models"
Idea: that of `think_in_games`, in a game where a thought is a statement about the state: row and
column of the walker and of the goal.
Formula: that of `think_in_games`
Claim: as good as conventional RL at a small part of its data, with explanations.
Reading: the grid is ours. Every problem has walls of its own, and those of held-out problems are
never trained on. A turn is `21>43D`: the walker is in row 2, column 1, the goal in row 4, column 3,
and the walker goes down. Demonstrations are shortest paths with true thoughts. The reward is 1 for
the goal, within eight moves; nothing rewards the thought, and `thoughts` is the share of turns with
a true one. That GRPO raises what the demonstrations gave is not shown: in the 12 steps that were
looked at, held-out success fell from 0.75 to 0.53. Flags that begin from nothing or leave thoughts
out are those of `think_in_games`.
Source: paper, equations 1 to 4
Fidelity: partial: an own game and its reward, no KL penalty
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig

METHOD = Method(objective=ObjectiveConfig(), needs=("environment",))
EXAMPLE = Example(
    {
        "task": "text_grid",
        "task_args": {"size": 4, "walls": 4, "turns": 8, "view": "map", "think": True},
        "warm_start": {"steps": 150, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {
            "prompts": 16,
            "max_prompt_tokens": 24,
            "max_new_tokens": 216,
            "turn_tokens": 6,
        },
        "optimizer": {"learning_rate": 0.0005},
        "packing": PackingConfig(row_length=256),
    },
    base="retrieval",
)
"""Four by four cells, four of them walls."""
