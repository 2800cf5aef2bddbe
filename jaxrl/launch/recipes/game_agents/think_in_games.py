"""TiG on small games: thoughts and moves of a text game, learned by GRPO on the game's own reward.

Paper: Liao et al. 2025, "Think in Games: Learning to Reason in Games via Reinforcement Learning
with Large Language Models"
Idea: decisions in a game are language: its state is given as text, the model reasons and says what
it does, and the game rewards it. So a language model learns to act as a player does, and can say
why; conventional RL learns values of features.
Formula: SFT on demonstrations with thoughts (optional); then GRPO with the environment's reward; in
the paper 1 where an action is the one that players took
Claim: as good as conventional RL at a small part of its data, with explanations.
Reading: the paper rewards single decisions in a large game by what humans did next; here matches of
tic-tac-toe are played to the end against an opponent that moves at random, and the reward is 1 for
a win and 0.5 for a draw. A match has one advantage for all its moves. Before a move the policy
thinks of what is at stake: `w5` wins with cell 5, `b5` stops the other, `-5` is neither. Nothing
rewards the thought itself. A few demonstrations of perfect play take the place of the paper's
distilled reasoning.
`--warm-start.steps 0 --objective.entropy-coef 0.05 --optimizer.learning-rate 2e-3` begins from
nothing, and `--task-args.think false --rollout.turn-tokens 1` has no thoughts.
`think_in_games_grid` is the same on a grid. `experiments/runs/agents/games.py` trains DQN on the
features of either game for as many moves. Neither the paper's reward for the action that players
took is here, nor its relabelling of that action, nor its KL penalty.
Source: paper, equations 1 to 4
Fidelity: partial: own games, won in place of what players did, no KL penalty
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(), needs=("environment",))
EXAMPLE = Example(
    {
        "task": "board_game",
        "task_args": {
            **{"game": "tic_tac_toe", "mistakes": 0, "instructions": False, "symbols": True},
            "think": True,
        },
        "warm_start": {"steps": 40, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"prompts": 16, "max_prompt_tokens": 12, "max_new_tokens": 72, "turn_tokens": 2},
        "optimizer": {"learning_rate": 0.0005},
        "packing": {"row_length": 96},
    },
    base="retrieval",
)
"""A thought and a cell in each turn, in symbols; a short imitation, then GRPO."""
