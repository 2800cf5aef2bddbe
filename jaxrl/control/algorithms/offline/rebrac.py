"""ReBRAC: TD3+BC with the penalty in the critic too, apart from the actor's, and LayerNorm.

Paper: Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning".
Idea: the design choices of recent work, added to the simplest method and ablated one by one; the
target is lowered where the actor leaves the next action of the data.
Formula: `y = r + gamma (min_i Q_i(s', a') - b_2 |a' - a'_data|^2)`, `pi: b_1 |pi - a|^2 -
min_i Q_i / mean |Q|`.
Claim: best of the methods without ensembles, on 51 data sets.
"""

from __future__ import annotations

from jaxrl.control.algorithms.offline.td3_bc import programs
from jaxrl.control.algorithms.online.td3 import Config

__all__ = ["config", "programs"]


def config() -> Config:
    """Penalties from the middle of the paper's range."""
    return Config(steps=2000, actor_penalty=0.1, critic_penalty=0.01, norm_after=True, least=True)
