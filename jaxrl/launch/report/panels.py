"""What a report draws: which metrics share a chart, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple


class Panel(NamedTuple):
    """One chart."""

    name: str
    title: str
    columns: tuple[str, ...]
    """Metrics, as patterns with *."""
    note: str
    """What the reader should know to read it."""
    unit: str = ""
    log: bool = False
    """Logarithmic, for quantities whose order of magnitude is what matters."""


PANELS = (
    Panel(
        "return",
        "Return of the evaluated policy",
        ("return/iqm", "return/seed*"),
        "Each seed, and the mean of the middle half of them. Bars: 95% interval over seeds.",
    ),
    Panel("reward", "Reward", ("reward/mean",), "Mean over the step's scored completions."),
    Panel(
        "pass",
        "Held-out pass@k",
        ("eval/pass@*", "eval/maj@*"),
        "Bars: 95% interval over problems.",
    ),
    Panel(
        "length",
        "Completion length",
        ("completion_length", "completion_length_max"),
        "Mean and longest of the step.",
        "tokens",
    ),
    Panel(
        "truncated",
        "Truncation rate",
        ("truncated",),
        "Share of completions that reach the token budget and are cut off.",
    ),
    Panel("entropy", "Entropy", ("entropy",), "Of the policy, mean over action tokens.", "nats"),
    Panel("kl", "KL to the reference", ("kl", "kl/*"), "Mean over action tokens.", "nats"),
    Panel(
        "clip",
        "Clip fraction",
        ("clipped_high", "clipped_low", "clip_fraction*"),
        "Share of action tokens whose gradient the clip removes.",
    ),
    Panel("ratio", "Importance ratio", ("ratio", "ratio/*"), "Mean over action tokens."),
    Panel(
        "gap",
        "Sampler / trainer gap",
        ("logp_gap", "logp_gap_max"),
        "Absolute difference of the log-probabilities; on-policy it is rounding alone.",
        "nats",
        log=True,
    ),
    Panel(
        "lag",
        "Lag",
        ("lag/*", "staleness*"),
        "Updates between the policy that sampled a token and the one that learns from it.",
        "updates",
    ),
    Panel("gradient", "Gradient norm", ("grad_norm",), "Before clipping."),
    Panel("advantage", "Advantage", ("advantage_abs",), "Mean magnitude."),
    Panel("loss", "Loss", ("loss",), "The objective; its level says little in RL."),
    Panel("domains", "Reward by domain", ("domain/*/reward",), "Means of a mixture's domains."),
    Panel("shares", "Shares of domains", ("domain/*/share",), "Of the prompts trained on."),
    Panel(
        "spread",
        "Zero-advantage groups",
        ("reward/zero_variance_groups",),
        "Share of groups whose rewards are all equal, so that they teach nothing.",
    ),
    Panel("errors", "Scoring errors", ("reward/errors",), "Completions without a score."),
    Panel("deviation", "Reward spread", ("reward/std",), "Standard deviation over the step."),
    Panel("parts", "Reward parts", ("reward/*",), "Means of what the verifier reports."),
    Panel("throughput", "Throughput", ("throughput",), "Sampled tokens, all phases.", "tokens/s"),
    Panel("step-time", "Time of a step", ("time/step",), "The first, which compiles, aside.", "s"),
    Panel("memory", "Memory", ("memory/*", "memory*"), "Peak so far.", "GiB"),
    Panel(
        "compilations",
        "Compilations",
        ("compilations*", "compiles*"),
        "Programs compiled so far; flat after warm-up.",
    ),
    Panel(
        "padding",
        "Packing",
        ("padding_share", "shared_share"),
        "Share of computed tokens that is padding; share saved by computing a prompt once.",
    ),
    Panel("learning-rate", "Learning rate", ("learning_rate",), ""),
)


def choose(columns: Iterable[str]) -> list[tuple[Panel, list[str]]]:
    """The panels that have something to draw, with their columns.

    Whatever no panel names follows, each on its own, but for the phases of `time/`, which are drawn
    as a breakdown.
    """
    names = list(dict.fromkeys(columns))
    chosen: list[tuple[Panel, list[str]]] = []
    for panel in PANELS:
        mine = [n for n in names if any(fnmatchcase(n, pattern) for pattern in panel.columns)]
        names = [n for n in names if n not in mine]
        if mine:
            chosen.append((panel, mine))
    rest = sorted(n for n in names if not n.startswith("time/"))
    return chosen + [(Panel(n.replace("/", "-"), n, (n,), ""), [n]) for n in rest]


def is_main(panel: Panel) -> bool:
    """Whether the panel is one of `PANELS`, not one made for a metric that none of them names."""
    return panel in PANELS
