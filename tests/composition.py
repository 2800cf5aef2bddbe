"""Which ways to gather experience and to train on it work together: `docs/composition.md`.

`python -m tests.composition > docs/composition.md` asks the checks that a run makes before it
compiles anything. `tests/jaxrl/run/test_composition.py` runs what they let through.
"""

import itertools
from pathlib import Path

from jaxrl.config import Config
from jaxrl.run import begin
from jaxrl.sampling.chunks import Chunks
from tests.jaxrl import tiny

DOCUMENT = tiny.ROOT / "docs/composition.md"

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
"""What turns on those that are no extensions."""


def config(directory, pair, **changes) -> Config:
    """A short run with both ways of a pair."""
    both = WAYS[pair[0]] | WAYS[pair[1]]
    few = {"steps": 2, "eval.every": 0, "eval.problems": 4, "warm_start.steps": 0}
    return tiny.config(directory, **(few | both | changes))


def refusal(pair) -> str:
    """Why a run with both is refused; empty where it is not."""
    try:
        begin.check(config(Path("unused"), pair))
    except ValueError as error:
        return str(error)
    return ""


def document() -> str:
    """The text of `docs/composition.md`."""
    reasons = {pair: why for pair in PAIRS if (why := refusal(pair))}

    def cell(one: str, two: str) -> str:
        if one == two:
            return ""
        return "refused" if (one, two) in reasons or (two, one) in reasons else "accepted"

    names = list(WAYS)
    rows = [["", *names], ["---"] * (len(names) + 1)]
    rows += [[name, *(cell(name, other) for other in names)] for name in names]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    settings = "\n".join(
        f"- {name}: `--{FLAGS[name]}`" if name in FLAGS else f"- {name}: `--with {name}`"
        for name in names
    )
    refused = "\n".join(f"- {one} with {two}: {why}" for (one, two), why in reasons.items())
    return (
        "# Which methods work together\n\n"
        "Any two of these methods are set side by side in one run. `accepted` means that the\n"
        "checks of a run accept the pair. A test of each pair, most of them under the slow\n"
        "marker, runs two steps and asks for a finite loss and for log-probabilities of the\n"
        "sampler and the trainer that agree to 0.001 nats at the first step. `refused` means\n"
        "that the run ends with an error before it compiles anything.\n\n"
        f"{table}\n\n"
        f"## Refused, and why\n\n{refused or 'None of these pairs is refused.'}\n\n"
        f"## How each is turned on\n\n{settings}\n\n"
        "This page is made by `python -m tests.composition > docs/composition.md`. The pairs run\n"
        "under `./run test --slow`.\n"
    )


if __name__ == "__main__":
    print(document(), end="")
