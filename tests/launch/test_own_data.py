"""A newcomer's commands: own data and reward, config files, continuing, sweeps, Python."""

import dataclasses
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import gguf
import jax
import pytest
from rich.console import Console

import jaxrl
from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.data.sources import rows
from jaxrl.data.types import Problem, Score
from jaxrl.extensions.teacher import TeacherConfig
from jaxrl.launch import algorithms, cli, progress, recipes, train
from jaxrl.launch.devices import Accelerators
from jaxrl.launch.method import Method
from jaxrl.launch.report import alerts  # fmt: skip
from jaxrl.launch.settings import configs as files
from jaxrl.launch.settings import flags, help_train, short, sweep, trust
from jaxrl.record import metrics, runs
from jaxrl.record.metrics import Timer
from jaxrl.rollout import files as rows_of
from jaxrl.rollout import policy
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.run import assemble, offline, placement
from jaxrl.run.context import Callbacks
from jaxrl.run.guards import Stopped
from jaxrl.training.objective import ObjectiveConfig
from tests.jaxrl import tiny
from tests.launch.test_cli import README, TINY

SMALL = [
    *TINY[TINY.index("--fresh.hidden-size") :],
    *("--max-new-tokens", "4", "--max-prompt-tokens", "16", "--packing.bucket", "16"),
    *("--sampler.bucket", "16", "--checkpoint.every", "1"),
]
REWARD = """
def score(completion, answer, difficulty):
    return float(len(completion) > 2) + difficulty

def ranked(completions, **columns):
    order = sorted(range(len(completions)), key=lambda i: len(completions[i]))
    return {"not": "a list"} if columns["answer"][0] == "never" else [float(i) for i in order]

def broken(completion):
    return completion.nothing

def distinct(completion):
    return len(set(completion)) / 8
"""
ROWS = [{"question": f"{i}+{i}=", "answer": str(2 * i), "difficulty": i % 2} for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_reward.py").write_text(REWARD)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("COLUMNS", "200")


def command(*more, reward="my_reward.py:score", steps="2", run_dir="run"):
    own = f"--prompt-column question --answer-column answer --reward {reward} --steps {steps}"
    return [
        *("train", "grpo", "--model", "fresh", "--data", "train.jsonl", *own.split()),
        *("--run-dir", run_dir, *SMALL, *more),
    ]


@pytest.fixture(scope="module")
def run(folder):
    before = Path.cwd()
    os.chdir(folder)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        assert cli.main(command()) == 0
    finally:
        os.chdir(before)
        del os.environ["XDG_STATE_HOME"]
    return folder / "run"


def test_own_data_and_reward_in_one_line_and_on_without_flags(run, capsys, monkeypatch):
    assert [row["step"] for row in metrics.read(run)] == [1, 2]
    log = runs.load_run(run)
    assert set(log.evals["reward"]) <= {0.0, 1.0, 2.0} and len(log.evals["reward"]) > 4
    monkeypatch.chdir("/")
    assert cli.main(["train", str(run), "--steps", "3"]) == 0
    assert "continuing" in capsys.readouterr().out
    assert [row["step"] for row in metrics.read(run)] == [1, 2, 3]


def test_the_same_run_from_somebody_else_needs_trust(run, folder, capsys):
    shutil.copytree(run, folder / "sent", dirs_exist_ok=True)
    assert cli.main(["train", "sent"]) == 2
    assert "my_reward.py:score" in capsys.readouterr().err
    assert cli.main(["eval", "sent", "--problems", "1"]) == 2
    assert trust.started(str(run)) and not trust.started("sent")
    nested = folder / "nested"
    (nested / "checkpoints").mkdir(parents=True, exist_ok=True)
    for model in ("sent", str(nested)):  # a run that begins from theirs, or from itself
        record = {"config": configs.to_dict(configs.Config(model=model))}
        (nested / "config.json").write_text(json.dumps(record))
        assert not trust.started(str(nested))
    config, options = files.resolve(["sent", "--trust"])
    assert options.trust and config.run_dir == "sent" and config.task == "file"


def test_sampling_from_a_run_of_ones_own_needs_no_trust(run, capsys):
    given = ["--prompt", "1+1=", "--max-new-tokens", "2", "--json"]
    assert cli.main(["sample", str(run), *given]) == 0
    assert json.loads(capsys.readouterr().out)["completions"]


def test_a_group_is_scored_at_once_with_other_rewards(capsys):
    given = command(reward="my_reward.py:ranked form=number*0.5", steps="1", run_dir="group")
    assert cli.main(given) == 0
    row = metrics.read(Path("group"))[0]
    assert row["reward/ranked"] == pytest.approx(1.5) and "reward/form/format" in row
    said = capsys.readouterr().out
    assert "first scored completions" in said and "ranked" in said


@pytest.mark.broad
def test_a_failing_reward_stops_the_run_and_a_corrected_one_continues_it(capsys):
    given = command(reward="my_reward.py:broken", run_dir="broken")
    assert cli.main(given) == 1
    said = capsys.readouterr()
    where = "my_reward.py, line 10, in broken: AttributeError: 'str' object has no attribute"
    assert f"could not be scored: exception: {where}" in said.out and where in said.err
    assert "all 4 completions" in said.err
    assert cli.main(command(steps="1", run_dir="broken")) == 0  # nothing had been trained


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["grpo"], "grpo needs a model: --model"),
        (["grpo", "--model", "fresh"], "--data FILE with --reward"),
        (["grpo", "--model", "fresh", "--data", "train.jsonl"], "--data needs a reward"),
        (["grpo", "--data", "nowhere.jsonl", "--reward", "number", "--model", "fresh"], "nowhere"),
        (["grpo", "--reward", "number"], "name them with --data FILE"),
        (["quickstart", "--lr"], "--optimizer.learning-rate"),
        (["quickstart", "--step", "4"], "did you mean '--steps'?"),
        (["quickstart", "--oversampling", "4"], "did you mean '--rollout.oversampling'?"),
        (["grop"], "did you mean 'grpo'?"),
        (["quickstart", "--recipe", "raft"], "jaxrl train raft"),
        (["--recipe=raft"], "jaxrl train raft"),
        (["nowhere.yaml"], "no file 'nowhere.yaml'"),
        (["runs/nowhere"], "neither a recipe nor a run directory"),
        (["quickstart", "--seed", "5000000000"], "seed=5000000000"),
        (["quickstart", "--epochs", "2"], "has no end"),
        ([*command(reward="my_reward.py:scor")[1:]], "it has score"),
    ],
)
def test_refusals_say_what_to_do_and_leave_no_directory(argv, says, capsys, folder):
    before = sorted(folder.rglob("config.json"))
    try:
        assert cli.main(["train", *argv]) == 2
    except SystemExit as ended:
        assert ended.code == 2
    assert says in capsys.readouterr().err.replace("\n", " ")
    assert sorted(folder.rglob("config.json")) == before and not (folder / "refused").exists()


