"""Courses: stages that follow one another in one run, interrupted inside them and between."""

import json

import pytest

from jaxrl import config as configs
from jaxrl.launch import cli, recipes
from jaxrl.launch.settings import configs as files
from jaxrl.run import course
from tests.jaxrl import tiny

STAGE = {
    "task": "",
    "data.kinds": ["completion"],
    "data.eval_share": 0.2,
    "data.batch_size": 4,
    "objective.policy": "sft",
    "objective.advantage_args": {"baseline": "none", "scale": "none"},
    "warm_start.steps": 0,
    "optimizer.learning_rate": 1e-2,
    "checkpoint.every": 1,
    "eval.every": 0,
    "steps": 2,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """Two steps of fine-tuning on sums of one digit."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(5) for b in range(5)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return STAGE | {"data.path": str(path)}


def whole(stage):
    """The same stage twice, as changes of `tiny.config`."""
    plain = json.loads(json.dumps(configs.to_dict(tiny.config("", **stage))))
    return stage | {"course": {0: plain}}


@pytest.mark.broad
def test_a_stage_starts_where_the_one_before_ended(stage, tmp_path):
    tiny.run(tmp_path, **whole(stage))
    first = json.loads((tmp_path / "stages/0/summary.json").read_text())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["eval"]["before"] == first["eval"]["after"] != first["eval"]["before"]
    assert summary["course"] == [{k: first[k] for k in ("recipe", "steps", "seconds", "eval")}]
    assert summary["eval"]["after"] != summary["eval"]["before"]


@pytest.mark.slow
@pytest.mark.exact("a course killed inside its stages and between them equals an uninterrupted one")
def test_killed_inside_stages_and_between_them(stage, tmp_path):
    given = whole(stage)
    tiny.finish(tiny.start(tmp_path / "straight", **given))
    for line in ("train 1", "note stage 1 of 2", "train 1"):
        assert tiny.kill_at(tiny.start(tmp_path / "killed", **given), line)
    tiny.finish(tiny.start(tmp_path / "killed", **given))
    for part in ("stages/0", ""):
        one, two = (tiny.artefacts(tmp_path / name / part) for name in ("straight", "killed"))
        assert one == two


def test_a_file_says_its_stages(stage, tmp_path, capsys):
    """What stands beside them and what flags say holds for each; the last one is the run."""
    path = tmp_path / "learn.yaml"
    path.write_text(
        f"model: fresh\nlora: {{rank: 4}}\ncourse:\n"
        f"  - {{recipe: sft, data: {stage['data.path']}, epochs: 2, lr: 1e-3}}\n"
        f"  - {{recipe: dpo, data: pairs.jsonl, eval-data: held.jsonl, steps: 3}}\n"
        f"  - {{recipe: grpo, task: arithmetic, steps: 5}}\n"
    )
    assert cli.main(["show", str(path), "--seed", "7", "--run-dir", "runs/mine"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [shown["course"][n]["recipe"] for n in "01"] == ["sft", "dpo"]
    made, _ = files.resolve([str(path), "--seed", "7"])
    first, second = (configs.from_dict(configs.Config, made.course[n]) for n in (0, 1))
    assert made.recipe == "grpo" and made.run_dir == "runs/learn-seed7" and not first.run_dir
    assert {each.lora.rank for each in (first, second, made)} == {4}
    assert {each.seed for each in (first, second, made)} == {7}
    assert {each.model for each in (first, second, made)} == {"fresh"}
    assert (first.steps, second.steps, made.steps) == (3, 3, 5)  # two epochs of 24 rows by 16
    assert (first.data.eval_path, second.data.eval_path) == ("", "held.jsonl")
    assert first.optimizer.learning_rate == 1e-3 != second.optimizer.learning_rate
    path.write_text("course:\n  - {data: x}\n")
    assert cli.main(["show", str(path)]) == 2
    assert "stage 0 of the course must name a recipe" in capsys.readouterr().err


def test_a_stage_keeps_what_it_does_not_say_of_a_group_of_fields(stage, tmp_path):
    """Dicts such as `task_args` are one value; `steps` and `epochs` both say how long."""
    path = tmp_path / "learn.yaml"
    path.write_text(
        "model: fresh\nlora: {rank: 8, alpha: 4.0}\noptimizer: {warmup_steps: 7}\nepochs: 1\n"
        "task: arithmetic\ntask_args: {digits: 2}\ncourse:\n"
        f"  - {{recipe: sft, data: {stage['data.path']}}}\n"
        "  - {recipe: grpo, steps: 5, lora: {alpha: 16}, optimizer: {learning_rate: 1e-6},"
        " task_args: {operators: '+'}}\n"
    )
    made, _ = files.resolve([str(path)])
    assert (made.lora.rank, made.lora.alpha, made.steps) == (8, 16, 5)
    assert (made.optimizer.warmup_steps, made.optimizer.learning_rate) == (7, 1e-6)
    assert made.task_args == {"operators": "+"}
    first = configs.from_dict(configs.Config, made.course[0])
    assert (first.lora.alpha, first.optimizer.warmup_steps, first.steps) == (4, 7, 2)


def test_a_reward_stage_is_the_reward_of_later_ones():
    sampled, read = recipes.load("grpo"), recipes.load("dpo")
    made = course._from(sampled, "m", ("runs/c/stages/1",))
    assert made.model == "m" and made.extensions["reward_model"].models == ("runs/c/stages/1",)
    own = configs.extended(sampled, "reward_model", models=("mine",))
    made = course._from(own, "m", ("runs/c/stages/1",))
    assert made.extensions["reward_model"].models == ("mine",)
    assert not course._from(read, "m", ("runs/c/stages/1",)).extensions


def test_a_stage_that_cannot_work_is_refused_first(stage, tmp_path):
    given = whole(stage)
    given["course"][0]["data"]["path"] = "none.jsonl"
    with pytest.raises(ValueError, match="stage 0 of the course: "):
        tiny.run(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
