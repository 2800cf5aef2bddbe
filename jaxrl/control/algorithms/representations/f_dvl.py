"""f-DVL: IQL whose value comes from the dual of a divergence, with no exponential to blow up.

Paper: Sikchi et al. 2023, "Dual RL: Unification and New Methods for Reinforcement and Imitation
Learning".
Idea: many offline methods are duals of one linear program over visitations with an f-divergence;
XQL is the one of the reversed KL, whose loss is exponential; chi-square's is quadratic.
Formula: `V: (1 - w) V + w f*_p(Q - V)`, f*_p the conjugate over ratios that are not negative; the
rest is IQL's.
Claim: XQL's performance without its instability.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import iql
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program
from jaxrl.losses import value

DISCRETE = None
"""Either kind of action."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters; IQL's, with the weight of the dual in place of the expectile."""

    steps: int = 3000
    online_steps: int = 0
    """Steps of the environment after the offline phase, with the data kept in half of a batch."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    weight: float = 0.8
    """w: how closely V follows the best actions."""
    temperature: float = 0.3
    members: int = 2
    """Critics."""


def config() -> Config:
    """Small networks, and IQL's temperature."""
    return Config()


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """IQL's phases, with chi-square."""
    fit = functools.partial(value.dual_value_loss, kind="chi2", weight=config.weight)
    return iql.programs(env, shared(iql.Config, config), fit)