def test_another_task_starts_from_its_own_parameters():
    config, _ = files.resolve(["quickstart", "--task", "countdown", "--task-args.numbers", "3"])
    assert (config.task, config.task_args) == ("countdown", {"numbers": 3})
    kept, _ = files.resolve(["quickstart", "--task-args.digits", "3"])
    assert kept.task_args == {"digits": 3, "operators": "+", "slips": 0.65}


@pytest.mark.sample(24, broad=12)
@pytest.mark.parametrize("name", [*recipes.names(), *algorithms.names()])
def test_every_recipe_is_read_back_from_its_yaml(name, tmp_path):
    config = recipes.load(name)
    (tmp_path / "my.yaml").write_text(files.dump(config))
    assert files.resolve([str(tmp_path / "my.yaml")])[0] == config


def test_yaml_of_the_command_line_is_read_back(capsys, tmp_path):
    given = ["ppo", *command()[2:], "--critic.clip", "0.3", "--stages.1", '{"task": "maze"}']
    assert cli.main(["show", *given, "--yaml"]) == 0
    (tmp_path / "my.yaml").write_text(capsys.readouterr().out)
    assert files.resolve([str(tmp_path / "my.yaml")])[0] == files.resolve(given)[0]
    changed, _ = files.resolve([str(tmp_path / "my.yaml"), "--lr", "0.5", "--steps", "9"])
    assert (changed.optimizer.learning_rate, changed.steps) == (0.5, 9)


