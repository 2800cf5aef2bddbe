"""Runs whose sampler verifies drafts and has a prefix cache equal those whose sampler does not."""

import json

import pytest

from jaxrl.launch import cli
from jaxrl.record import jsonl, metrics
from jaxrl.run import assemble, loop
from tests.jaxrl import tiny

SHORT = {
    "steps": 2, "eval.every": 0, "eval.problems": 2, "warm_start.steps": 0,
    "rollout.temperature": 0.2, "rollout.max_new_tokens": 40, "sampler.chunk": 8,
    "sampler.slots": 4, "sampler.bucket": 64,
    "optimizer.learning_rate": 0.01,
}  # fmt: skip
DRAFTS = {"sampler.drafts": "epochs", "sampler.draft_tokens": 3}
PREFIXES = {"sampler.prefix_cache": 1, "sampler.prefix_block": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler.prefix_block": 5}, r"sampler\.prefix_block=5 with sampler\.prefix_cache=0"),
        ({"sampler.draft_tokens": 5}, r"sampler\.draft_tokens=5 with sampler\.drafts='none'"),
        (
            DRAFTS | {"generators": 1},
            r"sampler\.drafts=epochs with generators=",
        ),
        (DRAFTS | {"sampler.draft_tokens": 0}, r"sampler\.draft_tokens=0"),
        (
            DRAFTS | {"rollout.constraint": "problem"},
            r"sampler\.drafts=epochs with rollout\.constraint=problem: .*masks",
        ),
        (
            DRAFTS | {"rollout.on_device": True},
            r"sampler\.drafts=epochs with rollout\.on_device=True: .*a token at a time",
        ),
    ],
)
def test_what_drafts_do_not_go_with_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        assemble.check(tiny.config(tmp_path, **changes))


def sampled(directory):
    """Tokens and rewards of the rollouts, and the log-probabilities."""
    rows = [
        row for path in sorted((directory / "rollouts").glob("*.jsonl")) for row in jsonl.read(path)
    ]
    return (
        [
            (row["step"], row["prompt"], row["completion"], row["tokens"], row["reward"])
            for row in rows
        ],
        [logp for row in rows for logp in row["logp"]],
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The directory of a run without drafts."""
    directory = tmp_path_factory.mktemp("plain") / "run"
    loop.train(tiny.config(directory, **SHORT))
    return directory


@pytest.mark.exact("a run with drafts and a prefix cache samples the tokens of one without")
def test_a_run_samples_what_it_does_without(plain, tmp_path):
    loop.train(tiny.config(tmp_path, **SHORT | DRAFTS | PREFIXES))
    (expected, expected_logp), (rollouts, logp) = map(sampled, (plain, tmp_path))
    assert rollouts == expected
    assert logp == pytest.approx(expected_logp, abs=1e-4)
    rows = list(metrics.read(tmp_path))
    assert rows[0]["logp_gap_max"] < 1e-4
    assert all(0 < row["drafts/accepted"] <= 3 and 0 < row["drafts/share"] < 1 for row in rows)
    assert all(0 < row["drafts/beside/accepted"] <= 3 for row in rows[1:])
    assert all(row["drafts/beside/share"] < row["drafts/share"] for row in rows)
    assert all(row["prefixes/cached"] > 0 and 0 < row["prefixes/share"] < 1 for row in rows)
    chunks = jsonl.read(tmp_path / "chunks.jsonl")
    saved = sum(chunk["cached"] for chunk in chunks)
    assert saved == sum(row["prefixes/cached"] for row in rows)
    assert "drafts/accepted" not in next(iter(metrics.read(plain)))


def printed(capsys, *arguments):
    assert cli.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.broad
@pytest.mark.parametrize("drafts", ["lookup", "group"])
def test_sample_and_eval_have_drafts(plain, drafts, capsys):
    flags = ("--drafts", drafts, "--draft-tokens", "3")
    for command in (
        ("eval", plain, "--problems", "2"),
        ("sample", plain, "--prompt", "1+1+1+1+", "--n", "2", "--temperature", "0.2"),
    ):
        expected, result = printed(capsys, *command), printed(capsys, *command, *flags)
        for completion in result.get("completions", ()):
            completion.pop("logps")
        for completion in expected.get("completions", ()):
            completion.pop("logps")
        assert result == expected
        assert cli.main([*map(str, command), "--draft-tokens", "3"]) == 2
        assert "draft_tokens=3 with" in capsys.readouterr().err
    assert cli.main(["sample", str(plain), "--regex", "a", "--prompt", "1", *flags]) == 2
    assert f"drafts={drafts!r} with a constraint" in capsys.readouterr().err


FLIGHT = {"rollout.in_flight": 1.5, "steps": 3, "checkpoint.every": 1, "sampler.chunk": 3}


@pytest.mark.broad
@pytest.mark.exact(
    "a run with drafts and a prefix cache, killed and continued, equals an uninterrupted one"
)
def test_killed_with_rollouts_in_flight_and_continued(tmp_path):
    changes = SHORT | DRAFTS | PREFIXES | FLIGHT
    tiny.run(tmp_path / "straight", **changes)
    assert tiny.kill_at(tiny.start(tmp_path / "killed", **changes), "train 2")
    tiny.run(tmp_path / "killed", **changes)
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")
