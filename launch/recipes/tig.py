"""TiG without demonstrations and thoughts: a text game learned by GRPO on the game's own reward.

Paper: Liao et al. 2025, "Think in Games: Learning to Reason in Games via Reinforcement Learning
with Large Language Models"
Idea: decisions in a game are language: its state is given as text, the model reasons and says what
it does, and the game rewards it. So a language model learns to act as a player does, and can say
why; conventional RL learns values of features.
Formula: GRPO with the environment's reward; in the paper 1 where an action is the one that players
took
Claim: as good as conventional RL at a small part of its data, with explanations.
Reading: the paper rewards single decisions in a large game by what humans did next; here matches of
tic-tac-toe are played to the end against an opponent that moves at random, and the reward is 1 for
a win and 0.5 for a draw. The policy begins from nothing, so it has no thoughts and no supervised
start. A match has one advantage for all its moves. `docs/runs/agents/games.py` trains DQN on the
cells of the same game for as many moves.
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes import retrieval
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """GRPO on matches in symbols, one cell a turn."""
    base = retrieval.config()
    task = {"game": "tic_tac_toe", "mistakes": 0, "instructions": False, "symbols": True}
    return dataclasses.replace(
        base,
        recipe="tig",
        task="board_game",
        task_args=task,
        rollout=dataclasses.replace(
            base.rollout, prompts=16, max_prompt_tokens=12, max_new_tokens=64
        ),
        objective=ObjectiveConfig(entropy_coef=0.05),
        packing=PackingConfig(micro_batch_tokens=4096, row_length=96),
    )
