"""Systems with one published figure for each input that is missing: nothing of them is predicted.

Seconds are in decoding steps. Half of the devices sample, if no split is published, and sampling
and training take equally long. Lengths are lognormal.

- AsyncFlow (abstract of arXiv 2507.01663): 1.59 times the throughput on average. One step of
  staleness. Fitted: the spread of lengths.
- PipelineRL (notes on the first version of arXiv 2509.19128, content/papers/infra/
  paper-pipelinerl.md of Tammytcl/laoliu-interview-notes): about twice as fast. 128 H100, of which
  48 sample 64 sequences each; 1,024 answers an update; compared here with 8 updates a batch, where
  each device samples 64 sequences too. Fitted: the spread of lengths.
- LlamaRL (abstract of arXiv 2505.24034 for 10.7x; notes on its second version, retrieved by
  several repositories, for 2.52x and 3.98x). A schedule gives a part of them; parallelism of its
  own for each, 8-bit sampling and faster transfer of weights, which the paper names, are the rest.
  Fitted: the factor by which they make both parts faster.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from experiments.published.figures import SPREAD, Row, lengths, seconds_a_step
from jaxrl.launch.planning.costs import Costs
from jaxrl.launch.planning.simulate import Workload, simulate
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.work import SamplerConfig

LLAMA = {"8B": 2.52, "70B": 3.98, "405B": 10.7}
"""Published speeds."""
_MEAN, _LIMIT = 1000.0, 100_000
_SEQUENCES = 64  # of a simulated batch


class Setup(NamedTuple):
    """Taking turns on all devices, against training beside sampling."""

    training: float = 0.5
    """Share of the devices that train."""
    updates: int = 1
    """On a batch, where they take turns."""
    at_once: float = 1.0
    """Sequences that are sampled side by side with training, in updates' worth."""
    staleness: int | None = 1


ASYNCFLOW = Setup()
PIPELINE = Setup(80 / 128, updates=8, at_once=48 * 64 / 1024, staleness=None)


def ratio(setup: Setup, spread: float) -> float:
    """Simulated speed of training beside sampling against taking turns."""
    drawn = lengths((64 * _SEQUENCES,), _MEAN, _LIMIT, spread)
    one = _SEQUENCES // setup.updates  # sequences of an update
    slots = round(one * setup.at_once)
    update = _MEAN / setup.at_once  # as long as sampling takes

    def seconds(limits: Limits, slots: int, update: float, overlap: bool) -> float:
        work = Workload(lambda n: drawn[[n % len(drawn)]], SamplerConfig(slots, chunk=200))
        out = simulate(limits, Costs(1.0, 0.0, update, 0.0), work, overlap=overlap)
        return seconds_a_step(out, 4)

    steps = 24
    turns = Limits(_SEQUENCES, steps=steps)
    whole = seconds(turns, _SEQUENCES, setup.updates * setup.training * update, overlap=False)
    if setup.staleness is None:
        beside = Limits(one, None, one + slots, "finished", steps * setup.updates)
    else:
        beside = Limits(one, setup.staleness, order="finished", steps=steps)
    return whole / (setup.updates * seconds(beside, slots, update, overlap=True))


@functools.cache
def fitted(setup: Setup, wanted: float) -> float:
    """The spread of lengths that gives a speed, from 0.05 to 1.5; the nearer end if none does."""
    low, high = 0.05, 1.5
    if ratio(setup, low) >= wanted or ratio(setup, high) <= wanted:
        return low if ratio(setup, low) >= wanted else high
    return float(brentq(lambda spread: ratio(setup, spread) - wanted, low, high, xtol=0.01))


def longest(setup: Setup, spread: float) -> float:
    """Mean over batches of the longest answer, in means."""
    drawn = lengths((64, _SEQUENCES), _MEAN, _LIMIT, spread)
    return float(np.mean(drawn.max(1)) / _MEAN)


def rows() -> list[Row]:
    """A row for each published speed."""
    found = []
    for system, wanted, setup in (("AsyncFlow", 1.59, ASYNCFLOW), ("PipelineRL", 2.0, PIPELINE)):
        spread = fitted(setup, wanted)
        why = f"longest answer of a batch: {longest(setup, spread):.1f} means"
        made = ratio(setup, spread)
        found.append(Row(system, "speed; nothing is predicted", wanted, made, "{:.2f}x", why))
    schedule = ratio(ASYNCFLOW, SPREAD)
    for model, wanted in LLAMA.items():
        factor = wanted / schedule
        why = f"both parts {factor:.2f} times as fast, beside {schedule:.2f}x of the schedule"
        what = f"{model}, speed; nothing is predicted"
        found.append(Row("LlamaRL", what, wanted, factor * schedule, "{:.2f}x", why))
    return found
