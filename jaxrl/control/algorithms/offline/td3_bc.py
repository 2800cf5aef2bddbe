"""TD3+BC: TD3 offline, with one term that holds the actor near the data's actions.

Paper: Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning".
Idea: the actor's loss is its value, scaled by the batch's mean of |Q|, and its squared distance
from the action in the data; states are standardised by the moments of the data.
Formula: `pi: -lambda Q_1(s, pi(s)) + mean_A (pi(s) - a)^2`, `lambda = alpha / mean |Q|`; here
divided by alpha, so `actor_penalty` is `1 / alpha`.
Claim: as good as far more complex offline methods, with alpha 2.5 everywhere.
"""

from __future__ import annotations

from jaxrl.control.algorithms.online.td3 import Config, make
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, offline


def config() -> Config:
    """The paper's alpha; small networks."""
    return Config(steps=2000, actor_penalty=0.4, distance="mean", standardise=True)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline; a step is `delay` updates of the critics."""
    return (offline(make(env.space, config), steps=config.steps),)
