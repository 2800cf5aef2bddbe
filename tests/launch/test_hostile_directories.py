"""Damaged and hostile run directories, through every command that opens one."""

import json
import os
import shutil
import signal

import pytest

from jaxrl.launch import cli
from tests.launch.test_cli import TINY

pytestmark = pytest.mark.broad

COMMANDS = {
    "eval": ("--problems", "2", "--score-workers", "0"),
    "sample": ("--prompt", "1+1=", "--max-new-tokens", "3"),
    "replay": ("--step", "2"),
    "train --fork": (),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A run of two steps, both of which are kept."""
    run = tmp_path_factory.mktemp("good") / "run"
    flags = ("--steps", "2", "--checkpoint.every", "1", "--run-dir", str(run))
    assert cli.main(["train", "quickstart", *TINY, *flags]) == 0
    return run


def config(**fields):
    def change(run):
        path = run / "config.json"
        record = json.loads(path.read_text())
        for name, value in fields.items():
            *groups, last = name.split("__")
            group = record["config"]
            for key in groups:
                group = group[key]
            group[last] = value
        path.write_text(json.dumps(record))

    return change


def newest(run):
    return sorted((run / "checkpoints").glob("0*"))[-1]


def pipe(place):
    def change(run):
        path = place(run)
        path.unlink()
        os.mkfifo(path)

    return change


def truncate(run):
    for path in newest(run).rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            path.write_bytes(path.read_bytes()[:10])


def link_out(run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to("/tmp")


CHANGES = {
    "a function": config(task="os:system", task_args={"command": "touch executed"}),
    "a path as the model": config(model="/etc"),
    "control characters": config(rollout__system="\x1b[2J\x1b]0;x\x07"),
    "a nested config": lambda run: (run / "config.json").write_text(
        '{"config":' * 5000 + "1" + "}" * 5000
    ),
    "a pipe for a manifest": pipe(lambda run: newest(run) / "manifest.json"),
    "a pipe for the config": pipe(lambda run: run / "config.json"),
    "checkpoints elsewhere": link_out,
    "cut arrays": truncate,
    "a list for a manifest": lambda run: (newest(run) / "manifest.json").write_text("[1, 2]"),
    "metrics of other types": lambda run: (run / "metrics.jsonl").write_text(
        '{"step": "x"}\n[1]\n'
    ),
    "a number of 41 digits": config(seed=10**40),
    "a NUL": config(task="a\x00b"),
    "half of a surrogate pair": config(task="\ud800"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_directory_of_others_is_read_or_refused_in_a_line(
    change, good, tmp_path, monkeypatch, capsys
):
    """No command hangs, runs what the directory names, or shows what it holds as it is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for command, flags in COMMANDS.items():
        run = tmp_path / "run"
        shutil.copytree(good, run)
        CHANGES[change](run)
        name, *option = command.split()
        if option:
            flags = ("--run-dir", str(tmp_path / "fork"), "--steps", "2")
        signal.alarm(100)
        status = cli.main([name, *option, str(run), *flags])
        signal.alarm(0)
        said = "".join(capsys.readouterr())
        assert status in (0, 2) and "Traceback" not in said and "\x1b[2J" not in said, command
        assert not (tmp_path / "executed").exists()
        shutil.rmtree(run)
