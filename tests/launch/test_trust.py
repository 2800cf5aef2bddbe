"""A run directory of others is data: nothing in it is run, unless the user says so."""

import ast
import dataclasses
import json
import typing
from pathlib import Path

import jax
import pytest

from jaxrl import config as configs
from jaxrl import functions, untrusted
from jaxrl.config import Config, Domain
from jaxrl.data import tasks
from jaxrl.launch import cli, recipes
from jaxrl.launch.inspect.evaluate import EvaluateConfig, resolve
from jaxrl.mesh import mesh
from jaxrl.rollout import policy

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "sample": ["--prompt", "1+1="],
    "eval": ["--problems", "2", "--score-workers", "0"],
    "serve": ["--port", "0"],
    "replay": ["--step", "1"],
    "report": [],
}


def string_fields(kind=Config, prefix=""):
    """Dotted names of all fields of a config that hold a text of any content."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], prefix + field.name
        if dataclasses.is_dataclass(hint):
            yield from string_fields(hint, f"{name}.")
        elif hint is str:
            yield name
        elif typing.get_origin(hint) is dict and name not in ("stages", "course"):
            inner = typing.get_args(hint)[1]
            if str in (inner, *typing.get_args(inner)):
                yield f"{name}.entry"


def hostile(directory, **changes):
    """A run directory as a stranger may have made it."""
    (directory / "checkpoints").mkdir(parents=True)
    config = Config(steps=1)
    for name, value in changes.items():
        config = configs.replaced(config, name.replace("__", "."), value)
    record = {"config": configs.to_dict(config), "command": ["jaxrl", "train"]}
    (directory / "config.json").write_text(json.dumps(record))
    return directory


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_run_directory_names(command, tmp_path, capsys):
    marker = tmp_path / "executed"
    run = hostile(
        tmp_path / "run", task="subprocess:getoutput", task_args={"cmd": f"touch {marker}"}
    )
    status = cli.main([command, str(run), *COMMANDS[command]])
    assert not marker.exists()
    if command != "report":  # which reads values only
        assert status == 2
        said = capsys.readouterr().err
        assert "subprocess:getoutput" in said and "--trust" in said


def test_a_refusal_quotes_no_more_than_can_be_read(tmp_path, capsys):
    run = hostile(tmp_path / "run", task_args={"x" * 10**6: "y"})
    record = json.loads((run / "config.json").read_text())
    record["config"]["sandbox"] = "z" * 10**6
    (run / "config.json").write_text(json.dumps(record))
    assert cli.main(["eval", str(run)]) == 2
    message = capsys.readouterr().err
    assert len(message) < 10_000 and "characters)" in message


def test_a_run_that_comes_from_such_a_run_is_refused_too(tmp_path):
    marker = tmp_path / "executed"
    first = hostile(
        tmp_path / "run", task="subprocess:getoutput", task_args={"cmd": f"touch {marker}"}
    )
    second = hostile(tmp_path / "second", model=str(first))
    with pytest.raises(ValueError, match=r"subprocess:getoutput.*--trust"):
        policy.describe(policy.config_of(str(second)))
    assert not marker.exists()


@pytest.mark.parametrize("command", ["sample", "serve"])
def test_runs_that_start_from_themselves_are_named(command, tmp_path, capsys):
    hostile(tmp_path / "a", model=str(tmp_path / "b"))
    run = hostile(tmp_path / "b", model=str(tmp_path / "a"))
    assert cli.main([command, str(run), *COMMANDS[command]]) == 2
    said = capsys.readouterr().err
    assert "this run starts from itself" in said and "Traceback" not in said
    assert str(tmp_path / "a") in said and "config.json" in said


def test_what_the_user_names_or_trusts_is_run(tmp_path):
    own = "tests.launch.test_trust:own_task"
    run = hostile(tmp_path / "run", task=own)
    with pytest.raises(ValueError, match="own_task"):
        resolve(str(run), EvaluateConfig())
    assert resolve(str(run), EvaluateConfig(trust=True)).task == own
    assert resolve(str(run), EvaluateConfig(task=own)).task == own
    made = [
        policy.describe(policy.config_of(str(run)), trust=True)[0],
        policy.describe(Config(model=str(run), task=own))[0],  # a training run of the same task
        policy.create(Config(task=own), mesh.make(Config().mesh)).model,
    ]
    assert len({model.vocab_size for model in made}) == 1 and jax.device_count()


def own_task():
    return tasks.get("arithmetic")


@pytest.mark.parametrize(
    "name", [*string_fields(), "course", "domains", "stages", "task_args.args"]
)
@pytest.mark.parametrize(
    "function", ["os:system", "jaxrl.launch.cli:main", "jaxrl.record.rundir:write_json"]
)
def test_every_field_is_looked_at(name, function, tmp_path):
    values = {
        "domains": {"a": Domain(task=function)},
        "course": {0: {"task": function}},
        "stages": {3: {"task": function}},
        "task_args.args": json.dumps({"of": "math", "args": json.dumps({"of": [function]})}),
    }
    config = configs.replaced(Config(), name, values.get(name, function))
    (found,) = policy.named_functions(config)
    assert function in found


def test_spellings_that_are_looked_up_are_those_that_are_found():
    for spelling in ("os: system", "os:system ", ":system", "os:", "o-s:x", "os.path:a.b", "os"):
        assert untrusted.foreign({"task": spelling}) == set()
        with pytest.raises(ValueError, match="unknown"):
            tasks.get(spelling)
        with pytest.raises(ValueError, match="is not one function"):
            functions.resolve(spelling, {}, set())
    for private in (
        "jaxrl.losses.policy.objectives:_mean",
        "jaxrl.losses.policy.objectives:jax",
        "jaxrl.data.selection.curriculum:dataclass",
    ):
        assert untrusted.foreign({"task": private}) == {private}


def test_no_recipe_needs_trust():
    for name in recipes.names():
        assert policy.named_functions(recipes.load(name)) == set(), name


PICKLED = {"distributed.py", "pool.py", "scoring_process.py"}
"""What the processes of one run tell each other; nothing that is read from a file."""
LOADERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "imp", "code"}


@pytest.mark.sample(2, broad=3)
@pytest.mark.parametrize("package", ["data", "jaxrl", "models", "losses", "launch"])
def test_no_file_is_read_as_code(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert path.name in PICKLED or not LOADERS & set(names), f"{path}: {names}"
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else ""
                assert called not in ("eval", "exec", "compile", "__import__"), f"{path}: {called}"
                unsafe = [k for k in node.keywords if k.arg == "allow_pickle"]
                assert not unsafe, f"{path}: allow_pickle"
