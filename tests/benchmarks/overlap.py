"""An asynchronous run against a synchronous one, where scorers or environments take their time.

`python -m tests.benchmarks.overlap DIR` trains the same small policy both ways on two virtual
devices, one of which samples, and prints seconds a step. Lengths have a long tail. Scorers and
environments sleep, and so truly overlap with what is computed; waiting for them takes about as long
as sampling, by a first run without them. Seconds of replies have a long tail too, and a run in
turns waits for the longest before the next turns. Both runs have the same programs and the same
devices: the ratio is that of the order of work alone.
"""

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from jaxrl.record import metrics
from tests.jaxrl import tiny

PROMPTS, SIZE, TURNS = 16, 8, 3
WORKERS = {"scorer": 8, "environment": 32}
LONGEST = 11.6
"""Of as many replies as there are episodes in a batch, expected; in medians."""
BASE = {
    "sampling.devices": 1, "warm_start.steps": 0, "eval.problems": 2,
    "fresh.hidden_size": 256, "fresh.intermediate_size": 512, "fresh.num_layers": 4,
    "fresh.head_dim": 64,
    "rollout.prompts": PROMPTS, "rollout.group_size": SIZE, "rollout.max_new_tokens": 256,
    "sampler.slots": 128, "sampler.chunk": 16, "sampler.bucket": 288,
    "packing.row_length": 320, "packing.micro_batch_tokens": 1280, "packing.bucket": 320,
    "checkpoint.every": 99, "rollout_log.every": 0,
}  # fmt: skip
KINDS = {
    "scorer": {"task": "tests.benchmarks.sleeping:scored"},
    "environment": {
        "task": "tests.benchmarks.sleeping:played", "rollout.turn_tokens": 64,
        "fresh.hidden_size": 128, "fresh.intermediate_size": 256, "fresh.num_layers": 2,
    },
}  # fmt: skip
FIRST = 3
"""Steps that are not counted; neither are later ones in which anything is compiled."""


def measured(directory: Path, changes: dict[str, Any]) -> dict[str, float]:
    """Medians over the steps of a run in a process of its own, and seconds a step over them all."""
    tiny.finish(tiny.start(directory, devices=2, **BASE | changes))
    every = list(metrics.read(directory))
    pairs = list(itertools.pairwise(every))[FIRST - 1 :]
    rows = [row for last, row in pairs if row["compilations"] == last["compilations"]]
    shown = ("time/sample", "time/score", "time/train", "idle/sample", "idle/train", "lag/mean")
    found = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in shown}
    found["steps"] = len(rows)
    return found | {"seconds": statistics.mean(row["time/step"] for row in rows)}


def compare(directory: Path, kind: str, staleness: int, steps: int) -> dict[str, Any]:
    """Both runs of a kind, after one that says how long sampling takes."""
    directory.mkdir(parents=True)
    own = KINDS[kind]
    alone = measured(directory / "alone", own | {"steps": 7, "score_workers": 0, "task_args": {}})
    # longer than sampling, as part of it goes on while others are sampled
    workers = WORKERS[kind]
    share = 1.75 / (TURNS * LONGEST) if kind == "environment" else 1.5 * workers / (PROMPTS * SIZE)
    seconds = share * alone["time/sample"]
    slow = own | {"task_args": {"seconds": round(seconds, 4)}, "steps": steps}
    slow["score_workers"] = workers
    turns = measured(directory / "turns", slow)
    live = measured(directory / "live", slow | {"asynchronous.staleness": staleness})
    return {
        "kind": kind,
        "seconds a reply": round(seconds, 4),
        "staleness": staleness,
        "in turns": turns,
        "asynchronous": live,
        "ratio": turns["seconds"] / live["seconds"],
    }


def main() -> None:
    """Print a line of JSON for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--steps", type=int, default=16)
    given = parser.parse_args()
    for kind in given.kinds:
        found = compare(given.directory / kind, kind, given.staleness, given.steps)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
