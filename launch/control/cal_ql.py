"""Cal-QL: CQL that pushes no value below what the behaviour is known to have reached.

Paper: Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning".
Idea: CQL's values are far below any true return, so the first online data look better than they are
and the policy is unlearnt; a floor at the return to go keeps the scale.
Formula: CQL's, with `max(Q(s, a_i), G(s))` in place of `Q(s, a_i)`.
Claim: one line of code; best fine-tuning on 9 of 11 tasks. Online steps, whose returns are not
known when they are drawn, have no floor here.
"""

from __future__ import annotations

from launch.control.cql import Config, programs

__all__ = ["config", "programs"]


def config() -> Config:
    """CQL's, calibrated."""
    return Config(calibrate=True)
