"""`jaxrl plan RUN --asynchronous`: what sampling while training would give a synchronous run.

Costs and lengths are those that the run has logged; other settings are simulated, see
`jaxrl.launch.planning.simulate`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.planning import simulate
from jaxrl.launch.planning.costs import costs_of, groups_of, prompt_of, steps_of
from jaxrl.launch.planning.simulate import Outcome, Workload
from jaxrl.record import storage
from jaxrl.rollout.schedule import Limits

STALENESS = (1, 2, 4, 8)
SHARES = (0.25, 0.5, 0.75)
"""Of the devices that sample."""
_STEPS = 20


class Setting(NamedTuple):
    """Settings and what they are predicted to give."""

    staleness: int | None
    """None: the synchronous run."""
    sampling_share: float | None
    outcome: Outcome


def main(argv: list[str]) -> int:
    """Print the predictions, best last; the exit status is 2 where there is nothing to go by."""
    parser = argparse.ArgumentParser(prog="jaxrl plan", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "run",
        nargs="?",
        help="directory of a synchronous run, such as runs/quickstart-seed0 (default: the newest "
        "in runs)",
    )
    parser.add_argument("--asynchronous", action="store_true", help="this plan")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args(argv)
    try:
        predictions = settings(
            storage.locate(arguments.run) if arguments.run else newest(Path("runs"))
        )
    except REFUSALS as error:
        return refused(error)
    print(json.dumps(to_json(predictions), indent=1) if arguments.json else text(predictions))
    return 0


def newest(folder: Path) -> Path:
    """The run of a folder that was written to last.

    Raises:
      ValueError: there is none.
    """
    logs = sorted(folder.glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise ValueError(f"{folder} holds no run to plan by; name one: jaxrl plan RUN")
    return logs[-1].parent


def settings(run: Path) -> list[Setting]:
    """The synchronous run in simulated time, and each asynchronous one on as many devices.

    Raises:
      ValueError: the run is asynchronous or has logged too little.
      FileNotFoundError: there is no run.
    """
    if not (run / "config.json").exists():
        raise FileNotFoundError(
            f"{run} holds no run: there is no config.json in it; name a run directory, such as "
            "runs/quickstart-seed0"
        )
    config = configs.load(run / "config.json")
    if config.asynchronous.staleness is not None or config.data.kinds:
        raise ValueError(f"{run} is no synchronous run that samples; costs are fitted to one")
    costs, work = costs_of(run), workload(config, run)
    outcome = simulate.simulate(_limits(config, 0), costs, work, overlap=False)
    predictions = [Setting(None, None, outcome)]
    for staleness in STALENESS:
        for share in SHARES:
            limits, share_costs = _limits(config, staleness), costs.on(share)
            outcome = simulate.simulate(limits, share_costs, work, overlap=True)
            predictions.append(Setting(staleness, share, outcome))
    return predictions


def workload(config: Config, run: Path) -> Workload:
    """What a run samples: its logged groups, in order if they are all there, else drawn."""
    groups, prompts = groups_of(run), config.rollout.prompts
    complete = len(groups) == prompts * steps_of(run)
    lengths = simulate.repeated(groups) if complete else simulate.draw_lengths(groups)
    return Workload(lengths, config.sampler, prompt_of(run, prompts))


def best(predictions: list[Setting]) -> Setting:
    """The most tokens trained on in a second; of equals, the smaller staleness."""
    return max(predictions, key=lambda s: (s.outcome.tokens_per_second, -(s.staleness or 0)))


def to_json(predictions: list[Setting]) -> dict[str, Any]:
    """All settings, and the recommended one."""
    rows = [_row(setting) for setting in predictions]
    return {"settings": rows, "recommended": _row(best(predictions))}


def text(predictions: list[Setting]) -> str:
    """A table, and the timeline of the best setting."""
    base = predictions[0].outcome.tokens_per_second
    lines = ["staleness  sampling share  speed  idle/sample  idle/train  lag"]
    for setting in predictions:
        out, share = setting.outcome, setting.sampling_share
        lines.append(
            f"{'synchronous' if setting.staleness is None else setting.staleness:<11}"
            f"{'all' if share is None else f'{share:.0%}':<15}"
            f"{out.tokens_per_second / base:>6.2f}{out.idle_sample:>12.0%}{out.idle_train:>12.0%}"
            f"{out.lag:>8.1f}"
        )
    return "\n".join([*lines, "", simulate.timeline(best(predictions).outcome)])


def _limits(config: Config, staleness: int) -> Limits:
    return Limits(config.rollout.prompts, staleness, steps=_STEPS)


def _row(setting: Setting) -> dict[str, Any]:
    return {
        "staleness": setting.staleness,
        "sampling_share": setting.sampling_share,
        **simulate.to_json(setting.outcome),
    }
