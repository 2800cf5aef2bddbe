"""RLPD: plain online SAC, half of whose every minibatch is offline data.

Paper: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data".
Idea: no pre-training and no constraint; symmetric sampling, LayerNorm in the critics against
over-estimation, a large ensemble, many updates a step.
Formula: REDQ's, on minibatches of 50% data and 50% replay, one for each update of the critics.
Claim: up to 2.5 times the earlier best of online RL with offline data, on 21 tasks.
"""

from __future__ import annotations

from jaxrl.control.algorithms.online import sac
from jaxrl.control.algorithms.online.sac import PICTURES, Config
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program

__all__ = ["PICTURES", "config", "programs"]


def config() -> Config:
    """Half the paper's ensemble and a fifth of its updates, for small tasks."""
    return Config(members=5, subset=2, critic_updates=4, norm=True, target_entropy=-0.5)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, with the data in half of each minibatch."""
    return sac.programs(env, config, prior=0.5)
