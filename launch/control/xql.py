"""XQL: IQL with Gumbel regression, whose value is the soft maximum of Q over the data.

Paper: Garg et al. 2023, "Extreme Q-Learning: MaxEnt RL without Entropy".
Idea: the errors of a maximum follow a Gumbel distribution; its likelihood as a loss fits
`T log E exp(Q / T)` directly, with no policy and no sample outside the data.
Formula: `V: exp(z) - z - 1`, `z = (Q - V) / T` (clipped); the rest is IQL's.
Claim: above IQL on D4RL, though known to be unstable at a small temperature.
"""

from __future__ import annotations

import functools

from jaxrl.control.environment import Environment
from jaxrl.control.program import Program
from launch.control import iql
from launch.control.iql import Config
from losses import control


def config() -> Config:
    """One temperature for value and policy, as in the paper's derivation; IQL's."""
    return Config()


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """IQL's phases; `expectile` is not read."""
    fit = functools.partial(control.gumbel_loss, temperature=config.temperature)
    return iql.programs(env, config, fit)
