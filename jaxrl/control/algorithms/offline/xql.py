"""XQL: IQL with Gumbel regression, whose value is the soft maximum of Q over the data.

Paper: Garg et al. 2023, "Extreme Q-Learning: MaxEnt RL without Entropy".
Idea: the errors of a maximum follow a Gumbel distribution; its likelihood as a loss fits
`T log E exp(Q / T)` directly, with no policy and no sample outside the data.
Formula: `V: exp(z) - z - 1`, `z = (Q - V) / T` (clipped); the rest is IQL's.
Claim: above IQL on D4RL, though known to be unstable at a small temperature.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import iql
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program
from jaxrl.losses import control

DISCRETE = None
"""Either kind of action."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters; IQL's, without the expectile."""

    steps: int = 3000
    online_steps: int = 0
    """Steps of the environment after the offline phase, with the data kept in half of a batch."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    temperature: float = 0.3
    """Of the value and of the advantage weights."""
    rescale: bool = True
    """Whether the batch's loss is divided by its largest exponential, as in the authors' code."""
    members: int = 2
    """Critics."""


def config() -> Config:
    """One temperature for value and policy, as in the paper's derivation; IQL's."""
    return Config()


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """IQL's phases, with Gumbel regression."""
    fit = functools.partial(
        control.gumbel_loss, temperature=config.temperature, rescale=config.rescale
    )
    return iql.programs(env, shared(iql.Config, config), fit)
