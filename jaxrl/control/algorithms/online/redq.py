"""REDQ: many updates a step, kept honest by many critics of which a random two give the target.

Paper: Chen et al. 2021, "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model".
Idea: SAC with N critics; each target takes the least of a random subset of M, the actor the mean of
all; bias stays small although every step is followed by G updates of the critics.
Formula: `y = r + gamma (min_(i in subset M of N) Q_i(s', a') - alpha log pi(a' | s'))`.
Claim: the sample efficiency of model-based methods without a model (N 10, M 2, G 20).
"""

from __future__ import annotations

from jaxrl.control.algorithms.online.sac import PICTURES, Config, programs

__all__ = ["PICTURES", "config", "programs"]


def config() -> Config:
    """Half the paper's N and a fifth of its G, for small tasks."""
    return Config(members=5, subset=2, critic_updates=4, target_entropy=-0.5)
