"""EDAC: pessimism offline by the least of many critics, made to differ; with no such term, SAC-N.

Paper: An et al. 2021, "Uncertainty-Based Offline RL with Diversified Q-Ensemble".
Idea: the minimum over N critics falls where they disagree, which is outside the data; pushing their
gradients of the action apart lets far fewer critics disagree as much.
Formula: SAC's with `min` over all N, and `diversity sum_(i != j) <g_i, g_j> / (N - 1)` on the
critics; SAC-N has diversity 0.
Claim: SAC-N alone beats earlier offline methods with up to 500 critics; EDAC needs 10 to 50.
"""

from __future__ import annotations

from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, offline
from launch.control.sac import Config, make


def config() -> Config:
    """Ten critics."""
    return Config(steps=3000, members=10, subset=10, diversity=1.0)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
