"""Published speeds of asynchronous training beside what `jaxrl.launch.simulate` makes of their
set-ups: `python -m jaxrl.launch.published` prints the table of docs/asynchronous.md.

Only figures that were looked up are here, each with what else had to be assumed. The source is
verl's documentation of its fully asynchronous trainer (docs/advance/fully_async.md of
verl-project/verl at commit 1947b75): Qwen2.5-Math-7B on H20, DAPO, 512 prompts of 16 answers a
step, answers of at most 28k tokens. It gives the seconds of generation, of old log-probabilities
and of updates in a synchronous step, and those of updates in an asynchronous one, whose devices are
halved between sampling and training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxrl.launch.costs import Costs
from jaxrl.launch.simulate import Workload, simulate
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.work import SamplerConfig

PROMPTS, BATCH, LONGEST = 512, 32, 28 * 1024
"""Prompts a step, prompts that the trainer takes at a time, most tokens of an answer."""
MEDIAN, SIGMA = 4300.0, 0.95
"""Of the longest answer to a prompt, in tokens, as lognormal: fitted by hand, see `TABLE`."""
SLOWER = 1.15
"""Factor by which decoding on half of the devices takes longer: fitted by hand, see `TABLE`."""
_PERIODS, _FIRST = 5, 2
_CHUNK = 512


class Setup(NamedTuple):
    """Of an asynchronous run; seconds are published."""

    generation: float
    """Of a synchronous step on twice the devices: of its longest answer, at the limit."""
    update: float
    """Of an asynchronous step."""
    staleness: float = 0.5
    """Share of a step's prompts that may be sampled with older weights."""


class Published(NamedTuple):
    """A figure, and how to come to it."""

    what: str
    figure: float
    setup: Setup
    synchronous: float | None = None
    """Sum of the parts of a synchronous step, where the figure is a ratio to it."""
    fitted: str = "nothing of this row"


def step_seconds(setup: Setup) -> float:
    """Mean seconds of a simulated step of 512 prompts.

    A decoding step is bound by latency. A step trains on 16 batches of 32 prompts, which are
    those that finish first; new weights are sent after the last of them, and what is in progress
    continues under them.
    """
    rng = np.random.default_rng(0)
    longest = np.minimum(rng.lognormal(np.log(MEDIAN), SIGMA, 64 * PROMPTS), LONGEST).astype(int)
    updates = PROMPTS // BATCH
    bound = round(updates * (1.0 + setup.staleness)) - 1
    limits = Limits(BATCH, bound, order="finished", steps=_PERIODS * updates)
    costs = Costs(SLOWER * setup.generation / LONGEST, 0.0, setup.update / updates, 0.0)
    work = Workload(lambda n: longest[[n % len(longest)]], SamplerConfig(4 * PROMPTS, chunk=_CHUNK))
    out = simulate(limits, costs, work, overlap=True, every=updates)
    ends = [span.end for span in out.spans if span.who == "train"]
    return (ends[-1] - ends[_FIRST * updates - 1]) / (_PERIODS - _FIRST)


_FIT = "median and spread of the longest answers"
TABLE = (
    Published(
        "seconds a step, 128 devices, staleness 0", 231.34, Setup(177.85, 98.77, 0.0),
        fitted="decoding on half of the devices: 1.15 times as long",
    ),
    Published("the same, staleness 0.1", 171.30, Setup(177.85, 109.12, 0.1), fitted=_FIT),
    Published("the same, staleness 0.3", 146.11, Setup(177.85, 103.22, 0.3)),
    Published("the same, staleness 0.5", 150.63, Setup(177.85, 113.16)),
    Published("speed, 128 devices", 356.30 / 150.63, Setup(177.85, 113.16), 345.58),
    Published("speed, 64 devices", 365.28 / 189.26, Setup(150.72, 156.98), 354.39),
    Published("speed, 32 devices", 790.10 / 294.77, Setup(357.41, 313.81), 734.92),
)  # fmt: skip


def table() -> str:
    """Published and simulated figures, in Markdown."""
    rows = [
        "| verl, fully asynchronous | published | simulated | difference | fitted |",
        "|---|---|---|---|---|",
    ]
    for row in TABLE:
        seconds = step_seconds(row.setup)
        made = seconds if row.synchronous is None else row.synchronous / seconds
        shown = "{:.0f}" if row.synchronous is None else "{:.2f}x"
        off = made / row.figure - 1
        rows.append(
            f"| {row.what} | {shown.format(row.figure)} | {shown.format(made)} | {off:+.0%} | "
            f"{row.fitted} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
