"""LMRL-Gym's toolkit in mazes: values of moves from logged walks of mixed quality.

Paper: Abdulhai et al. 2023, "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with
Language Models"
Idea: that of `lmrl_gym`. A maze asks for joining parts of walks: of what a bad walker does, some
moves lead on.
Formula: that of `lmrl_gym`; the return is reported as 0 at the least that there is, 50 at the
mean of the log and 100 at the best, linear between
Claim: of the maze in full view, normalised: BC below filtered BC, below MC returns and ILQL.
Reading: a walker sees its place, the goal's, and the walls next to it, as in the authors' maze in
full view. Theirs is one maze with a fixed goal; here each problem has a grid of 5 by 5 cells with 6
walls, and those of held-out problems are in no log. Each move but the last costs 0.1 and the goal
earns 1, in at most 10 moves; theirs costs 1 and earns 0, in at most 100. Settings and arms are
those of `lmrl_gym`, but filtered BC keeps walks that earn 0.5 or more:
`--objective.policy-args.threshold 0.5`.
Source: abdulhaim/LMRL-Gym@911d726b5b3732b468acada46ca60fa3cbc2f847
LLM_RL/algorithms/ilql/base_interface.py:29
Fidelity: partial: mazes and rewards are ours
"""

from collections.abc import Callable

import numpy as np

from jaxrl.config import CurriculumConfig
from jaxrl.data.tasks.logic.maze import MOVES
from jaxrl.extensions.ilql import IlqlConfig
from jaxrl.extensions.logged import LoggedConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="sft", advantage_args={"baseline": "none", "scale": "none"}),
    extensions={
        "logged": LoggedConfig(
            player="jaxrl.launch.recipes.game_agents.lmrl_gym_maze:player", games=4
        ),
        "ilql": IlqlConfig(
            optimizer=OptimizerConfig(learning_rate=0.002, warmup_steps=5),
            tau=0.8,
            conservatism=0.1,
            rate=0.05,
        ),
    },
    updates_per_batch=4,
    curriculum=CurriculumConfig(choose="jaxrl.data.selection.curriculum:uniform", prompts=256),
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task": "text_grid",
        "task_args": {"size": 5, "walls": 6, "turns": 10, "view": "near", "cost": 0.1},
        "rollout": {"prompts": 16, "max_prompt_tokens": 12, "max_new_tokens": 120},
        "packing": {"row_length": 144},
    },
    base="retrieval",
)
"""ILQL on walks of players, of whom few know the way."""


def player(rng: np.random.Generator, expert: float = 0.25) -> Callable[[str], str]:
    """A player of one walk in a `text_grid` that it sees as `near`.

    With probability `expert` it goes towards the goal, and anywhere where walls are in the way.
    Else it goes up while it can, and then left, wherever the goal is. One move in ten is drawn at
    random.

    Args:
      rng: of the game.
      expert: share of the players that know what to do.
    """
    knows = rng.random() < expert

    def act(observation: str) -> str:
        if rng.random() < 0.1:
            return str(rng.choice(list(MOVES)))
        free = [move for move, cell in zip(MOVES, observation[5:], strict=True) if cell == "."]
        if not knows:
            return "U" if "U" in free else "L"
        y, x, goal_y, goal_x = (int(observation[i]) for i in (0, 1, 3, 4))
        closer = {"U": goal_y < y, "D": goal_y > y, "L": goal_x < x, "R": goal_x > x}
        return str(rng.choice([move for move in free if closer[move]] or free))

    return act
