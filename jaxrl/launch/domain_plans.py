"""Weights of the user's domains over a run, for the methods that change them: `Method.by_domain`.

Domains are ordered by their number of rows; the last one, which has the fewest, is the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Plan = Callable[[tuple[str, ...]], Mapping[str, Any]]


def raise_last(before: float, after: float, share: float) -> Plan:
    """The target's weight is raised near the end; the others divide the rest equally.

    Args:
      before: the target's weight at the beginning, of all weights, from 0 to 1.
      after: its weight later on.
      share: of the run that is done when it is raised.
    """

    def plan(names: tuple[str, ...]) -> Mapping[str, Any]:
        return {"weights": _target(names, before), "stages": {share: _target(names, after)}}

    return plan


def one_after_another(shares: Sequence[float]) -> Plan:
    """One domain at a time, in order; the last one is trained to the end.

    Args:
      shares: of the run that is done when the next domain begins. Where there are more domains than
        that, the first ones are trained together.
    """

    def plan(names: tuple[str, ...]) -> Mapping[str, Any]:
        starts = list(shares)[-(len(names) - 1) :]
        first = names[: len(names) - len(starts)]
        later = names[len(first) :]
        return {
            "weights": _only(names, first),
            "stages": {s: _only(names, (name,)) for s, name in zip(starts, later, strict=True)},
        }

    return plan


def _target(names: tuple[str, ...], weight: float) -> dict[str, float]:
    *other_domains, target = names
    return {**dict.fromkeys(other_domains, (1 - weight) / len(other_domains)), target: weight}


def _only(names: tuple[str, ...], chosen: Sequence[str]) -> dict[str, float]:
    return {name: float(name in chosen) for name in names}
