"""What a newcomer stumbled over, where no other test runs the command."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys

import pytest

from jaxrl.launch import algorithms, cli, recipes
from jaxrl.launch.settings import configs
from jaxrl.record import rundir
from tests.data import words
from tests.jaxrl import tiny


def test_a_project_may_have_modules_of_the_same_names(tmp_path):
    """The command, in a folder whose `models`, `losses` and `data` are not jaxrl's."""
    for name in ("models.py", "losses.py", "data/__init__.py", "data/types.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise ImportError('not of jaxrl')\n")
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl.launch.cli", "show", "quickstart"],
        cwd=tmp_path, env=tiny.environment() | {"PYTHONPATH": f"{tmp_path}:{tiny.ROOT}"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and '"recipe": "quickstart"' in done.stdout, done.stderr


def test_more_steps_under_a_schedule_are_told(tmp_path):
    config = tiny.config(tmp_path / "run")
    linear = dataclasses.replace(config.optimizer, schedule="linear")
    config = dataclasses.replace(config, optimizer=linear, steps=3)
    rundir.save_config(rundir.prepare(config, print).directory, config)
    saved = tmp_path / "run" / "checkpoints" / "3" / "manifest.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    said = []
    rundir.prepare(dataclasses.replace(config, steps=5), said.append)
    assert "the linear schedule of the learning rate now ends at step 5" in " ".join(said)


def test_what_no_command_needs_at_once_is_not_imported():
    """Imports are most of the time that a command takes before its first token."""
    code = (
        "import sys; from jaxrl.launch import cli\n"
        "def heavy(where, *names):\n"
        "    cli.command(where)\n"
        "    found = {'torch', 'chex', 'rlax', 'jsonschema', *names} & set(sys.modules)\n"
        "    assert not found, (where, found)\n"
        "heavy('jaxrl.launch.inspect.sample', 'jinja2', 'pydantic', 'orbax', 'grain',"
        " 'tensorboardX')\n"
        "heavy('jaxrl.launch.train', 'tensorboardX', 'sacrebleu', 'matplotlib', 'reasoning_gym')\n"
        "import gc; assert gc.isenabled() and gc.get_freeze_count()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tiny.ROOT, timeout=60)


VALUES = {
    "--optimizer.schedule": "linear", "--rollout.long-prompts": "drop", "--reward": "number",
    "--compute-dtype": "bfloat16", "--remat": "full", "--wandb": "mine", "--epochs": "2",
    "--updates-per-batch": "2", "--rollout.top-k": "50", "--rollout.top-p": "0.9",
    "--rollout.min-p": "0.1", "--temperature": "0.7", "--objective.policy-args.clip_high": "0.28",
    "--objective.policy-args.clip_low": "0.2", "--optimizer.b2": "0.99",
}  # fmt: skip
"""Flags of a page, and a value of each that takes no 16."""


def page(name):
    return (tiny.ROOT / "docs" / f"{name}.md").read_text()


def test_what_the_page_for_users_of_trl_says_is_accepted(
    tmp_path, tmp_path_factory, monkeypatch, capsys
):
    """Its command passes the checks of a run, and each flag and recipe of its tables is one."""
    model = str(words.model(tmp_path_factory.mktemp("model"), positions=1024))
    monkeypatch.chdir(tmp_path)
    text = page("from-trl")
    rows = [{"prompt": f"What is {i}+1?", "answer": str(i + 1)} for i in range(300)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "my_reward.py").write_text(re.search(r"def digits.*\n.*\n", text)[0])
    command = re.search(r"jaxrl (train grpo(.|\n)*?)\njaxrl", text)[1].replace("\\\n", " ")
    parts = shlex.split(command.replace("Qwen/Qwen3-0.6B", model))[1:]
    assert cli.main(["show", *parts, "--check"]) == 0, capsys.readouterr()
    first, second = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    named = {
        name for row in first.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[2])
    }
    assert named <= {*recipes.names(), *algorithms.names()} and len(named) >= 10
    flags = {
        flag
        for row in second.splitlines()[2:]
        for flag in re.findall(r"--[\w.-]+", row.split("|")[2])
    }
    assert len(flags) > 20
    base = ["grpo", "--model", model, "--data", "train.jsonl"]
    for flag in flags - {"--reward", "--epochs"}:
        configs.resolve([*base, "--reward", "number", flag, VALUES.get(flag, "16")])
    for flag in ("--reward", "--epochs"):
        configs.resolve(
            [*base, *([] if flag == "--reward" else ["--reward", "number"]), flag, VALUES[flag]]
        )


@pytest.mark.parity
def test_fields_of_trl_are_those_that_it_has():
    trl = pytest.importorskip("trl")
    fields = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    _, table = re.findall(r"(?:^\|.*\n)+", page("from-trl"), re.MULTILINE)
    others = {"reward_funcs", "peft_config"}  # arguments of the trainer
    for row in table.splitlines()[2:]:
        names = {re.match(r"\w+", name)[0] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
        assert names <= fields | others, names - fields
