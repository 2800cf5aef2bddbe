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

from jaxrl.control.environment import Environment
from jaxrl.control.program import Program
from launch.control import iql
from launch.control.iql import Config
from losses import value


def config() -> Config:
    """`expectile` is the weight w: both say how closely the best actions are followed."""
    return Config(expectile=0.8)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """IQL's phases, with chi-square."""
    fit = functools.partial(value.dual_value_loss, kind="chi2", weight=config.expectile)
    return iql.programs(env, config, fit)
