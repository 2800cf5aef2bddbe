"""C51: the whole distribution of the return on fixed atoms, by projection and cross-entropy.

Paper: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning".
Idea: the Bellman operator moves and shrinks the atoms of the next state's distribution; the result
is projected back on the atoms and learnt as a classification.
Formula: `-sum_i p_i log softmax(z(s, a))_i`, `p` the projection of `r + gamma c_j` at
`softmax(z_target(s', a*))_j`.
Claim: far above DQN on Atari.
"""

from __future__ import annotations

from jaxrl.control.algorithms.online.dqn import DISCRETE, PICTURES, Config, programs

__all__ = ["DISCRETE", "PICTURES", "config", "programs"]


def config() -> Config:
    """51 atoms."""
    return Config(critic="c51")
