"""The command line: tables, flags, refusals before any compilation, a run from start to sample."""

import contextlib
import dataclasses
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest
from rich.console import Console

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config
from jaxrl.data import tasks
from jaxrl.launch import cli, doctor, progress, recipes, train
from jaxrl.launch.inspect.evaluate import EvaluateConfig
from jaxrl.launch.inspect.sample import SampleConfig
from jaxrl.launch.settings import flags
from jaxrl.record import metrics
from tests.jaxrl import tiny

README = (Path(__file__).parents[2] / "README.md").read_text()
TINY = [
    *("--steps", "2", "--warm-start.steps", "2", "--warm-start.batch-size", "8"),
    *("--fresh.hidden-size", "32", "--fresh.num-layers", "2", "--fresh.intermediate-size", "64"),
    *("--rollout.prompts", "4", "--rollout.group-size", "4", "--eval.problems", "8"),
    *("--sampler.slots", "16", "--sampler.prefill-rows", "4"),
    *("--packing.micro-batch-tokens", "256", "--packing.row-length", "64"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory, said = tmp_path_factory.mktemp("cli") / "run", io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main(["train", *TINY, "--run-dir", str(directory), "--seed", "3"]) == 0
    assert re.search(r"warm start 2/2 +loss \d+\.\d{4}\n", said.getvalue())
    assert said.getvalue().count("first scored completions") == 1
    return directory


def test_a_run_leaves_what_scripts_read(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= {"eval", "steps", "seconds", "tokens", "device", "versions", "git"}
    assert {"before", "after"} <= summary["eval"].keys()
    assert 0 <= summary["eval"]["after"]["pass@1"] <= 1
    rows = metrics.read(run)
    assert [row["step"] for row in rows] == [1, 2]
    named = {"reward/mean", "loss", "grad_norm", "entropy", "completion_length", "logp_gap"}
    assert named | {"time/sample", "time/score", "time/train", "time/step"} <= rows[0].keys()
    assert configs.load(run / "config.json").seed == 3
    assert list((run / "tensorboard").iterdir())
    progress.close(Console(), run, summary)
    shown = capsys.readouterr().out
    assert "before RL" in shown and "after RL" in shown and "pass@1" in shown


@pytest.mark.exact("the command of a finished run changes nothing of it")
def test_the_same_command_has_nothing_left_to_do(run, capsys):
    before = (run / "metrics.jsonl").read_text()
    assert cli.main(["train", *TINY, "--run-dir", str(run), "--seed", "3"]) == 0
    assert "continuing" in capsys.readouterr().out.replace("\n", "")
    assert (run / "metrics.jsonl").read_text() == before


def test_eval_of_a_run(run, capsys):
    given = ["--k", "4", "--problems", "8", "--json", "--score-workers", "0"]
    assert cli.main(["eval", str(run), *given]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["pass@1"] <= first["pass@4"] <= 1 and "maj@4/low" in first
    assert cli.main(["eval", str(run), *given]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_sample_of_a_run(run, capsys):
    given = ["--prompt", "1+2=", "--temperature", "0", "--max-new-tokens", "3", "--n", "2"]
    assert cli.main(["sample", str(run), *given, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["completions"]
    assert rows[0] == rows[1] and set(rows[0]) == {"text", "token_ids", "logps"}
    assert len(rows[0]["token_ids"]) == len(rows[0]["logps"]) <= 3
    assert cli.main(["sample", str(run), *given]) == 0


@pytest.mark.broad
def test_a_method_of_ones_own_is_a_function_and_a_flag(tmp_path, monkeypatch):
    (tmp_path / "my_method.py").write_text(README.split("# my_method.py\n")[1].split("```")[0])
    monkeypatch.chdir(tmp_path)
    given = ["--objective.policy", "my_method:policy", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", *TINY, *given]) == 0
    assert metrics.read(tmp_path / "run")[0]["ratio"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("table", ["recipes", "tasks", "losses", "extensions"])
def test_tables(table, capsys):
    assert cli.main([table, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows and all(row["name"] for row in rows)
    assert cli.main([table]) == 0
    assert capsys.readouterr().out
    assert cli.main([table, rows[0]["name"]]) == 0
    assert capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main([table, "--help"])
    assert f"jaxrl {table} [NAME]" in capsys.readouterr().out


def test_every_extension_is_listed_with_a_summary(capsys):
    assert cli.main(["extensions", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == functions.bundled_extensions()
    assert all(row["summary"].endswith(".") and "\n" not in row["summary"] for row in rows)
    assert cli.main(["extensions", "critik"]) == 2
    assert "did you mean 'critic'" in capsys.readouterr().err


def test_help_of_serve_names_the_training_of_agent_programs(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "jaxrl serve --train" in capsys.readouterr().out


@pytest.mark.parametrize("given", [["--task", "gsm8k"], ["--task=gsm8k"], ["--task"]])
def test_serve_trains_no_other_task_than_the_one_that_is_named(given, capsys, monkeypatch):
    """The task of an agent program has the problems of another, which a flag of its own names."""
    trained = []
    monkeypatch.setattr(train, "main", lambda argv: trained.append(argv) or 0)
    program = ["grpo", "--task-args.command", "python agent.py"]
    assert cli.main(["serve", "--train", *program, *given]) == 2 and not trained
    assert "--task-args.name" in capsys.readouterr().err
    for more in ([], ["--task", "agent_program"], ["--task-args.name", "gsm8k"]):
        assert cli.main(["serve", "--train", *program, *more]) == 0
        assert trained.pop() == [*program, *more, "--task", "agent_program"]


def test_the_doctor_knows_every_extra():
    project = tomllib.loads((tiny.ROOT / "pyproject.toml").read_text())["project"]
    packaged = {"smollm2", "gemma3"}  # models, which have rows of their own
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - packaged


def test_show_is_the_config_that_train_would_run(capsys):
    overrides = ["--steps", "7", "--task-args.digits", "3", "--objective.policy-args.clip_high=0.3"]
    assert cli.main(["show", "quickstart", *overrides]) == 0
    shown = configs.from_dict(configs.Config, json.loads(capsys.readouterr().out))
    config = recipes.load("quickstart")
    assert shown == dataclasses.replace(
        config,
        steps=7,
        task_args=config.task_args | {"digits": 3},
        objective=dataclasses.replace(config.objective, policy_args={"clip_high": 0.3}),
    )


def test_every_recipe_is_sound():
    for name in recipes.names():
        config = recipes.load(name)
        assert config.recipe == name
        configs.check(config)
        assert configs.from_dict(configs.Config, configs.to_dict(config)) == config


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["tran"], "did you mean 'train'"),
        (["sft"], "did you mean 'jaxrl train sft'"),
        (["grpo", "--lr", "1e-5"], "did you mean 'jaxrl train grpo'"),
        (["train", "quickstrat"], "did you mean 'quickstart'"),
        (["train", "--task", "arithmetik"], "did you mean 'arithmetic'"),
        (["train", "--task-args.digit", "3"], "did you mean 'digits'"),
        (["train", "--objective.policy-args.clip_hi", "1"], "did you mean 'clip_high'"),
        (
            ["train", "--objective.policy", "jaxrl.losses.policy.objectives:grop"],
            "did you mean 'grpo'",
        ),
        (["train", "--objective.aggregation", "token-men"], "did you mean 'token-mean'"),
        (["train", "--rollout.group-size", "1"], "rollout.group_size=1"),
        (["train", "--rollout.max-prompt-tokens", "2"], "rollout.max_prompt_tokens=2"),
        (["train", "--run-dir", "/proc/nowhere"], "run_dir='/proc/nowhere'"),
        (["train", "--mesh.fsdp", "3"], "fsdp=3"),
        (["train", "--model", "/nowhere"], "quickstart needs something to train on: --data FILE"),
        (["train", "--model", "/nowhere", "--task", "arithmetic"], "/nowhere"),
        (["train", "--steps", "0"], "steps=0"),
        (["sample"], "name a model"),
        (["sample", "fresh", "--prompt", "1"], "run directory"),
        (["eval", "/nowhere", "--task", "arithmetic"], "/nowhere"),
        (["eval", "smollm2-135m"], "--task NAME"),
    ],
)
def test_refusals_name_the_thing_and_the_remedy(argv, says, capsys, monkeypatch):
    def compiled(*args, **kwargs):
        raise AssertionError("compiled before the request was checked")

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    assert cli.main(argv) == 2
    assert says in capsys.readouterr().err.replace("\n", " ")


def test_an_unknown_flag_is_refused_with_the_nearest(capsys):
    assert cli.main(["train", "--stepz", "3"]) == 2
    assert "did you mean '--steps'" in capsys.readouterr().err


@pytest.mark.parametrize("default", [SampleConfig(), EvaluateConfig()])
@pytest.mark.parametrize(
    ("given", "chat"),
    [
        *(([], None), (["--chat"], True), (["--no-chat"], False)),
        *((["--chat", "True"], True), (["--chat=False"], False), (["--chat", "None"], None)),
    ],
)
def test_a_switch_that_may_be_none_is_a_switch(default, given, chat):
    for argv in (given, [*given, "--seed", "3"], ["--seed", "3", *given]):
        made = flags.parse(default, argv, prog="jaxrl")
        assert made == dataclasses.replace(default, chat=chat, seed=3 if "--seed" in argv else 0)


def test_what_reads_the_output_may_end_first():
    """As `jaxrl show keydoor --yaml | head -1` does."""
    command = [sys.executable, "-m", "jaxrl.launch.cli", "show", "keydoor", "--yaml"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run.stdout.close()
    assert run.stderr.read() == "" and run.wait(60) == 1


def test_flags_of_dict_fields():
    config = configs.Config(task_args={"digits": 2})
    parsed = flags.parse(
        config,
        ["--task-args.operators", "+-", "--task-args.digits=3", "--task-args.partial", "--seed=4"],
        prog="test",
    )
    assert parsed.task_args == {"digits": 3, "operators": "+-", "partial": True}
    assert parsed.seed == 4


def test_the_parameters_of_a_task_within_a_task_stay_a_text():
    """They are JSON for the outer task to read; a field that holds objects reads it at once."""
    given = ["--task", "with_tools", "--task-args.args", '{"digits": 3}']
    made = flags.parse(Config(), given, prog="jaxrl")
    assert made.task_args == {"args": '{"digits": 3}'}
    assert tasks.get(made.task, **made.task_args).problem("test", 0, 0)
    sampled = flags.parse(SampleConfig(), ["--env-args.args=[1]"], prog="jaxrl")
    assert sampled.env_args == {"args": "[1]"}
    staged = flags.parse(Config(), ["--stages.3", '{"task_args.digits": 3}'], prog="jaxrl")
    assert list(staged.stages.values()) == [{"task_args.digits": 3}]


def test_from_is_fork():
    for given in (["--from", "runs/a@40"], ["--from=runs/a@40"], ["--fork", "runs/a@40"]):
        assert flags.parse(configs.Config(), given, prog="test").fork == "runs/a@40"


def test_sparkline_has_equal_runs():
    assert progress.sparkline([]) == ""
    assert progress.sparkline([0.0, 1.0]) == "▁█"
    assert len(progress.sparkline([0.5] * 100)) == 12


def test_untrusted_text_cannot_steer_the_terminal():
    assert progress._short("a\x1b[31mb\n\u202ec") == r"a\x1b[31mb \u202ec"


def test_fields_of_a_group_may_be_given_together():
    config = recipes.load("quickstart")
    for argv in (["--mesh", "fsdp=64,tensor=4"], ["--mesh=fsdp=64,tensor=4"]):
        parsed = flags.parse(config, [*argv, "--seed", "3"], prog="jaxrl plan")
        assert (parsed.mesh.fsdp, parsed.mesh.tensor, parsed.seed) == (64, 4, 3)


def test_the_doctor_warns_of_sampling_that_training_does_not_follow(tmp_path, capsys):
    """In the forms of four frameworks; what cuts nothing, and experts, give no warning."""
    path = tmp_path / "rl.yml"
    path.write_text(
        "decode_sampling_temperature: 0.9\n"
        "decode_sampling_top_k: 50  # a default\n"
        '{"top_p": 0.95, "top_k": -1, "min_p": 0.0}\n'
        "GRPOConfig(min_p=0.1, top_p=1.0)\n"
        "--rollout-top-k 20\n"
        "moe_router_top_k: 8\n"
        "top_p: .9\n"
        "min_p=5e-2\n"
        "    top_k: int = 50\n"
    )
    assert cli.main(["doctor", "--recipe", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" truncates")[0] for line in lines] == [
        "line 2: decode_sampling_top_k=50",
        "line 3: top_p=0.95",
        "line 4: min_p=0.1",
        "line 5: rollout-top-k=20",
        "line 7: top_p=.9",
        "line 8: min_p=5e-2",
        "line 9: top_k=50",
    ]
    assert "--rollout.top-k 50" in lines[0]
    assert cli.main(["doctor", "--recipe", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err
