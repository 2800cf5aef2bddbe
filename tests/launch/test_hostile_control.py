"""Run directories of `jaxrl control` from others: an error of one line, and no code of theirs."""

import itertools
import json
import os
import shutil

import numpy as np
import pytest

from jaxrl import control
from jaxrl.launch import cli
from jaxrl.launch.control import run as command

FLAGS = [
    "sac", "--seeds", "1", "--points", "2", "--episodes", "1", "--algorithm.hidden", "4",
    "--algorithm.steps", "8", "--algorithm.warmup", "16", "--algorithm.batch-size", "16",
]  # fmt: skip
ODD = (None, "x", -1, 10**30, 1.5, float("nan"), [], {}, [[]], {"x": 1}, True, "a\x1b[2J")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two points."""
    run = tmp_path_factory.mktemp("control") / "run"
    assert cli.main(["control", *FLAGS, "--run-dir", str(run)]) == 0
    return run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy that this account has not started, in a place of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return shutil.copytree(trained, tmp_path / "copy")


def describe(run, place, value):
    """Change one value of `policy.json`."""
    description = json.loads((run / "policy.json").read_text())
    *around, last = place
    inner = description
    for name in around:
        inner = inner[name]
    inner[last] = value
    (run / "policy.json").write_text(json.dumps(description))


def places(value, place=()):
    """The fields of a description at any depth, one entry of each list among them."""
    if place:
        yield place
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*place, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*place, 0))


def said(argv, capsys):
    status = cli.main(["control", *map(str, argv)])
    return status, capsys.readouterr().err


def cases(run, share):
    description = json.loads((run / "policy.json").read_text())
    return itertools.islice(itertools.product(places(description), ODD), 0, None, share)


@pytest.mark.parametrize("share", [23, pytest.param(3, marks=pytest.mark.broad)])
def test_a_description_of_other_values_is_damaged_or_as_good(share, run):
    """Every field with values of every type: a policy that acts, or one error that names a file."""
    good, seen = (run / "policy.json").read_text(), np.zeros(4, np.float32)
    for place, value in cases(run, share):
        describe(run, place, value)
        try:
            control.load(run)(seen)
        except ValueError as error:
            assert "policy" in str(error) or "history" in str(error), (place, value)
            assert str(error).isprintable()
        (run / "policy.json").write_text(good)


@pytest.mark.parametrize("command", ["play", "export"])
@pytest.mark.parametrize("name", ["policy.json", "policy.npz"])
def test_files_of_a_policy_that_are_none_are_refused(name, command, run, tmp_path, capsys):
    rest = ["--episodes", "1"] if command == "play" else [tmp_path / "out"]
    for content in (b"", b"[" * 10**5, b"\x00" * 100, b"PK\x03\x04" + b"x" * 100, b"{}", None):
        (run / name).unlink()
        if content is None:
            os.mkfifo(run / name)
        else:
            (run / name).write_bytes(content)
        status, error = said([command, run, *rest], capsys)
        assert status == 2 and error.count("\n") == 1 and name in error, content


def test_arrays_of_other_shapes_are_refused(run, capsys):
    with np.load(run / "policy.npz") as file:
        leaves = {name: file[name] for name in file.files}
    for change in (
        {"leaf0": np.zeros((1, 7), np.float32)}, {"leaf0": np.zeros(0, np.float32)},
        {"leaf0": np.array([["x"]])}, {"leaf0": np.array([{}], object)}, {"other": np.zeros(3)},
    ):  # fmt: skip
        np.savez(run / "policy.npz", **{**leaves, **change})
        status, error = said(["play", run, "--episodes", "1"], capsys)
        assert status == 2 and error.count("\n") == 1 and "policy.npz" in error, change


def test_an_exported_policy_runs_nothing_of_the_run(run, tmp_path, capsys):
    """The name of the environment is any text, also one that ends a string of Python."""
    stolen = tmp_path / "stolen"
    for quotes in ('"""', "'", '"', "\\"):
        describe(run, ("env",), f"{quotes}+str(open({str(stolen)!r}, 'w'))+{quotes}")
        status, _ = said(["export", run, tmp_path / "out"], capsys)
        source = (tmp_path / "out" / "policy.py").read_text()
        scope = {"__file__": str(tmp_path / "out" / "policy.py"), "__name__": "policy"}
        exec(compile(source, "policy.py", "exec"), scope)
        assert status == 0 and not stolen.exists()
        assert scope["policy"](np.zeros(4)).shape == (2,)


@pytest.mark.parametrize(
    ("env", "args"),
    [
        ("stolen_module:make", {}), ("gym/stolen_module:X-v0", {}), ("brax/stolen_module:x", {}),
        ("gym/CartPole-v1", {"render_mode": "human"}),
    ],
)  # fmt: skip
def test_no_module_of_the_run_is_imported_without_trust(
    env, args, run, tmp_path, capsys, monkeypatch
):
    (tmp_path / "stolen_module.py").write_text("open('stolen', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    describe(run, ("env",), env)
    describe(run, ("env_args",), args)
    status, error = said(["play", run, "--episodes", "1"], capsys)
    assert status == 2 and "accept it with --trust" in error and not (tmp_path / "stolen").exists()


def test_a_run_of_a_damaged_config_is_not_continued(run, capsys):
    for content in ("", "[]", "[" * 10**5, '{"config": []}', "{}\x00"):
        (run / "config.json").write_text(content)
        status, error = said([*FLAGS, "--run-dir", run], capsys)
        assert status == 2 and error.count("\n") == 1 and "config.json" in error, content


def test_links_of_the_users_own_are_followed_with_trust(run, tmp_path, capsys, monkeypatch):
    followed = []
    monkeypatch.setattr(command, "follow", lambda *arguments: followed.append(arguments))
    os.replace(run / "checkpoints", tmp_path / "disk")
    os.symlink(tmp_path / "disk", run / "checkpoints")
    status, error = said([*FLAGS, "--run-dir", run], capsys)
    assert status == 2 and "--trust" in error and not followed
    status, error = said([*FLAGS, "--run-dir", run, "--trust"], capsys)
    assert status == 0 and followed, error


def test_brackets_in_a_directory_are_text(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "[b]run[/i]")
    assert cli.main(["control", *FLAGS, "--run-dir", str(run)]) == 0
    assert "[b]run[/i]" in "".join(capsys.readouterr().out.split())
