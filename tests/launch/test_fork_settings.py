"""`jaxrl train --fork RUN`: the settings of that run, and what is said of others."""

import dataclasses
import shutil

import pytest

from jaxrl import config as configs
from jaxrl.launch import cli
from jaxrl.launch.settings.configs import resolve
from jaxrl.record import jsonl, rundir
from jaxrl.run import loop
from tests.jaxrl import tiny


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of four steps whose config is no recipe."""
    directory = tmp_path_factory.mktemp("fork") / "run"
    changes = {"optimizer.learning_rate": 3e-3, "rollout.temperature": 0.7}
    loop.train(tiny.config(directory, steps=4, **changes))
    return directory


def saved(directory, **fields):
    """A directory with a config alone."""
    config = dataclasses.replace(tiny.config(directory), **fields)
    rundir.save_config(rundir.prepare(config, print).directory, config)
    return config


@pytest.mark.broad
@pytest.mark.parametrize(
    "flags", [["--fork", "{}"], ["--fork={}@4"], ["--from", "{}@2"], ["--from={}"]]
)
def test_without_a_recipe_the_settings_are_those_of_the_run(flags, source):
    given = [flag.format(source) for flag in flags]
    config, _ = resolve([*given, "--steps", "9"])
    differs = configs.changed(configs.load(source / "config.json"), config)
    assert differs.keys() == {"run_dir", "fork", "steps"}
    assert config.run_dir == f"{source}-fork" and config.fork.startswith(str(source))
    config, _ = resolve([*given, "--run-dir", "elsewhere", "--lr", "1e-5"])
    assert (config.run_dir, config.optimizer.learning_rate) == ("elsewhere", 1e-5)
    assert config.rollout.temperature == 0.7


@pytest.mark.broad
def test_a_recipe_that_is_named_is_the_base(source):
    config, _ = resolve(["quickstart", "--fork", str(source)])
    assert config.recipe == "quickstart" and config.rollout.temperature == 1.0


def test_a_fork_of_a_fork_names_its_own_source(tmp_path):
    saved(tmp_path / "a", fork="elsewhere@3")
    config, _ = resolve(["--fork", f"{tmp_path / 'a'}@7"])
    assert config.fork == f"{tmp_path / 'a'}@7"


@pytest.mark.parametrize("step", ["", "@7"])
@pytest.mark.parametrize("recipe", [[], ["quickstart"]])
def test_the_path_of_a_fork_is_whole(recipe, step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    saved(tmp_path / "a", model="model")
    config, _ = resolve([*recipe, "--fork", f"a{step}"])
    assert config.fork == f"{tmp_path / 'a'}{step}"
    assert recipe or config.model == str(tmp_path / "model")


def test_functions_of_others_are_refused_as_those_of_a_run_that_continues(tmp_path):
    saved(tmp_path / "own", task="somebody.elses:task")
    shutil.copytree(tmp_path / "own", tmp_path / "a")  # no run that this account has started
    with pytest.raises(ValueError, match="somebody"):
        resolve(["--fork", str(tmp_path / "a")])
    assert resolve(["--fork", str(tmp_path / "a"), "--trust"])[0].task == "somebody.elses:task"
    assert resolve(["--fork", str(tmp_path / "own")])[0].task == "somebody.elses:task"


@pytest.mark.parametrize("fork", ["nowhere", "nowhere@3", "@3", "."])
def test_a_fork_of_nothing_is_refused_by_its_name(fork, capsys):
    assert cli.main(["train", "--fork", fork]) == 2
    said = capsys.readouterr().err
    assert f"fork={fork!r}" in said and said.count("\n") == 1


@pytest.mark.broad
def test_a_fork_trains_as_the_run_did_and_another_recipe_is_said(source, tmp_path):
    config, _ = resolve(["--fork", str(source), "--steps", "5", "--run-dir", str(tmp_path / "b")])
    notes = []
    loop.train(config, loop.Callbacks(note=notes.append))
    assert [row["step"] for row in jsonl.read(tmp_path / "b" / "metrics.jsonl")] == [5]
    assert not [note for note in notes if "WARNING" in note]
    other = dataclasses.replace(config, recipe="other", run_dir=str(tmp_path / "c"))
    loop.train(other, loop.Callbacks(note=notes.append))
    (said,) = [note for note in notes if "WARNING" in note]
    assert "'tiny'" in said and "'other'" in said and str(source) in said and "\n" not in said
