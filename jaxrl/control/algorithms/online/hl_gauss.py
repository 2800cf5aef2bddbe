"""HL-Gauss DQN: value regression turned into classification by blurring the target over bins.

Paper: Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification for
Scalable Deep RL".
Idea: the scalar target becomes a histogram of a Gaussian around it; the loss is a cross-entropy and
the value the histogram's mean.
Formula: `-sum_i p_i log softmax(z)_i`, `p_i` the Gaussian's mass in bin i.
Claim: above regression by squares, the more so the larger the network.
"""

from __future__ import annotations

from jaxrl.control.algorithms.online.dqn import DISCRETE, PICTURES, Config, programs

__all__ = ["DISCRETE", "PICTURES", "config", "programs"]


def config() -> Config:
    """51 bins."""
    return Config(critic="hl_gauss")