def test_a_config_file_takes_short_names_and_is_checked(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "recipe: dr-grpo\nmodel: fresh\ndata: train.jsonl\nprompt_column: question\n"
        "reward: [number, style=contains*0.1]\nlr: 1e-5\noptimizer: {b1: 5e-1}\n"
    )
    config, _ = files.resolve([str(path)])
    assert (config.optimizer.learning_rate, config.optimizer.b1) == (1e-5, 0.5)
    assert config.objective == recipes.load("dr_grpo").objective and config.task == "file"
    for text, says in (
        (
            "optimizer: {learning_rat: 1}",
            "optimizer.learning_rat: there is no field .*'learning_rate'",
        ),
        ("steps: many", "steps='many': must be of type int"),
        ("rollout: 3", "rollout=3: must hold fields"),
        ("stepz: 3", "there is no field 'stepz'; .*steps"),
        ("a: [", "mine.yaml"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=says):
            files.resolve([str(path)])


def test_a_misspelled_recipe_in_a_file_is_refused_but_not_the_name_of_a_whole_config(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: dr-grppo\nsteps: 3\n")
    with pytest.raises(ValueError, match=r"mine.yaml: recipe 'dr-grppo' is unknown; .*'dr_grpo'"):
        files.resolve([str(path)])
    config = dataclasses.replace(configs.Config(), recipe="my_own", steps=7)
    path.write_text(files.dump(config))
    assert files.resolve([str(path)])[0] == config


@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_on_or_off_in_a_file_and_on_the_command_line(value, tmp_path):
    made = tmp_path / "mine.yaml"
    written = str(value).lower()
    made.write_text(f"recipe: grpo\nchat: {written}\nprofile: {written}\ntrust: {written}\n")
    config, options = files.resolve([str(made)])
    assert (config.rollout.chat, options.profile, options.trust) == (value, value, value)
    config, options = files.resolve([str(made), "--no-chat=False", "--profile=false"])
    assert (config.rollout.chat, options.profile, options.trust) == (True, False, value)
    assert files.resolve(["grpo", f"--chat={written}"])[0].rollout.chat is value
    assert files.resolve(["grpo", f"--no-chat={written}"])[0].rollout.chat is not value


def test_a_switch_takes_no_other_value():
    with pytest.raises(ValueError, match="--chat=maybe: is on or off; give true or false"):
        files.resolve(["grpo", "--chat=maybe"])


def test_a_recipe_is_a_python_file(tmp_path):
    (tmp_path / "my_recipe.py").write_text(
        "import dataclasses\nfrom jaxrl.launch.recipes.ready import quickstart\n\n\n"
        "def config():\n    return dataclasses.replace(quickstart.config(), steps=7)\n"
    )
    config, _ = files.resolve([str(tmp_path / "my_recipe.py"), "--seed", "2"])
    assert (config.recipe, config.steps, config.seed) == ("my_recipe", 7, 2)


def test_a_method_in_a_file_is_put_on_the_users_model_or_the_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(short, "has_template", lambda model: False)
    path = tmp_path / "wider_clip.py"
    path.write_text(
        "from jaxrl.launch.method import Method\n"
        "from jaxrl.training.objective import ObjectiveConfig\n\n"
        'METHOD = Method(objective=ObjectiveConfig(policy_args={"clip_high": 0.28}))\n'
    )
    own = ["--model", "smollm2-135m", "--data", "train.jsonl", "--reward", "number"]
    config, _ = files.resolve([str(path), *own])
    assert (config.recipe, config.task, config.model) == ("wider_clip", "file", "smollm2-135m")
    assert config.objective.policy_args == {"clip_high": 0.28}
    assert config.rollout == files.resolve(["grpo", *own])[0].rollout
    small, _ = files.resolve([str(path)])
    quickstart = recipes.load("quickstart")
    assert small == dataclasses.replace(
        quickstart, recipe="wider_clip", objective=config.objective, run_dir=small.run_dir
    )


@pytest.mark.parametrize("name", recipes.names())
def test_a_method_sets_fields_of_a_config_and_its_example_the_rest(name):
    """What is the example's alone, such as a task, is no part of the method."""
    module = recipes.module(name)
    if not hasattr(module, "METHOD"):
        assert recipes.family(name) in ("ready", "from_data") and callable(module.config)
        return
    example = set(module.EXAMPLE.changes)
    assert example <= {field.name for field in dataclasses.fields(Config)}
    plain = recipes.load("grpo")
    method = recipes.load(name, "smollm2-135m")
    for field in ("task", "task_args", "domains", "fresh", "warm_start", "packing", "sampler"):
        assert getattr(method, field) == getattr(plain, field), field


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_brings_nothing_of_a_toy(name):
    config = recipes.load(name)
    configs.check(config)
    assert (config.model, config.task, config.task_args) == ("", "", {})
    assert config.rollout.max_new_tokens == 512 and not config.warm_start.steps


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in recipes.names()
        if recipes.load(name).model == "fresh" and name not in ("keydoor", "retrieval")
    ],
)
def test_a_method_on_another_model_leaves_its_toy_behind(name):
    toy, base = recipes.load(name), recipes.load("grpo")
    made = recipes.load(name, "smollm2-135m")
    same = ("task", "task_args", "domains", "fresh", "warm_start", "optimizer", "sampler", "eval")
    assert [getattr(made, f) for f in same] == [getattr(base, f) for f in same]
    assert (made.rollout.max_prompt_tokens, made.rollout.max_new_tokens) == (512, 512)
    method = getattr(recipes.module(name), "METHOD", Method())
    assert made.objective == (method.objective or ObjectiveConfig())
    assert made.extensions == (method.extensions or {})
    assert all(start < made.steps for start in made.stages)
    assert recipes.load(name, "fresh") == recipes.load(name, None) == toy


def test_a_method_is_put_on_another_model_by_a_flag_and_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(short, "has_template", lambda model: model == "smollm2-135m")
    given = ["--data", "train.jsonl", "--reward", "number"]
    made, _ = files.resolve(["par", "--model-name-or-path", "smollm2-135m", *given])
    assert made.rollout.max_new_tokens == 512 and made.warm_start.steps == 0
    assert made.rollout.chat and made.task == "file"
    (tmp_path / "my.yaml").write_text(
        "{recipe: par, model: smollm2-135m, data: train.jsonl, reward: number, lr: 1e-5}"
    )
    filed, _ = files.resolve([str(tmp_path / "my.yaml")])
    assert filed.rollout.max_new_tokens == 512 and filed.optimizer.learning_rate == 1e-5
    assert filed.rollout.chat and filed.model == "smollm2-135m"
    longer, _ = files.resolve(["par", "--model", "smollm2-135m", *given, "--max-new-tokens", "64"])
    assert longer.rollout.max_new_tokens == 64
    assert files.resolve(["quickstart", "--steps", "3"])[0].rollout.max_new_tokens == 8


