"""Runs whose sampler verifies drafts and has a prefix cache equal those whose sampler does not."""

import json

import pytest

from jaxrl.launch import cli
from jaxrl.record import jsonl, metrics
from jaxrl.run import assemble, loop
from jaxrl.sampling import drafts
from tests.jaxrl import tiny

SHORT = {
    "steps": 2, "eval.every": 0, "eval.problems": 2, "warm_start.steps": 0,
    "rollout.temperature": 0.2, "rollout.max_new_tokens": 40, "sampler.chunk": 8,
    "sampler.slots": 4, "sampler.bucket": 64,
    "optimizer.learning_rate": 0.01,
}  # fmt: skip
DRAFTS = {"sampler.drafts": "epochs", "sampler.draft_tokens": 3}
LAYERS = {"sampler.drafts": "layers", "sampler.draft_layers": 1}
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
        ({"sampler.drafts": "layers"}, r"sampler\.draft_layers=0 with .*'layers': give a number"),
        ({"sampler.draft_layers": 1}, r"sampler\.draft_layers=1 with sampler\.drafts='none'"),
        ({"sampler.drafts": "model"}, r"sampler\.draft_model='' with .*'model': name a model"),
        (
            DRAFTS | {"sampler.draft_model": "x"},
            r"sampler\.draft_model='x' with sampler\.drafts='epochs': it has no effect",
        ),
        (
            {"sampler.drafts": "model", "sampler.draft_model": "x", "generators": 1},
            r"sampler\.drafts=model with generators=1: .*use layers",
        ),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (LAYERS | {"sampler.draft_layers": 2}, r"sampler\.draft_layers=2: .*has 2 layers.*1 to 1"),
        (
            {"sampler.drafts": "model", "task": "boolean", "task_args": {}},
            r"sampler\.draft_model=.*other tokens than the policy's",
        ),
        ({"sampler.drafts": "model", "sampler.draft_model": "fresh"}, "model='fresh'"),
    ],
)
def test_a_drafter_of_other_tokens_or_all_layers_is_refused(plain, tmp_path, changes, message):
    changes = {"sampler.draft_model": str(plain)} | changes
    if changes["sampler.drafts"] == "layers":
        del changes["sampler.draft_model"]
    with pytest.raises(ValueError, match=message):
        assemble.assemble(tiny.config(tmp_path, **changes))


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


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("drafter", ["layers", "model"])
@pytest.mark.exact("a run whose drafts a model or its first layers make samples the same tokens")
def test_a_run_with_a_drafter_samples_what_it_does_without(plain, tmp_path, monkeypatch, drafter):
    """The model is another run, whose weights are those that this one begins with."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    changes = LAYERS if drafter == "layers" else {"sampler.drafts": "model"}
    if drafter == "model":
        changes = changes | {"sampler.draft_model": str(plain)}
    loop.train(tiny.config(tmp_path, **SHORT | changes))
    assert sampled(tmp_path)[0] == sampled(plain)[0]
    rows = list(metrics.read(tmp_path))
    assert all(row["logp_gap_max"] < 1e-4 for row in rows)
    assert all(0 < row["drafts/accepted"] <= 4 and 0 < row["drafts/share"] < 1 for row in rows)
    assert drafter == "layers" or all(row["drafts/accepted"] > 2 for row in rows)


def printed(capsys, *arguments):
    assert cli.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["lookup", "group", "layers", "model"])
def test_sample_and_eval_have_drafts(plain, name, capsys):
    source = {"layers": ("--draft-layers", "1"), "model": ("--draft-model", plain)}.get(name, ())
    flags = ("--drafts", name, "--draft-tokens", "3", *map(str, source))
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
    assert f"drafts={name!r} with a constraint" in capsys.readouterr().err


FLIGHT = {"rollout.in_flight": 1.5, "steps": 3, "checkpoint.every": 1, "sampler.chunk": 3}


@pytest.mark.broad
@pytest.mark.exact(
    "a run with drafts and a prefix cache, killed and continued, equals an uninterrupted one"
)
@pytest.mark.parametrize("drafter", ["epochs", "layers", "model"])
def test_killed_with_rollouts_in_flight_and_continued(plain, tmp_path, drafter):
    """With a draft of one token, which pays where it is trusted."""
    changes = SHORT | DRAFTS | PREFIXES | FLIGHT
    if drafter != "epochs":
        changes |= LAYERS | {"sampler.draft_tokens": 1}
    if drafter == "model":
        model = {"sampler.drafts": "model", "sampler.draft_model": str(plain)}
        changes |= model | {"sampler.draft_layers": 0}
    tiny.run(tmp_path / "straight", **changes)
    assert tiny.kill_at(tiny.start(tmp_path / "killed", **changes), "train 2")
    tiny.run(tmp_path / "killed", **changes)
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")
    assert all(row["drafts/share"] > 0 for row in metrics.read(tmp_path / "killed"))
