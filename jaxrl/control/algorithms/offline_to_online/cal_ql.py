"""Cal-QL: CQL that pushes no value below what the behaviour is known to have reached.

Paper: Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning".
Idea: CQL's values are far below any true return, so the first online data look better than they are
and the policy is unlearnt; a floor at the return to go keeps the scale.
Formula: CQL's, with `max(Q(s, a_i), G(s))` in place of `Q(s, a_i)` for the policy's actions at s
and s', and not for the uniform ones.
Claim: one line of code; best fine-tuning on 9 of 11 tasks.
Reading: online steps have the return to go of their episode once it has ended, and no floor before;
the authors' buffer receives an episode at its end.
"""

from __future__ import annotations

from jaxrl.control.algorithms.offline.cql import Config, programs

__all__ = ["config", "programs"]


def config() -> Config:
    """CQL's, calibrated."""
    return Config(calibrate=True)