@pytest.mark.sample(5, broad=4)
@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_passes_the_checks_of_a_run_and_is_in_the_readme(name):
    config, _ = files.resolve([name, *command()[2:]])
    assemble.assemble(config)
    spelled = {"reinforce_pp": "reinforce++"}.get(name, name.replace("_", "-"))
    assert f"`jaxrl train {spelled}` |" in README


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_trains(name, tmp_path):
    more = [*command(steps="1", run_dir=str(tmp_path))[2:], "--batch-size", "4"]
    group = str(recipes.load(name).rollout.group_size)
    assert cli.main(["train", name, *more, "--group-size", "1" if group == "1" else "4"]) == 0
    assert len(metrics.read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("spelled", "name"), [("reinforce++", "reinforce_pp"), ("dr-grpo", "dr_grpo"), ("GRPO", "grpo")]
)
def test_algorithms_are_spelled_as_in_papers(spelled, name):
    assert recipes.load(spelled).recipe == name


def test_every_short_flag_is_of_a_field_and_none_hides_one():
    config = configs.Config()
    known = set(flags.names(config))
    taught = flags.names(TeacherConfig(), "teacher.")
    assert set(short.ALIASES.values()) <= known | set(taught)
    shadowed = {n for n in short.NAMES if n in known}
    assert not shadowed
    words = {w.strip(",;()").removeprefix("--") for w in help_train.TEXT.split() if "--" in w[:3]}
    unknown = (
        words - known - set(short.NAMES) - {"help-all", "parallel", "together", "with", "yaml"}
    )
    assert not unknown and len(help_train.TEXT.splitlines()) < 50


def test_help_and_version_are_quick_and_short(tmp_path):
    def output(*argv):
        code = (
            "import sys, resource; from jaxrl.launch import cli; "
            f"cli.main({list(argv)!r}); "
            "print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 'jax' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        *lines, last = done.stdout.splitlines()
        seconds, loaded = last.split()
        assert float(seconds) < 1.5 and loaded == "False"
        return lines

    os.chdir(Path(jaxrl.__file__).parents[1])
    assert "grpo" in " ".join(output("train", "--help"))
    assert output("--version")[0].startswith("jaxrl ")


@pytest.mark.parametrize("group", ["objective", "optimizer", "critic", "rollout"])
def test_a_group_of_flags_has_its_help(group, capsys):
    assert cli.main(["help", group]) == 0
    said = capsys.readouterr().out
    field = {"objective": "kl-coef", "optimizer": "schedule", "critic": "clip"}.get(group, "chat")
    assert f"--{group}.{field}" in said


def test_every_flag_is_listed_with_its_whole_sentence(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # so that nothing is wrapped
    assert cli.main(["train", "quickstart", "--help-all"]) == 0
    shown = capsys.readouterr().out
    listed = {word for word in shown.split() if word.startswith("--")}
    fields = {f"--{n}" for n in flags.names(configs.Config()) if not n.startswith("no-")}
    fields = {f for f in fields if ".no-" not in f}
    assert fields <= listed and "jaxrl help NAME" in shown and "critic" in shown
    assert "removes it from training and evaluation; `truncate` keeps its last tokens" in shown


def test_help_of_no_group_names_the_groups(capsys):
    assert cli.main(["help", "objektive"]) == 2
    assert "did you mean 'objective'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["recipes", "grpo"], "DeepSeekMath"),
        (["recipes", "quickstart"], "arithmetic"),
        (["tasks", "arithmetic"], "digits"),
        (["losses", "ppo_clip"], "policy"),
    ],
)
def test_one_thing_can_be_shown(argv, says, capsys):
    assert cli.main(argv) == 0
    assert says in capsys.readouterr().out
    assert cli.main([argv[0], "no_such_name"]) == 2


def test_a_sweep_is_every_combination_in_a_directory_of_its_own():
    given = ["quickstart", "--seed", "0,1,2", "--lr", "1e-5,3e-5", "--run-dir", "d", "--steps", "3"]
    found = sweep.arms(given)
    assert len({arm.config.run_dir for arm in found}) == 6
    values = {(a.config.seed, a.config.optimizer.learning_rate, a.config.steps) for a in found}
    assert values == {(s, lr, 3) for s in (0, 1, 2) for lr in (1e-5, 3e-5)}
    assert sweep.arms(["quickstart", "--mesh", "fsdp=2,tensor=4", "--seed", "3"]) == []


def test_the_command_of_each_run_of_a_sweep_gives_its_config():
    for given in (["--run-dir", "d"], ["--out=d"], []):
        for arm in sweep.arms(["quickstart", "--seed", "0,1", *given, "--steps", "3"]):
            assert files.resolve(list(arm.argv)) == (arm.config, arm.options)


