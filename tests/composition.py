"""Which methods work together in one run: `docs/composition.md`.

    python -m tests.composition run
    python -m tests.composition > docs/composition.md

`run` trains every pair for two steps, in one process so that compiled programs are shared, and adds
those that work to `tests/composition.json`. Without an argument, the page is printed, from that
record and from the checks that a run makes before it compiles anything.
"""

import itertools
import json
import math
import sys
import tempfile
from pathlib import Path

import jax

from jaxrl.config import Config, conflicts
from jaxrl.record import metrics
from jaxrl.run import assemble, loop
from jaxrl.training.tries import Chunks
from tests import digests
from tests.jaxrl import tiny

DOCUMENT = tiny.ROOT / "docs/composition.md"
RECORD = tiny.ROOT / "tests/composition.json"

WAYS = {
    "partial rollouts": {"rollout.in_flight": 1.5},
    "oversampling": {"rollout.oversampling": 2.0},
    "chunks": {"rollout.max_new_tokens": 9, "rollout.chunks": Chunks(4, 2)},
    "curriculum": {
        "curriculum.choose": "difficulty_targeted",
        "curriculum.prompts": 16,
    },
    "guidance": {"guidance.args": {"attempts": 2}},
    "replay": {"replay.groups": 2, "replay.size": 3},
    "critic": {"critic": {}},
    "average": {"average.decay": 0.9},
    "kl_control": {"kl_control.args": {"target": 0.001}, "objective.kl_coef": 0.1},
    "nucleus": {"nucleus.mass": 0.5},
    "reference_refresh": {"reference_refresh.every": 1, "objective.kl_coef": 0.1},
    "policy_reward": {"policy_reward.marker": ""},
}
"""Settings of each, as `tiny.config` takes them."""

PAIRS = list(itertools.combinations(WAYS, 2))

FLAGS = {
    "partial rollouts": "rollout.in_flight",
    "oversampling": "rollout.oversampling",
    "chunks": "rollout.chunks",
    "curriculum": "curriculum.choose",
}
"""The flags of those that are not extensions."""

LARGEST_GAP = 1e-3
"""Of a token's log-probabilities in the sampler and the trainer at the first step, in nats."""


def config(directory, pair, **changes) -> Config:
    """A short run with both methods of a pair."""
    both = WAYS[pair[0]] | WAYS[pair[1]]
    few = {"steps": 2, "eval.every": 0, "eval.problems": 4, "warm_start.steps": 0}
    return tiny.config(directory, **(few | both | changes))


def refusal(pair) -> str:
    """Why a run with both is refused; empty where it is not."""
    try:
        assemble.assemble(config(Path("unused"), pair))
    except ValueError as error:
        return str(error)
    return ""


def started(directory: Path) -> str:
    """The run directory of a warm-started policy from which all pairs start."""
    few = {"warm_start.steps": 40, "warm_start.batch_size": 32, "eval.every": 0, "steps": 1}
    loop.train(tiny.config(directory, **few))
    return str(directory)


def failures(pair, model: str, directory: Path) -> list[str]:
    """Train a pair for two steps; what is wrong with the run, empty where nothing is."""
    loop.train(config(directory, pair, model=model))
    rows = metrics.read(directory)
    found = [] if [row["step"] for row in rows] == [1, 2] else [f"{len(rows)} steps, not 2"]
    for row in rows:
        if not math.isfinite(row["loss"]) or row["skipped"]:
            found.append(f"step {row['step']}: loss {row['loss']}, skipped {row['skipped']}")
    if not rows or rows[0]["logp_gap_max"] >= LARGEST_GAP:
        found.append(f"step 1: sampler and trainer differ by {rows[0]['logp_gap_max']} nats")
    return found


def run() -> int:
    """Run every pair that is not refused and record those that work; 1 if one does not."""
    digests.compile_once()
    worked, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        model = started(Path(folder) / "started")
        for i, pair in enumerate(pair for pair in PAIRS if not refusal(pair)):
            found = failures(pair, model, Path(folder) / f"{i}")
            print(f"{' and '.join(pair)}: {'; '.join(found) or 'works'}", flush=True)
            failed += bool(found)
            worked += [] if found else [" and ".join(pair)]
            if i % 8 == 7:
                jax.clear_caches()
    record(worked)
    return int(failed > 0)


def record(worked: list[str]) -> None:
    """Write the pairs that work, and where they were run."""
    made = {"environment": digests.environment(), "pairs": worked}
    RECORD.write_text(json.dumps(made, indent=1) + "\n")


def document() -> str:
    """The text of `docs/composition.md`."""
    reasons = {pair: why for pair in PAIRS if (why := refusal(pair))}
    recorded = json.loads(RECORD.read_text())
    worked = {tuple(name.split(" and ")) for name in recorded["pairs"]}

    def cell(one: str, two: str) -> str:
        either = {(one, two), (two, one)}
        if one == two:
            return ""
        if either & reasons.keys():
            return "refused"
        return "works" if either & worked else "accepted"

    names = list(WAYS)
    rows = [["", *names], ["---"] * (len(names) + 1)]
    rows += [[name, *(cell(name, other) for other in names)] for name in names]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    settings = "\n".join(
        f"- {name}: `--{FLAGS[name]}`" if name in FLAGS else f"- {name}: `--with {name}`"
        for name in names
    )
    refused = "\n".join(f"- {one} with {two}: {why}" for (one, two), why in reasons.items())
    exclusive = "\n".join(
        f"| {first.title or f'`{first.name}`'} | {second.title or f'`{second.name}`'} | {why} |"
        for first, second, why in conflicts.CONFLICTS
    )
    where = recorded["environment"]
    return (
        "# Which methods work together\n\n"
        "Any two of these methods can be set in one run. `works`: the pair was run for two steps\n"
        "of a small model. The loss was finite, no sequence was skipped, and the sampler and the\n"
        f"trainer agreed to {LARGEST_GAP} nats at the first step. `accepted`: the checks of a run\n"
        "accept the pair, which was not run. `refused`: the run ends with an error before it\n"
        "compiles anything.\n\n"
        f"{len(worked)} of {len(PAIRS)} pairs were run, on one device ({where['processor']}, JAX\n"
        f"{where['jax']}).\n\n"
        f"{table}\n\n"
        f"## Refused, and why\n\n{refused or 'None of these pairs is refused.'}\n\n"
        f"## Settings that exclude each other\n\n"
        "A run with both settings of a row is refused before anything is compiled.\n\n"
        f"| setting | other setting | reason |\n| --- | --- | --- |\n{exclusive}\n\n"
        f"## Flags\n\n{settings}\n\n"
        "`python -m tests.composition run` runs all pairs again, and\n"
        "`python -m tests.composition > docs/composition.md` makes this page. `./run test --slow`\n"
        "runs them as well.\n"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        sys.exit(run())
    print(document(), end="")
