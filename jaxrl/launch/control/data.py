"""`jaxrl control data PATH [--env E]`: what a file of offline data holds."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from jaxrl.control import environments, spaces
from jaxrl.data.offline import readers, transitions
from jaxrl.launch.cli import REFUSALS, refused


def main(argv: list[str]) -> int:
    """Print it; 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="jaxrl control data", description=__doc__)
    parser.add_argument("data", metavar="PATH", help=readers.SOURCES)
    parser.add_argument("--env", default="", help="the environment that the actions are of")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    flags = parser.parse_args(argv)
    try:
        facts = describe(flags.data, flags.env)
    except REFUSALS as error:
        return refused(error)
    if flags.json:
        print(json.dumps(facts))
        return 0
    for name, value in facts.items():
        text = (
            ", ".join(f"{k} {v:.6g}" for k, v in value.items())
            if isinstance(value, dict)
            else value
        )
        print(f"{name}: {text}")
    return 0


def describe(source: str, env: str = "") -> dict[str, Any]:
    """Counts, returns, bounds and ends of a data set, as plain values.

    Args:
      source: see `readers.read`.
      env: whose bounds the actions are checked against; empty: they may have any.

    Raises:
      ValueError: data that cannot be read, or are not of the environment.
    """
    raw: list[np.ndarray] = []
    scale, flatten = spaces.of_files(environments.get(env).layouts if env else {})

    def convert(actions: np.ndarray) -> np.ndarray:
        raw.append(np.asarray(actions).reshape(len(actions), -1))
        if scale:
            return scale(actions)
        return actions if env or actions.dtype.kind in "iu" else np.clip(actions, -1.0, 1.0)

    data = readers.read(source, convert, flatten)
    discrete = data.actions.ndim == 1
    actions = np.concatenate(raw) if raw else data.actions
    lengths = [e.stop - e.start for e in transitions.episodes(data)]
    ends, terminals = data.ends > 0, data.terminals > 0
    return {
        "episodes": len(lengths),
        "steps": len(data.rewards),
        "observations": f"{data.observations.shape[1]} numbers, "
        f"{data.observations.min():.6g} to {data.observations.max():.6g}",
        "actions": f"{len(np.unique(data.actions))} choices"
        if discrete
        else f"{actions.shape[1]} numbers, {actions.min():.6g} to {actions.max():.6g}",
        "returns": _spread(transitions.returns(data)),
        "lengths": _spread(np.array(lengths)),
        "rewards": _spread(data.rewards),
        "ended by itself": int(np.sum(ends & terminals)),
        "cut off": int(np.sum(ends & ~terminals)),
        "terminals inside of trajectories": int(np.sum(terminals & ~ends)),
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    return {
        "least": float(np.min(values)),
        "mean": float(np.mean(values)),
        "most": float(np.max(values)),
    }
