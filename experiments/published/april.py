"""APRIL, partial rollouts: README.md and scripts/partial_rollout of RLsys-Foundation/APRIL, commit
a72b585, and the abstract of arXiv 2509.18521.

Published: 8 devices; 32 prompts of 8 answers a step, of at most 16,384 tokens; 64 prompts are under
way; throughput of rollouts by 22.5% greater on average and 44% at most, and about 40% of the tokens
of a step from older weights.

Assumed: lengths are lognormal with a mean of 8,000 tokens, and reading a sequence in progress again
costs nothing. Fitted: how much of a decoding step of 256 sequences does not depend on their number.
"""

from __future__ import annotations

import functools

from scipy.optimize import brentq

from experiments.published.figures import Row, lengths, seconds_a_step
from jaxrl.launch.planning.costs import Costs
from jaxrl.launch.planning.simulate import Outcome, Workload, simulate
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.work import SamplerConfig

PROMPTS, ANSWERS, UNDER_WAY, LIMIT = 32, 8, 64, 16384
"""Prompts a step, answers to each, prompts under way, most tokens of an answer."""
MEAN = 8000.0
"""Tokens of an answer: assumed."""
GAINS = {"mean": 1.225, "greatest": 1.44}
"""Throughput of rollouts against those of whole batches."""
OLDER = 0.40
"""Share of the tokens of a step that older weights sampled."""
_STEPS, _FIRST = 16, 4


def run(fixed: float, partial: bool) -> Outcome:
    """Simulated rollouts.

    Args:
      fixed: share of a decoding step of a whole batch that does not depend on the number of
        sequences.
      partial: twice as many prompts are under way, and the unfinished ones are continued.
    """
    drawn = lengths((512, ANSWERS), MEAN, LIMIT)
    limits = Limits(PROMPTS, steps=_STEPS)
    if partial:
        limits = Limits(PROMPTS, None, in_flight=UNDER_WAY, order="finished", steps=_STEPS)
    costs = Costs(fixed, (1.0 - fixed) / (PROMPTS * ANSWERS), 1e-6, 0.0)
    work = Workload(lambda n: drawn[n % len(drawn)], SamplerConfig(UNDER_WAY * ANSWERS, chunk=512))
    return simulate(limits, costs, work, overlap=False)


def gain(fixed: float) -> float:
    """Simulated throughput of partial rollouts against whole batches."""
    whole, partial = (seconds_a_step(run(fixed, partial), _FIRST) for partial in (False, True))
    return whole / partial


@functools.cache
def fitted(wanted: float) -> float:
    """The fixed share of a decoding step that gives a gain; 1 if none does."""
    if gain(1.0) < wanted:
        return 1.0
    return float(brentq(lambda fixed: gain(fixed) - wanted, 0.0, 1.0, xtol=1e-3))


def rows() -> list[Row]:
    """Gains of throughput, and the tokens of older weights."""
    found = []
    for name, wanted in GAINS.items():
        fixed = fitted(wanted)
        what = f"throughput of rollouts, {name}"
        why = f"{fixed:.0%} of a decoding step is fixed"
        found.append(Row("APRIL", what, wanted, gain(fixed), "{:.3f}x", why))
    older = run(fitted(GAINS["mean"]), partial=True).older
    return [*found, Row("APRIL", "tokens of older weights in a step", OLDER, older, "{:.0%}")]