def test_so_many_runs_are_trained_at_once(monkeypatch, capsys, folder):
    going, most, commands, lock = 0, 0, [], threading.Lock()

    def train(command, *, env, stdout, stderr):
        nonlocal going, most
        with lock:
            going, most = going + 1, max(most, going + 1)
            commands.append((command[3:], env["CUDA_VISIBLE_DEVICES"]))
        time.sleep(0.2)
        with lock:
            going -= 1
        return types.SimpleNamespace(returncode=3 if "--seed=1" in command else 0)

    monkeypatch.setattr(sweep.devices, "find_accelerators", lambda: Accelerators(gpus=("0", "1")))
    monkeypatch.setattr(sweep.subprocess, "run", train)
    given = ["train", "quickstart", "--seed", "0,1,2,3", "--run-dir", "many", "--parallel", "2"]
    assert cli.main(given) == 3
    assert most == 2 and {where for _, where in commands} == {"0", "1"}
    assert sorted(command[-1] for command, _ in commands) == [
        f"--run-dir=many/seed={i}" for i in range(4)
    ]
    assert "seed=1: exit status 3" in capsys.readouterr().out
    assert cli.main(["train", "quickstart", "--parallel", "2"]) == 2
    assert "is for several runs" in capsys.readouterr().err
    assert cli.main(["train", "quickstart", "--seed", "0,1", "--parallel", "0"]) == 2
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "one,two")
    assert cli.main(given) == 2
    assert "this is one of 2 processes" in capsys.readouterr().err


def adapters(*more, run_dir, model="run", rank="2"):
    """The command of a run, or of a sweep, of adapters on the model of `run`."""
    argv = command("--lora.rank", rank, *more, reward="my_reward.py:distinct", run_dir=run_dir)
    return [model if word == "fresh" else word for word in argv]


@pytest.mark.parametrize(
    "more, why",
    [
        (dict(rank="0"), "lora.rank=0 trains the base itself"),
        (dict(rank="2,4"), "lora.rank is 2 and 4, and runs may differ in seed, optimizer.learning"),
        (dict(model="fresh"), "model='fresh' with seeds [0, 1]: each seed has a base of its own"),
        (["--group-size", "2,4"], "rollout.group_size is 2 and 4"),
        (["--optimizer.b1", "0.8,0.9"], "optimizer.b1 is 0.8 and 0.9"),
        (["--with", "average"], "extensions ['average'] may hold a state or models of their own"),
        (["--warm-start.steps", "2"], "warm_start.steps=2 with seeds [0, 1] trains a base for"),
        (["--asynchronous.staleness", "1"], "asynchronous.staleness is set, and a run would sa"),
        (["--parallel", "2"], "--together with --parallel 2: leave one of them out"),
        (["--profile"], "--profile traces one run at a time"),
        (["--memory", "1GiB"], "--memory 1GiB would fit a program for each run"),
        ([], "this is one of 2 processes"),
    ],
)
def test_runs_that_cannot_hold_one_base_are_refused(run, more, why, monkeypatch, capsys):
    if not more:
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "one,two")
    settings, flags_ = (more, []) if isinstance(more, dict) else ({}, more)
    argv = adapters("--seed", "0,1", "--together", *flags_, run_dir="refused", **settings)
    assert cli.main(argv) == 2
    said = capsys.readouterr().err
    assert why in said and ("--parallel" in flags_ or "trains them one after another" in said)
    assert not Path("refused").exists()
    assert cli.main(adapters("--together", run_dir="refused")) == 2
    assert "--together is for several runs" in capsys.readouterr().err


def turns_of_three(act, ending_s=0.0):
    """The statuses and the turns of runs of two steps; `act(number, step, turn)` at each step."""
    arms, turns = sweep.arms(["quickstart", "--seed", "0,1,2", "--run-dir", "turns"]), []

    def train_run(arm, console, turn):
        watch = turn.wrap(Callbacks())
        for step in (1, 2):
            turns.append((arm.config.seed, step))
            if (status := act(arm.config.seed, step, turn)) is not None:
                return status
            try:
                watch.step(step, {})
            except SystemExit:
                time.sleep(ending_s)
                raise
        return 0

    return sweep.together(train_run, 30.0)(arms), turns


def test_runs_take_turns_and_one_can_end_the_others(folder, capfd):
    steps = [(n, step) for step in (1, 2) for n in range(3)]
    assert turns_of_three(lambda *_: None) == ([0] * 3, steps)

    def full(number, step, turn):
        if (number, step) == (1, 1):
            turn.end_all("the disk is full")
            return 1
        return None

    assert turns_of_three(full) == ([75, 1, 75], steps[:2])
    capfd.readouterr()
    last_of_two = [*steps[:4], steps[5]]
    assert turns_of_three(lambda n, step, _: 1 / (n - 1) and None) == ([0, 1, 0], last_of_two)
    shown = capfd.readouterr().err
    assert shown.startswith("jaxrl: seed=1: Traceback") and "ZeroDivisionError" in shown


def count_arms():
    """Threads that train runs of a sweep."""
    return sum("train_arm" in thread.name for thread in threading.enumerate())


def test_a_thread_that_cannot_be_started_leaves_none_waiting(folder, monkeypatch):
    start = threading.Thread.start

    def start_two(thread):
        if count_arms() == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    turns = []
    with pytest.raises(RuntimeError, match="can't start"):
        turns_of_three(lambda *turn: turns.append(turn))
    assert not turns and not count_arms()


