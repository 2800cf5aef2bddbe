"""COMBO: MOPO whose doubt is not estimated: values of modelled steps are lowered, real ones raised.

Left out: the log-sum-exp over sampled actions in the lowered values, and what `mopo` leaves out.

Paper: Yu et al. 2021, "COMBO: Conservative Offline Model-Based Policy Optimization".
Idea: an ensemble's disagreement is a poor measure of a model's error; CQL's term, on the model's
own rollouts, is a lower bound of the value without one.
Formula: `b (E_model Q - E_data Q) + (Q - y)^2 / 2`, on a mixture of modelled and real steps.
Claim: on a par with or above earlier model-free and model-based offline methods.
"""

from __future__ import annotations

from jaxrl.control.algorithms.representations.mopo import Config, programs

__all__ = ["config", "programs"]


def config() -> Config:
    """MOPO's, with the one penalty in place of the other.

    The paper's b is 0.5 to 5, for rewards some ten times as large: it moves each step's value.
    """
    return Config(penalty=0.0, conservative=0.1)
