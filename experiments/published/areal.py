"""AReaL: blog/AReaL_v0_3.md of areal-project/AReaL, commit 4aef98d, with the numbers in its figures
5 (interruption) and 7 (staleness).

Published: R1-Distill-Qwen on H800; 512 prompts of 16 answers a step, at most 8,192 tokens each;
1.5B on 128 devices and 7B on 192, 1,000 steps each; hours of synchronous and asynchronous runs;
tokens trained on in a second, by staleness, for 1.5B; tokens a second with and without
interruption, on 32 devices. Three quarters of the devices sample (commit 820ca49, `benchmark`).
Both runs of 1.5B and the figure by staleness give 19.0 million tokens a step, which is a mean
answer of 2,319 tokens; a further figure (scaling_trend_vs_verl.png) gives only about 100,000 tokens
a second on 128 devices, so only ratios are compared. Hours of 14B on code are from notes on the
paper's first version (content/papers/infra/paper-areal.md of Tammytcl/laoliu-interview-notes).

Assumed: a decoding step is bound by latency, and takes as long at every staleness; lengths are
lognormal, the same for each model; staleness 0 takes turns on the same split of devices; a decoding
step of a larger model takes longer by the reading of the additional weights (2 bytes each, at 3.35
TB/s); on 32 devices training is not the limit, and 8,192 sequences are sampled at once.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from experiments.published.figures import Row, lengths, seconds_a_step
from jaxrl.launch.planning.costs import Costs
from jaxrl.launch.planning.simulate import Workload, simulate
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.work import SamplerConfig

SEQUENCES, ANSWERS, LIMIT = 512 * 16, 16, 8192
"""Answers a step, answers to a prompt, most tokens of an answer."""
THROUGHPUT = {
    0: 128.7e3,
    1: 269.3e3,
    2: 356.6e3,
    4: 356.6e3,
    8: 371.7e3,
    16: 382.4e3,
    None: 396.8e3,
}
"""Tokens trained on in a second, by staleness; None: unbounded."""
INTERRUPTED = {"1.5B": (231e3, 207e3), "7B": (130e3, 111e3)}
"""Tokens sampled in a second with interruption and without."""
BILLIONS = {"1.5B": 1.78, "7B": 7.62, "14B": 14.77}
"""Parameters."""
_SYSTEM = "AReaL"
_STALENESS = 4  # of the published runs
_PROMPTS = 16  # of a simulated step; the longest answer of a step is at the limit anyway
_AT_ONCE = 32  # sequences that stand for 8,192


class Run(NamedTuple):
    """Two runs of a model, with the same number of steps."""

    steps: int
    synchronous: float
    """Hours."""
    asynchronous: float


RUNS = {"1.5B": Run(1000, 41.0, 14.8), "7B": Run(1000, 57.7, 25.4), "14B": Run(320, 48.8, 21.9)}


class Fit(NamedTuple):
    """Of 1.5B, in seconds."""

    decode: float
    """Of a decoding step."""
    update: float
    """Of a training step."""


def tokens_a_step() -> float:
    """Tokens that a step of 1.5B trains on."""
    run = RUNS["1.5B"]
    return THROUGHPUT[0] * run.synchronous * 3600 / run.steps


def fitted() -> Fit:
    """The update from staleness 4, at which it is the limit; what remains at staleness 0 is the
    longest answer."""
    update = tokens_a_step() / THROUGHPUT[_STALENESS]
    return Fit((tokens_a_step() / THROUGHPUT[0] - update) / LIMIT, update)


def decode(model: str) -> float:
    """Seconds of a decoding step of a model."""
    return fitted().decode + (BILLIONS[model] - BILLIONS["1.5B"]) * 2e9 / 3.35e12


def step_seconds(staleness: int | None, decode: float, update: float) -> float:
    """Mean seconds of a simulated step; a group is as long as its longest answer."""
    drawn = lengths((64 * _PROMPTS, ANSWERS), tokens_a_step() / SEQUENCES, LIMIT).max(1)
    first = 2 if staleness is None else staleness + 2
    limits = Limits(
        _PROMPTS,
        staleness,
        in_flight=0 if staleness is not None else 8 * _PROMPTS,
        order="finished" if staleness != 0 else "admitted",
        steps=first + 8,
    )
    sampler = SamplerConfig(64 * _PROMPTS, chunk=256)
    work = Workload(lambda n: drawn[[n % len(drawn)]], sampler)
    out = simulate(limits, Costs(decode, 0.0, update, 0.0), work, overlap=staleness != 0)
    return seconds_a_step(out, first)


def speed(model: str) -> float:
    """Simulated speed against the synchronous run, whose hours give the seconds of an update."""
    run = RUNS[model]
    synchronous = run.synchronous * 3600 / run.steps
    one = decode(model)
    return synchronous / step_seconds(_STALENESS, one, synchronous - one * LIMIT)


def gain(model: str, trained: int) -> float:
    """Simulated speed of sampling with interruption, against without.

    Args:
      model: name.
      trained: sequences between two weights, in units of which `_AT_ONCE` are sampled at once.
    """
    drawn = lengths((4096,), tokens_a_step() / SEQUENCES, LIMIT)
    one = decode(model)
    slot = max(0.0, SEQUENCES / INTERRUPTED[model][0] - one) / _AT_ONCE
    limits = Limits(trained, None, in_flight=trained + 2 * _AT_ONCE, order="finished", steps=5)
    work = Workload(lambda n: drawn[[n % len(drawn)]], SamplerConfig(_AT_ONCE, chunk=256))
    costs = Costs(one, slot, 1e-3, 0.0)
    with_it, without = (
        seconds_a_step(simulate(limits, costs, work, overlap=True, drain=drain), 1)
        for drain in (False, True)
    )
    return without / with_it


@functools.cache
def between_weights() -> int:
    """Sequences between two weights, in the unit of `gain`, that fit the gain of 1.5B best."""
    wanted = INTERRUPTED["1.5B"][0] / INTERRUPTED["1.5B"][1]
    candidates = [round(_AT_ONCE * 2 ** (n / 2)) for n in range(9)]
    return min(candidates, key=lambda n: abs(gain("1.5B", n) - wanted))


def rows() -> list[Row]:
    """Tokens by staleness, speed by model, and the gain of interruption."""
    fit, tokens = fitted(), tokens_a_step() / 1000.0
    said = {
        0: f"a decoding step takes {fit.decode * 1000:.1f} ms",
        _STALENESS: f"an update takes {fit.update:.1f} s",
    }
    found = [
        Row(
            _SYSTEM,
            f"1.5B, thousand tokens a second, staleness {'unbounded' if s is None else s}",
            published / 1000.0,
            tokens / step_seconds(s, *fit),
            "{:.0f}",
            said.get(s, "") if s is not None else "",
        )
        for s, published in THROUGHPUT.items()
    ]
    for model, run in RUNS.items():
        what = f"{model}, speed{' on code' if model == '14B' else ''}"
        why = f"an update takes {fit.update:.1f} s" if model == "1.5B" else ""
        published = run.synchronous / run.asynchronous
        found.append(Row(_SYSTEM, what, published, speed(model), "{:.2f}x", why))
    count = between_weights()
    for model, (with_it, without) in INTERRUPTED.items():
        what = f"{model}, sampling with interruption against without"
        steps = count / _AT_ONCE
        why = f"new weights every {steps:.1f} x 8,192 sequences" if model == "1.5B" else ""
        row = Row(_SYSTEM, what, with_it / without, gain(model, count), "{:.2f}x", why)
        found.append(row)
    return found
