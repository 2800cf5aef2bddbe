"""verl's fully asynchronous trainer: docs/advance/fully_async.md of verl-project/verl, commit
1947b75.

Published: Qwen2.5-Math-7B on H20, DAPO, 512 prompts of 16 answers a step, answers of at most 28k
tokens; 16 batches of 32 prompts a step, and new weights after the last; seconds of generation, of
old log-probabilities and of updates in a synchronous step, and those of updates in an asynchronous
one, whose devices are halved between sampling and training.

Assumed: a decoding step is bound by latency; the longest of 16 answers is lognormal, and one of
each step is at the limit; a quarter of a step is simulated, with a quarter of each batch. Fitted,
on 128 devices: by how much longer decoding takes on half of the devices (to staleness 0), and the
median of the longest answers (to staleness 0.5).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from experiments.published.figures import Row, seconds_a_step
from jaxrl.launch.planning.costs import Costs
from jaxrl.launch.planning.simulate import Workload, simulate
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.work import SamplerConfig

LONGEST = 28 * 1024
"""Most tokens of an answer."""
SPREAD = 0.95
"""Standard deviation of the logarithm of the longest answers to the prompts: assumed."""
_PROMPTS, _UPDATES = 128, 16
_PERIODS, _FIRST = 5, 2


class Setup(NamedTuple):
    """Of an asynchronous run; seconds are published."""

    generation: float
    """Of a synchronous step on twice the devices: of its longest answer, at the limit."""
    update: float
    """Of an asynchronous step."""
    staleness: float
    """Share of a step's prompts that may be sampled with older weights."""


class Fit(NamedTuple):
    """What was not published."""

    slower: float
    """Factor by which decoding takes longer on half of the devices."""
    median: float
    """Of the longest answer to a prompt, in tokens."""


STALE = {
    0.0: (231.34, Setup(177.85, 98.77, 0.0)),
    0.1: (171.30, Setup(177.85, 109.12, 0.1)),
    0.3: (146.11, Setup(177.85, 103.22, 0.3)),
    0.5: (150.63, Setup(177.85, 113.16, 0.5)),
}
"""Seconds of an asynchronous step on 128 devices, by staleness."""
SPEED = {
    128: (356.30 / 150.63, 177.85 + 53.92 + 113.81, Setup(177.85, 113.16, 0.5)),
    64: (365.28 / 189.26, 150.72 + 70.26 + 133.41, Setup(150.72, 156.98, 0.5)),
    32: (790.10 / 294.77, 357.41 + 107.71 + 269.80, Setup(357.41, 313.81, 0.5)),
}
"""Speed against synchronous steps, and the sum of the parts of one, by devices."""


def step_seconds(setup: Setup, fit: Fit) -> float:
    """Mean seconds of a simulated step.

    A step trains on the batches that finish first; what is in progress when new weights are sent
    continues under them.
    """
    normal = np.random.default_rng(0).standard_normal(64 * _PROMPTS)
    longest = np.minimum(fit.median * np.exp(SPREAD * normal), LONGEST).astype(int)
    longest[::_PROMPTS] = LONGEST
    bound = round(_UPDATES * (1.0 + setup.staleness)) - 1
    size = _PROMPTS // _UPDATES
    limits = Limits(size, bound, order="finished", steps=_PERIODS * _UPDATES)
    seconds = fit.slower * setup.generation / LONGEST
    costs = Costs(seconds, 0.0, setup.update / _UPDATES, 0.0)
    sampler = SamplerConfig(4 * _PROMPTS, chunk=512)
    work = Workload(lambda n: longest[[n % len(longest)]], sampler)
    out = simulate(limits, costs, work, overlap=True, every=_UPDATES)
    return _UPDATES * seconds_a_step(out, _FIRST * _UPDATES)


@functools.cache
def fitted() -> Fit:
    """Each of the two inputs solved for a published figure; the first does not depend on the
    second, as the longest answer of a step is at the limit."""

    def off(staleness: float, fit: Fit) -> float:
        seconds, setup = STALE[staleness]
        return step_seconds(setup, fit) - seconds

    slower = brentq(lambda x: off(0.0, Fit(x, 2500.0)), 1.0, 1.6, xtol=1e-3)
    median = brentq(lambda x: off(0.5, Fit(slower, x)), 1000.0, 6000.0, xtol=10.0)
    return Fit(float(slower), float(median))


def rows() -> list[Row]:
    """Seconds by staleness on 128 devices, and speed by devices."""
    fit, system = fitted(), "verl, fully asynchronous"
    said = {
        0.0: f"decoding on half of the devices takes {fit.slower:.2f} times as long",
        0.5: f"median of the longest answers: {fit.median:.0f} tokens",
    }
    found = [
        Row(
            system,
            f"seconds a step, 128 devices, staleness {staleness:g}",
            seconds,
            step_seconds(setup, fit),
            "{:.0f}",
            said.get(staleness, ""),
        )
        for staleness, (seconds, setup) in STALE.items()
    ]
    for devices, (speed, synchronous, setup) in SPEED.items():
        made = synchronous / step_seconds(setup, fit)
        why = "the same, of which this is the speed" if devices == 128 else ""
        found.append(Row(system, f"speed, {devices} devices", speed, made, "{:.2f}x", why))
    return found
