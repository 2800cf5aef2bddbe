"""DQN on the cells of tic-tac-toe, for as many moves as a run of `tig` has made."""

import dataclasses
import time
from pathlib import Path

from jaxrl.control import train
from jaxrl.control.environments import tic_tac_toe
from jaxrl.launch.control import dqn
from jaxrl.record import metrics

ARM = ("dqn",)
"""Stands in the place of an arm's arguments; its experiment's first arm is measured before it."""
EPISODES = 1024


def measure(run: Path, matches: int, seed: int) -> dict[str, object]:
    """Train, and give the figures of the greedy policy as `experiment.measure` does.

    Args:
      run: of `tig`, with the same seed.
      matches: of each of its steps.
      seed: of the learner, of its matches and of those that are evaluated.
    """
    moves = round(sum(row["episode/turns"] for row in metrics.read(run)) * matches)
    config = dataclasses.replace(
        dqn.config(), steps=moves, worlds=4, updates=2, hidden=(128, 128), epsilon_updates=4000
    )
    env = tic_tac_toe.make()
    before = time.process_time()
    points = list(train.train(dqn.programs(env, config), env, seeds=[seed], episodes=EPISODES))
    returns = [float(point.returns[0]) for point in points]
    return {
        "seed": seed,
        "eval": {"before": {"reward": returns[0]}, "after": {"reward": returns[-1]}},
        "cpu_seconds": round(time.process_time() - before),
        "tokens": 0,
        "moves": moves,
        "curve": returns,
    }