@pytest.mark.parametrize("when", ["starting", "training"])
def test_a_signal_waits_for_the_steps_of_all(folder, when, monkeypatch):
    """While threads start, or while they train: the step that it comes in is ended."""
    start, steps = threading.Thread.start, []

    def start_and_signal(thread):
        start(thread)
        if when == "starting" and count_arms() == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def act(number, step, turn):
        if when == "training" and (number, step) == (0, 2):  # it is then the last to end
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        steps.append((number, step))

    monkeypatch.setattr(threading.Thread, "start", start_and_signal)
    with pytest.raises(SystemExit) as left:
        turns_of_three(act, ending_s=0.2)
    assert left.value.code == 75 and not count_arms()
    expected = [[(0, 1), (1, 1), (2, 1), (0, 2)]] if when == "training" else [[], [(0, 1)]]
    assert steps in expected


def test_a_full_disk_of_one_run_ends_the_process_once_the_others_are_saved(run, monkeypatch, capfd):
    def train_one(config, watch, *, trust, sharing):
        watch.step(1, row())
        if config.seed == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        watch.step(2, row())

    monkeypatch.setattr(train.loop, "train", train_one)
    left = []
    monkeypatch.setattr(train.os, "_exit", left.append)
    cli.main(adapters("--seed", "0,1", "--together", run_dir="full"))
    output = capfd.readouterr()
    assert left == [1] and "jaxrl: seed=0: " in output.err and "the disk is full" in output.err
    assert "seed=1: exit status 75" in output.out


def test_a_base_of_other_structure_shapes_or_values_is_not_shared():
    frozen = placement.sharing().frozen
    first = {"a": jax.numpy.ones((2, 3)), "b": jax.numpy.zeros(2)}
    assert frozen(first) is frozen(jax.tree.map(jax.numpy.copy, first)) is first
    for other in (
        {"a": first["a"]},
        {**first, "c": first["b"]},
        {**first, "a": jax.numpy.ones(3)},
        {**first, "b": jax.numpy.ones(2)},
    ):
        with pytest.raises(ValueError, match=r"this run's base differs .*leave --together out"):
            frozen(other)


SEEDS_AND_RATES = ["--seed", "0,1", "--lr", "3e-2,1e-3"]
LAST = "seed=1,lr=1e-3"
REGULARISED = ["--kl-coef", "0.05", "--optimizer.weight-decay", "0.1"]
DECAYS = ["--kl-coef", "0.05", "--optimizer.weight-decay", "0,0.1"]
LAST_DECAY, OTHER_DECAY = f"{LAST},weight_decay=0.1", f"{LAST},weight_decay=0"
"""The divergence is to the base, which is the reference of all of them."""


@pytest.mark.broad
def test_adapters_trained_together_and_stopped_equal_those_trained_alone(run, monkeypatch, capfd):
    """Of other seeds, rates and decays; SIGTERM in the first step of the last, then continued.

    After every update all of a process have the same arrays of the base.
    """
    argv = adapters(*SEEDS_AND_RATES, *DECAYS, "--together", run_dir="together")
    arms = sweep.arms(argv[1:-1])
    some = [arm for arm in arms if arm in (arms[0], arms[-1]) or arm.name == OTHER_DECAY]
    monkeypatch.setattr(sweep, "arms", lambda words: some if "0,1" in words else [])
    write, stopped, shared_update = metrics.MetricsLog.write, [], placement.shared_update
    bases, sharings = [], []

    def watched(shared, first, make, numbers, part, like):
        update = shared_update(shared, first, make, numbers, part, like)
        sharings.append(shared)

        def of_run(state, *batch):
            result = update(state, *batch)
            bases[-1] += [jax.tree.leaves(part.split(s.params)[1]) for s in (state, result[0])]
            return result

        return of_run

    def ending(log, step, row):
        write(log, step, row)
        if not stopped and Path("together", LAST_DECAY, "metrics.jsonl").exists():
            stopped.append(step)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(metrics.MetricsLog, "write", ending)
    monkeypatch.setattr(placement, "shared_update", watched)
    bases.append([])
    with pytest.raises(SystemExit) as left:
        cli.main(argv)
    assert left.value.code == 75 and stopped == [1]
    bases.append([])
    assert cli.main(argv) == 0
    for of_process in bases:
        assert of_process[0]
        assert {tuple(map(id, leaves)) for leaves in of_process} == {(*map(id, of_process[0]),)}
    assert sum(map(len, bases)) == 12  # before and after two updates of three runs
    for shared in sharings:
        assert [program._cache_size() for program in shared.programs.values()] == [1]
    assert "continuing" in Path(f"together/{LAST_DECAY}.log").read_text()
    assert f"{LAST_DECAY}: done" in capfd.readouterr().out
    alone = adapters("--seed", "1", "--lr", "1e-3", *REGULARISED, run_dir="single")
    assert cli.main(alone) == 0
    assert tiny.close(Path("together", LAST_DECAY), Path("single"), 1e-5)
    places = (f"together/{name}" for name in (LAST_DECAY, OTHER_DECAY))
    rows = [metrics.read(Path(place)) for place in (*places, "single")]
    for field in ("reward/mean", "loss", "kl", "learning_rate", "grad_norm"):
        values = [[row[field] for row in of_run] for of_run in rows]
        assert values[0] == pytest.approx(values[2], abs=1e-5), field
    assert rows[0][1]["loss"] != rows[1][1]["loss"] and rows[0][0]["grad_norm"] > 0


