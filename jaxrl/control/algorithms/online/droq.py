"""DroQ: what REDQ does with many critics, done by dropout and LayerNorm in two.

Paper: Hiraoka et al. 2021, "Dropout Q-Functions for Doubly Efficient Reinforcement Learning".
Idea: dropout, before a LayerNorm, makes each pass another member of an ensemble.
Formula: SAC's, with `Q_i` under a fresh dropout mask in target and prediction; `pi: alpha log pi -
mean_i Q_i`, under another.
Claim: REDQ's sample efficiency at about the computation of SAC (dropout 0.01, G 20).
"""

from __future__ import annotations

from jaxrl.control.algorithms.online.sac import PICTURES, Config, programs

__all__ = ["PICTURES", "config", "programs"]


def config() -> Config:
    """A fifth of the paper's G, for small tasks."""
    return Config(norm=True, dropout=0.01, critic_updates=4, target_entropy=-0.5)
