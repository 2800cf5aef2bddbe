"""DQN on the features of a game, for as many moves as a run on its text has made; and the returns
that scores of logged games are relative to."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl.config import Config
from jaxrl.control import train
from jaxrl.control.algorithms.online import dqn
from jaxrl.control.environment import Environment
from jaxrl.control.environments import text_grid, tic_tac_toe
from jaxrl.data import tasks
from jaxrl.data.environments import Turn
from jaxrl.data.environments.play import Player
from jaxrl.data.offline.statistics import Bounds
from jaxrl.launch.settings import configs
from jaxrl.record import metrics
from jaxrl.run import evaluate

ARM = ("dqn",)
"""Stands in the place of an arm's arguments; its experiment's first arm is measured before it."""
EPISODES = 1024
LEAST = {"lmrl_gym": 0.0, "lmrl_gym_again": 0.0, "lmrl_gym_maze": -1.0}
"""The least that an episode can earn, in experiments whose returns are scored."""


def measure(run: Path, config: Config, seed: int) -> dict[str, object]:
    """Train, and give the figures of the greedy policy as `experiment.measure` does.

    `moves` are those of the run, warm-up included. `sooner` is the share of them after which what
    the run sampled first earned as much as the greedy policy here at its end; 1: not before.

    Args:
      run: of `tig` or `tig_grid`, with the same seed.
      config: of the run.
      seed: of the learner, of its games and of those that are evaluated.
    """
    matches = config.rollout.prompts * config.rollout.group_size
    rows = metrics.read(run)
    made = np.cumsum([row["episode/turns"] * matches for row in rows])
    moves, warmup = round(made[-1]), dqn.config().warmup
    learner = dataclasses.replace(
        dqn.config(), worlds=4, updates=2, hidden=(128, 128), epsilon_updates=4000,
        steps=max(1, moves - warmup),
    )  # fmt: skip
    env, held_out = environments(config, seed)
    before = time.process_time()
    programs = dqn.programs(env, learner)
    points = list(train.train(programs, held_out, seeds=[seed], episodes=EPISODES))
    returns = [float(point.returns[0]) for point in points]
    enough = [row["reward/mean"] >= returns[-1] for row in rows]
    return {
        "seed": seed,
        "eval": {"before": {"reward": returns[0]}, "after": {"reward": returns[-1]}},
        "cpu_seconds": round(time.process_time() - before),
        "tokens": 0,
        "moves": moves,
        "sooner": float(made[enough.index(True)] / moves) if any(enough) else 1.0,
        "curve": returns,
    }


def environments(config: Config, seed: int) -> tuple[Environment, Environment]:
    """The game of a run as features, to learn from and to be evaluated in.

    Grids are the train problems of the run's seed, and those that the run is evaluated on. Matches
    of tic-tac-toe differ by chance alone.
    """
    if config.task == "board_game":
        return tic_tac_toe.make(), tic_tac_toe.make()
    held_out = {"seed": 0, "grids": config.eval.problems}
    return (
        text_grid.make("train", seed=seed, **config.task_args),
        text_grid.make("test", **held_out, **config.task_args),
    )


def best(config: Config) -> float:
    """The mean return of the task's own solutions on the problems that a run is evaluated on."""
    task, total = tasks.get(config.task, **config.task_args), 0.0
    held_out = evaluate.problems(task, config.eval.split, config.eval.problems)
    for episode, problem in enumerate(held_out):
        player, actions = Player(task), task.turns.gold(problem, 0)
        said = [player.answer(Turn(episode, problem, 0))]
        for n in range(len(actions)):
            said.append(player.answer(Turn(episode, problem, 0, actions[: n + 1], tuple(said))))
            total += said[-1].reward or 0.0
    return total / len(held_out)


def bounds(name: str, argv: Sequence[str]) -> Bounds:
    """The least return of an experiment of `LEAST`, and the best on held-out problems.

    Args:
      name: of the experiment.
      argv: arguments of one of its arms.
    """
    return Bounds(LEAST[name], best(configs.resolve(list(argv))[0]))
