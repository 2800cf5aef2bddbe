"""APRIL: more rollouts are begun than a step takes, and those it does not wait for continue later.

Paper: Zhou et al. 2025, "APRIL: Active Partial Rollouts in Reinforcement Learning to Tame Long-tail
Generation"
Idea: a few long answers make all devices wait. Begin half as many groups again as a step takes,
train on those that finish first, stop the others where they are, and continue them in the next
step.
Formula: `N' > N` groups in progress; a step takes the first `N` to finish
Claim: rollout throughput rises by 22.5% on average and by 44% at most; final accuracy is 2.1%
higher on average.
Reading: partial rollouts continue under the next weights and are read again; nothing corrects for
the tokens of older ones, as in the paper. Steps prefer short answers, which the metric
`length_bias` shows. The gain is in time, so the lab has no experiment of it:
`tests/benchmarks/predicted.py` measures the time of a step with and without (docs/asynchronous.md).
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes import quickstart


def config() -> Config:
    """The quickstart with half as many groups again in progress."""
    base = quickstart.config()
    rollout = dataclasses.replace(base.rollout, in_flight=1.5)
    return dataclasses.replace(base, recipe="april", rollout=rollout)
