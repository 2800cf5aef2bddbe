"""Every way to gather experience and train on it: it resumes exactly, and does what it says."""

import dataclasses
import json

import numpy as np
import pytest

from jaxrl.data.selection.guidance import Hint
from jaxrl.launch.inspect import replay
from jaxrl.record import checkpoint, metrics
from jaxrl.run import loop
from jaxrl.training.tries import Chunks
from tests.jaxrl import tiny

WAYS = {
    "critic": {"critic": {}, "objective.kl_coef": 0.01},
    "categorical critic": {"critic.head.bins": 5, "updates_per_batch": 2},
    "critic on nf4": {"critic": {}, "lora.rank": 2, "lora.base": "nf4"},
    "critic on adapters in bfloat16": {
        "critic": {},
        "lora.rank": 2,
        "compute_dtype": "bfloat16",
    },
    "replay": {"replay.groups": 2, "replay.size": 3, "updates_per_batch": 2},
    "in flight": {"rollout.in_flight": 1.5},
    "expert rows": {
        "guidance.guide": "expert_rows",
        "objective.policy": "chord",
    },
    "shared prefix": {"guidance.guide": "tests.jaxrl.run.test_ways:shared_prefix"},
    "chunks": {"rollout.max_new_tokens": 9, "rollout.chunks": Chunks(4, 2)},
    "escalate": {
        "guidance.guide": "escalate",
        "guidance.args": {"attempts": 2},
    },
    "shown": {
        "guidance.guide": "tests.jaxrl.run.test_ways:always_shown",
        "guidance.shown": "{prompt}{solution}",
    },
    "reference refresh": {
        "objective.kl_coef": 0.1,
        "reference_refresh.every": 2,
        "reference_refresh.reset_optimizer": True,
    },
    "controlled divergence": {
        "objective.kl_coef": 0.1,
        "kl_control.rule": "proportional_kl_coefficient",
        "kl_control.args": {"target": 0.001},
    },
    "average": {"average.decay": 0.9, "average.reference": True, "objective.kl_coef": 0.1},
    "nucleus": {"nucleus.mass": 0.5, "nucleus.every": 2},
    "policy reward": {"policy_reward.marker": ""},
    "curriculum": {
        "curriculum.choose": "difficulty_targeted",
        "curriculum.prompts": 16,
    },
    "greedy baseline": {"objective.advantage": "remax"},
}


BROAD = ("critic", "in flight", "escalate")
"""The others are slow and take the same paths."""


def always_shown(attempt, rewards, rng):
    return [] if attempt else [Hint(0, 0, shown=True)]


def shared_prefix(attempt, tokens, entropies, count):
    """Row 1 of each group begins as row 0 did, up to where that was least sure."""
    if attempt != 1:
        return []
    cuts = [int(np.argmax(group[0])) for group in entropies]
    prefixes = [tuple(tokens[p][0][: cuts[p]].tolist()) for p in range(count)]
    return [Hint(p, 1, begin=tokens) for p, tokens in enumerate(prefixes)]


def run(directory, **changes):
    made = tiny.config(directory, **changes)
    made = dataclasses.replace(made, eval=dataclasses.replace(made.eval, every=0))
    return loop.train(made)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A warm-started policy that all ways begin from."""
    directory = tmp_path_factory.mktemp("started") / "run"
    run(directory, steps=1, **{"warm_start.steps": 80, "warm_start.batch_size": 32})
    return directory


@pytest.mark.exact(
    "a stopped run of every extension continues, and a step of it replays, to the last bit"
)
@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=pytest.mark.broad if w in BROAD else pytest.mark.slow) for w in WAYS],
)
def test_a_stopped_run_continues_as_an_uninterrupted_one(way, tmp_path, started):
    given = WAYS[way] | {"warm_start.steps": 0, "model": str(started), "steps": 4}
    run(tmp_path / "straight", **given)

    def stop(step, row):
        if step == 3:
            raise KeyboardInterrupt

    halfway = tiny.config(tmp_path / "stopped", **given)
    halfway = dataclasses.replace(halfway, eval=dataclasses.replace(halfway.eval, every=0))
    with pytest.raises(KeyboardInterrupt):
        loop.train(halfway, loop.Callbacks(step=stop))
    assert checkpoint.newest(tmp_path / "stopped", print) == 2
    loop.train(halfway)
    assert tiny.artefacts(tmp_path / "stopped") == tiny.artefacts(tmp_path / "straight")
    assert replay.replay(tmp_path / "straight", 4, trust=True).differs == {}
    rows = metrics.read(tmp_path / "straight")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(np.isfinite(row["loss"]) and row["skipped"] == 0 for row in rows)
    assert max(row["logp_gap_max"] for row in rows[:1]) < (0.3 if "bfloat16" in way else 1e-4)
    written = [json.loads(line) for f in sorted((tmp_path / "straight/rollouts").glob("*.jsonl"))
               for line in f.read_text().splitlines()]  # fmt: skip
    sources = {name for row in written for name in row["source"]}
    match way:
        case "expert rows" | "shown":
            assert "expert" in sources
        case "shared prefix":
            pairs = [written[i : i + 2] for i in range(0, len(written), 4)]
            counts = [second["source"].count("forced") for _, second in pairs]
            assert max(counts) > 0
            for (first, second), n in zip(pairs, counts, strict=True):
                assert first["tokens"][:n] == second["tokens"][:n]
                assert first["source"].count("forced") == 0
                assert n == np.argmax(first["entropy"])
        case "escalate":
            assert "forced" in sources
        case "in flight":
            versions = {(row["step"], v) for row in written for v in row["version"]}
            assert any(v < step - 1 for step, v in versions)  # sampled before this step
            assert rows[0]["lag/max"] == 0 < max(row["lag/mean"] for row in rows)
        case "controlled divergence":
            assert len({row["kl_coef"] for row in rows}) > 2
        case "critic" | "categorical critic" | "critic on nf4" | "critic on adapters in bfloat16":
            assert rows[-1]["value_loss"] > 0
            assert any(len(set(row["advantage"])) > 1 for row in written)  # differs by token
        case "nucleus":
            assert max(row["logp_gap_max"] for row in rows) < 1e-4  # under the renewed one too
        case "reference refresh":
            names = sorted(f.name for f in (tmp_path / "straight/references").iterdir())
            assert names == ["00000000", "00000002", "00000004"]
            assert rows[0]["kl"] == 0 and rows[1]["kl"] > 0 and rows[2]["kl"] < rows[1]["kl"]