@pytest.mark.slow
@pytest.mark.exact("adapters that are trained together, killed and continued equal uninterrupted")
def test_adapters_trained_together_continue_after_a_kill(run):
    killed, straight = (
        adapters(*SEEDS_AND_RATES, *REGULARISED, "--together", run_dir=name)
        for name in ("killed", "straight")
    )
    process = subprocess.Popen([sys.executable, "-m", "jaxrl.launch.cli", *killed])
    while not Path("killed", LAST, "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not list(Path("killed").glob("*/summary.json"))
    assert cli.main(killed) == cli.main(straight) == 0
    for arm in sorted(path.name for path in Path("straight").iterdir() if path.is_dir()):
        assert tiny.artefacts(Path("killed", arm)) == tiny.artefacts(Path("straight", arm))


@pytest.mark.broad
def test_a_sweep_trains_in_turn_and_compares(capsys):
    assert cli.main(command("--seed", "0,1", steps="1", run_dir="swept")) == 0
    assert Path("swept/seed=1/summary.json").exists() and Path("swept/report.html").exists()
    assert "seed=0" in capsys.readouterr().out


@pytest.mark.broad
def test_a_sweep_over_rows_of_a_file_shows_the_figures_that_they_have(capsys):
    rows = [{"prompt": f"{i}+1?", "completion": str(i + 1)} for i in range(8)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tiny = SMALL[: SMALL.index("--rollout.prompts")]
    given = ["train", "sft", "--model", "fresh", "--data", "rows.jsonl", "--batch-size", "2"]
    given += ["--steps", "1", "--seed", "0,1", "--run-dir", "tuned"]
    assert cli.main([*given, *tiny]) == 0
    shown = capsys.readouterr().out.rpartition("loss before")[2]
    assert "loss after" in shown and "pass@1" not in shown and shown.count("seed=") == 2
    assert Path("tuned/report.html").exists()


def test_figures_of_a_sweep_are_there_or_not(tmp_path):
    for name, before in (("a", {"loss": 2.0, "margin": 0.5}), ("b", {"loss": 1.0})):
        (tmp_path / name).mkdir()
        outcome = {"eval": {"before": before, "after": before}, "seconds": 3.0}
        (tmp_path / name / "summary.json").write_text(json.dumps(outcome))
    table = sweep.table(["a", "b", "c"], [tmp_path / name for name in "abc"])
    heads = ["run", "loss before", "loss after", "margin before", "margin after", "seconds"]
    assert [column.header for column in table.columns] == heads
    assert list(table.columns[3].cells) == ["0.500", "-", "-"]
    assert list(table.columns[5].cells) == ["3", "3", "unfinished"]


@pytest.mark.broad
def test_python_trains_with_a_function_of_the_session(folder):
    seen = []

    def mine(completion, answer):
        seen.append(answer)
        return {"long": len(completion) / 4, "some": 0.5}

    sizes = dict(zip(SMALL[::2], SMALL[1::2], strict=True))
    fields = {
        k.removeprefix("--").replace("-", "_").replace(".", "__"): int(v) for k, v in sizes.items()
    }
    config = jaxrl.recipes.grpo(
        model="fresh", data=folder / "train.jsonl", reward=mine, prompt_column="question",
        steps=2, run_dir=str(folder / "python"), lr=1e-4, **fields,
    )  # fmt: skip
    result = jaxrl.train(config, quiet=True)
    assert seen and result.directory == folder / "python"
    assert list(result.metrics["step"]) == [1, 2] and "reward/long" in result.metrics
    assert result.summary["steps"] == 2
    failing = dataclasses.replace(config, run_dir=str(folder / "failing"))
    broken = jaxrl.recipes.grpo(
        model="fresh", data=folder / "train.jsonl", reward=lambda completion: 1 / 0
    )
    with pytest.raises(Stopped, match="ZeroDivisionError"):
        jaxrl.train(dataclasses.replace(failing, task_args=broken.task_args), quiet=True)


def test_python_makes_recipes_that_learn_from_a_file(folder):
    """Names mean what flags mean there."""
    config = jaxrl.recipes.sft(
        model="smollm2-135m", data=folder / "train.jsonl", batch_size=4, prompt_column="question",
        test_data="held.jsonl", lr=1e-4,
    )  # fmt: skip
    argv = ["sft", "--model", "smollm2-135m", "--data", str(folder / "train.jsonl"), "--lr=1e-4"]
    argv += ["--batch-size=4", "--prompt-column=question", "--test-data=held.jsonl"]
    assert config == files.resolve(argv)[0] and config.data.batch_size == 4


@pytest.mark.parametrize("recipe", ["pretrain", "pairwise_reward"])
def test_epochs_count_what_a_step_takes(recipe, tmp_path):
    """Pieces of texts, and both questions of a comparison: an epoch reads all rows once."""
    made = [{"text": f"{n} " + "word " * 30} for n in range(20)]
    if recipe == "pairwise_reward":
        made = [{"prompt": f"a{n}", "chosen": "b", "rejected": "c"} for n in range(20)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in made))
    argv = [recipe, "--model", "fresh", "--data", str(path), "--epochs", "2"]
    argv += ["--batch-size", "4", "--test-share", "0.2"]
    argv += ["--data.max-tokens", "16"] if recipe == "pretrain" else []
    config, _ = files.resolve(argv)
    model, tokenizer = policy.describe(config)
    found = rows_of.read(config.data, config.data.path)
    kept, _ = rows.divide(found, config.data.eval_share, config.eval.problems)
    batches = offline.open_rows(config, Policy(model, {}, tokenizer), found, kept)
    for _ in range(config.steps):
        _, figures = batches.step(None, 0, Timer())
    assert 2 <= figures["epoch"] < 2.2 and config.steps > 2 * len(kept) / 4


def test_a_full_disk_ends_the_run_at_the_next_step():
    said = []
    watch = train._stopping_when_full(Callbacks(note=said.append))
    watch.note("hello")
    watch.step(1, {})
    watch.note(f"WARNING: not saved: [Errno 28] {os.strerror(errno.ENOSPC)}")
    with pytest.raises(OSError, match="No space"):
        watch.step(2, {})
    assert said == ["hello"]


def test_a_run_that_was_stopped_says_what_is_kept(run, tmp_path, capsys):
    train._tell_kept(Console(), run)
    assert f"jaxrl train {run}" in capsys.readouterr().out
    (tmp_path / "new").mkdir()
    train._tell_kept(Console(), tmp_path / "new")
    assert "nothing is kept" in capsys.readouterr().out


def test_the_time_left_is_seen_at_every_width():
    figures = row(
        loss=0.1, completion_length=30.0, logp_gap_max=1e-6, **{"time/step": 1.0, "tokens": 9.0}
    )
    for width in (60, 80, 150):
        console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
        with progress.on_console(console, lambda: None) as watch:
            for step in (1, 2):
                watch.step(step, figures)
                watch.stage("train", step, 100)
        lines = [line for line in console.file.getvalue().splitlines() if "2/100" in line]
        assert lines and all(re.search(r"2/100 \d:\d\d:\d\d .:..:..", line) for line in lines)


@pytest.mark.parametrize("early", [3, 2])
def test_the_first_completions_are_shown_as_soon_as_they_are_scored(early):
    problems = [Problem(str(n), f"question {n}", n) for n in range(4)]
    texts, scores = [f"text {n}" for n in range(4)], [Score(n / 4, {}) for n in range(4)]
    console = Console(width=100, file=io.StringIO())
    with progress.on_console(console, lambda: None) as watch:
        for each in list(zip(problems, texts, scores, strict=True))[:early]:
            watch.scored(*each)
        before = console.file.getvalue()
        watch.sampled(0, Experience(problems, [], texts, scores, []))
    assert ("first scored completions" in before and "text 2" in before) == (early == 3)
    assert console.file.getvalue().count("first scored completions") == 1


def row(**changes):
    usual = {
        "reward/zero_variance_groups": 0.2, "reward/mean": 0.5, "truncated": 0.0, "entropy": 1.0,
        "logp_gap": 1e-6,
    }  # fmt: skip
    return usual | changes


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("zero-advantage groups", {"reward/zero_variance_groups": 0.9}),
        ("truncation", {"truncated": 0.4}),
        ("entropy collapse", {"entropy": 0.05}),
        ("sampler/trainer gap", {"logp_gap": 0.01}),
    ],
)
def test_alerts_say_what_is_wrong_and_what_to_try(name, sign):
    usual = [row()] * 4
    assert alerts.alerts(usual) == {}
    assert alerts.alerts([*usual, row(**sign)]) == {}  # once is nothing
    found = alerts.alerts([*usual, *[row(**sign)] * alerts.PATIENCE])
    assert list(found) == [name] and "try" in found[name]
    if name == "sampler/trainer gap":
        assert alerts.alerts([*usual, *[row(**sign)] * alerts.PATIENCE], "bfloat16") == {}
    mentioned = {w.strip(",;") for w in found[name].split() if w.startswith("--")}
    known = {f"--{n}" for n in (*flags.names(configs.Config()), *short.NAMES)}
    assert {m for m in mentioned if "-args." not in m} <= known


def test_a_gguf_file_with_a_chat_template_gets_its_prompts_in_it(tmp_path):
    for name, template in (("chat", "{{ messages }}"), ("base", "")):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama")
        if template:
            writer.add_chat_template(template)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert short.has_template(str(tmp_path / f"{name}.gguf")) == bool(template)
    assert not short.has_template("nobody/nothing") and not short.has_template("fresh")
