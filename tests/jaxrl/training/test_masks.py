"""Secrets on command lines and in configs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl import config as configs
from jaxrl import masks
from jaxrl.record import rundir
from tests.jaxrl import tiny

SECRET = "hunter2hunter2"
COMMANDS = [
    ["--task-args.api-key", SECRET],
    [f"--task-args.api_key={SECRET}"],
    ["--api-key", SECRET, "--steps", "3"],
    [f"OPENAI_API_KEY={SECRET}"],
    [f"WANDB_API_KEY={SECRET}", "--steps", "3"],
    ["--url", f"https://me:{SECRET}@host:8000/v1"],
    [f"--url=https://{SECRET}@host/v1"],
    ["--url", f"http://host/v1?model=m&api_key={SECRET}"],
    ["--header", f"Authorization: Bearer {SECRET}"],
    [f"sk-{SECRET}"],
    ["--note", f"with hf_{SECRET}, please"],
    ["--task-args.token", SECRET],
    ["--password", SECRET],
]


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_is_saved_with_its_secret(words, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["jaxrl", "train", *words])
    rundir.save_config(tmp_path, tiny.config(tmp_path))
    text = (tmp_path / "config.json").read_text()
    assert SECRET not in text and masks.MASK in text
    saved = json.loads(text)["command"]
    assert saved[:2] == ["jaxrl", "train"] and len(saved) == len(words) + 2
    assert saved[-2:] == ["--steps", "3"] or "--steps" not in words


@given(st.lists(st.sampled_from(["--steps", "3", "--x.api-key", "a", "K_TOKEN=b", "--y"])))
def test_masking_again_changes_nothing(words):
    once = masks.command(words)
    assert masks.command(once) == once and len(once) == len(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--rollout.max-new-tokens", "64", "--packing.micro-batch-tokens", "256"],
        ["--key-variable", "OPENAI_API_KEY"],
        ["--model", "gs://bucket/run@40", "--task", "my.module:function"],
        ["--objective.policy-args.clip_high=0.28", "--run-dir", "runs/key-sk-1"],
        ["--rollout.system", "Think: 3+4=7; ask, e.g. me@host?"],
    ],
)
def test_what_is_no_secret_stays(words):
    assert masks.command(words) == words


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_args.api_key", SECRET),
        ("task_args.path", f"https://me:{SECRET}@host/data.jsonl"),
        ("model", f"https://{SECRET}@host/m"),
        ("rollout.system", f"use sk-{SECRET}"),
    ],
)
def test_a_config_with_a_secret_is_refused_before_it_is_saved(name, value, tmp_path):
    config = configs.replaced(tiny.config(tmp_path / "run"), name, value)
    with pytest.raises(ValueError, match=f"^{name} holds .* environment") as refusal:
        rundir.prepare(config, print)
    assert SECRET not in str(refusal.value) and not (tmp_path / "run").exists()
    rundir.prepare(tiny.config(tmp_path / "run"), print)
