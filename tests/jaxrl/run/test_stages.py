"""Fields that change at declared steps: their values at each step, and interrupted runs."""

import dataclasses
import json
import sys

import pytest

from jaxrl import config as configs
from jaxrl.config import Config, CurriculumConfig, Domain, conflicts, stages
from jaxrl.record import metrics, rundir
from jaxrl.rollout import history
from jaxrl.run import assemble, context, loop
from jaxrl.run.extension import open_extensions
from jaxrl.training.objective import ObjectiveConfig
from tests.jaxrl import tiny

SETS = {
    "rollout.max_new_tokens": 6,
    "rollout.group_size": 2,
    "rollout.temperature": 0.5,
    "task_args.digits": 2,
}


def test_a_change_holds_until_a_later_one():
    config = Config(stages={10: {"rollout.temperature": 0.5}, 4: {"rollout.group_size": 2}})
    seen = [stages.at(config, done).rollout for done in range(12)]
    assert [r.group_size for r in seen] == [8] * 4 + [2] * 8
    assert [r.temperature for r in seen] == [1.0] * 10 + [0.5] * 2
    assert stages.starts(config) == [0, 4, 10]
    assert [done for done, _ in stages.all_of(config)] == [0, 4, 10]
    assert stages.at(Config(), 5) == Config()


TURNS = {
    20: {"objective.policy": "online_dpo", "objective.policy_args.beta": 0.3, "period": 20},
    25: {"objective.policy": "ppo_clip", "period": 20},
}


def test_stages_with_a_period_alternate():
    clip = ObjectiveConfig(policy_args={"clip_high": 0.3})
    config = Config(steps=70, objective=clip, stages=TURNS)
    policies = [stages.at(config, done).objective.policy for done in range(70)]
    preference = {*range(20, 25), *range(40, 45), *range(60, 65)}
    assert {done for done in range(70) if policies[done] == "online_dpo"} == preference
    assert stages.starts(config) == [0, 20, 25, 40, 45, 60, 65]
    assert [stages.first(config, done) for done in (19, 24, 39, 40, 69)] == [0, 20, 25, 20, 25]
    assert [done for done, _ in stages.all_of(config)] == [0, 20, 25]
    # a function begins with its own arguments alone
    args = [stages.at(config, done).objective.policy_args for done in (0, 20, 25, 40)]
    assert args == [{"clip_high": 0.3}, {"beta": 0.3}, {}, {"beta": 0.3}]


def test_a_later_stage_without_a_period_holds_until_the_next_that_begins():
    once = {30: {"objective.entropy_coef": 0.1, "objective.policy": "gspo"}}
    config = Config(steps=70, stages=TURNS | once)
    policies = [stages.at(config, done).objective.policy for done in (29, 30, 39, 40, 45)]
    assert policies == ["ppo_clip", "gspo", "gspo", "online_dpo", "ppo_clip"]
    assert stages.at(config, 69).objective.entropy_coef == 0.1


def test_entries_of_dicts_change_too_and_configs_are_read_back_equal():
    domains = {"a": Domain("maze"), "b": Domain("sat", curriculum=CurriculumConfig("x:y"))}
    config = Config(domains=domains, stages={3: {"domains.b.weight": 2, "task_args.digits": 3}})
    staged = stages.at(config, 3)
    assert staged.domains["b"].weight == 2 and staged.domains["a"] == domains["a"]
    assert staged.task_args == {"digits": 3}
    read = configs.from_dict(Config, json.loads(json.dumps(configs.to_dict(config))))
    assert read == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer.learning_rate": 1e-4},
            "which is the same for a whole run",
        ),
        ({"rollout.prompts": 8}, "continue from it with --fork"),
        (
            {"rollout.max_new_tokens": "long"},
            r"stages\.5: rollout\.max_.*='long': must be of type int",
        ),
        ({"rollout.max_new_tokens": 128.5}, r"max_new_tokens=128\.5: must be of type int"),
        ({"rollout.group_size": True}, "must be of type int"),
        ({"rollout.group_size": 4.5}, r"group_size=4\.5: must be of type int"),
        ({"rollout.temperature": True}, "temperature=True: must be a number"),
        ({"rollout.temperature": -1.0}, r"stages\.5: rollout\.temperature=-1"),
        ({"rollout.long_prompts": "drp"}, "long_prompts='drp': choose one of error, drop, trunc"),
        ({"rollout.chat": "yes"}, "rollout.chat='yes': must be of type bool"),
        ({"bandit.signal": "rewards"}, "bandit.signal='rewards': choose one of advantage, reward"),
        ({"bandit.args.temperature": "low"}, "temperature='low': must be a number"),
        ({"curriculum.chose": "x"}, "no field 'chose'; did you mean 'choose'"),
        ({"domains.zz.weight": 2}, r"5: domains\.zz\.weight: there is no field 'zz'; known: a"),
        ({"domains.a.wieght": 2}, "no field 'wieght'; did you mean 'weight'"),
        ({"domains.a": {"weight": "much"}}, r"domains\.a\.weight='much': must be a number"),
        ({"domains.a.args.size": "big"}, r"a\.args\.size='big': must be of the type of 5"),
        ({"domains.a": "maze"}, r"domains\.a='maze': must hold fields"),
        ({"objective.polcy": "sft"}, r"stages\.5: .*no field 'polcy'; did you mean 'policy'"),
        ({"objective.kl_coef": "much"}, r"stages\.5: objective\.kl_coef='much': must be a number"),
        ({"rollout.group_size": 2, "period": 0}, r"stages\.5: period=0: must be a number of steps"),
        ({"rollout.group_size": 2, "period": 2.0}, r"period=2\.0: must be a number of steps"),
    ],
)
def test_bad_stages_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        stages.check(Config(domains={"a": Domain("maze", {"size": 5})}, stages={5: changes}))


def test_stages_that_no_step_reaches_or_that_do_not_fit_are_refused():
    stages.check(Config(stages={0: {"rollout.group_size": 2}}))
    for start in (100, -1):
        with pytest.raises(ValueError, match="0 or more, below steps=100"):
            stages.check(Config(stages={start: {"rollout.group_size": 2}}))
    stage = {5: {"rollout.group_size": 2}}
    partial = configs.replaced(Config(stages=stage), "rollout.in_flight", 2.0)
    with pytest.raises(
        ValueError, match=r"rollout\.in_flight=2.* fields of stages=\['rollout\.group_size'\]"
    ):
        conflicts.check(partial)
    conflicts.check(dataclasses.replace(partial, stages={5: {"objective.policy": "sft"}}))
    greedy = {5: {"objective.advantage": "remax"}}  # which samples greedy answers too
    with pytest.raises(ValueError, match=r"\['objective\.advantage'\]"):
        conflicts.check(dataclasses.replace(partial, stages=greedy))
    with pytest.raises(ValueError, match=r"'rollout\.group_size' with the extension replay"):
        open_extensions(configs.extended(Config(stages=stage), "replay", groups=4))


class Cut(Exception):
    pass


def cut_at(step):
    """A watch that ends a run once a step is done, as a fault would."""

    def on_step(done, values):
        if done == step:
            raise Cut

    return loop.Callbacks(step=on_step)


@pytest.mark.exact(
    "a run in stages that is cut and continued equals an uninterrupted one, to the last bit"
)
@pytest.mark.broad
def test_a_run_in_stages_cut_at_a_boundary_and_within_equals_an_uninterrupted_one(tmp_path):
    changes = {
        "stages": {2: SETS, 4: {"curriculum.choose": "jaxrl.data.selection.curriculum:uniform"}},
        "steps": 6,
        "warm_start.steps": 0,
        "checkpoint.every": 10,
    }
    loop.train(tiny.config(tmp_path / "straight", **changes))
    for step in (2, 5):
        with pytest.raises(Cut):
            loop.train(tiny.config(tmp_path / "cut", **changes), cut_at(step))
    loop.train(tiny.config(tmp_path / "cut", **changes))
    assert tiny.artefacts(tmp_path / "cut") == tiny.artefacts(tmp_path / "straight")
    files = [(tmp_path / name / "history.jsonl").read_text() for name in ("cut", "straight")]
    assert files[0] == files[1]

    rows = metrics.read(tmp_path / "straight")
    lengths = [row["completion_length_max"] for row in rows]
    assert max(lengths[:2]) <= 4 < max(lengths[2:]) <= 6
    made = [
        [json.loads(line) for line in (tmp_path / f"straight/rollouts/{s:06d}.jsonl").open()]
        for s in (2, 3)
    ]
    assert [len(rows) for rows in made] == [16, 8]  # four prompts, four and then two completions
    assert max(len(row["prompt"]) for row in made[0]) == 4  # 1+2=
    assert max(len(row["prompt"]) for row in made[1]) > 4
    assert {row["prompt"] for row in made[0]} & {row["prompt"] for row in made[1]} == set()


@pytest.mark.sample(4, broad=4)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective.policy": "ppo_clp"}, r"stages\.2: .*'ppo_clp'.*did you mean 'ppo_clip'"),
        ({"objective.policy_args.clip": 1}, r"stages\.2: ppo_clip takes no argument 'clip'"),
        ({"objective.advantage": "cispo"}, r"stages\.2: cispo needs"),
        ({"objective.aggregation": "mean"}, r"stages\.2: objective\.aggregation='mean'"),
        (
            {"objective.kl_coef": 0.1, "objective.skip_zero_advantages": True},
            r"stages\.2: objective\.skip_zero_advantages with kl_coef=0\.1",
        ),
        (
            {"objective.policy": "gmpo", "objective.advantage": "tp_grpo"},
            r"stages\.2: .*'tp_grpo' gives one a t",
        ),
    ],
)
@pytest.mark.parametrize("period", [{}, {"period": 3}])
def test_an_objective_of_a_stage_is_refused_before_the_first_step(
    changes, message, period, tmp_path
):
    config = tiny.config(tmp_path, stages={2: changes | period})
    with pytest.raises(ValueError, match=message):
        assemble.assemble(config)


@pytest.mark.broad
def test_each_stage_trains_by_its_own_objective(tmp_path):
    changes = {
        "stages": {2: {"objective.policy": "reinforce"}},
        "steps": 4,
        "warm_start.steps": 0,
        "updates_per_batch": 2,
        "eval.every": 0,
    }
    loop.train(tiny.config(tmp_path, **changes))
    clipped = ["clipped_high" in row for row in metrics.read(tmp_path)]
    assert clipped == [True, True, False, False]


@pytest.mark.broad
@pytest.mark.exact("a run whose objective alternates is cut and continued to the last bit")
def test_a_run_whose_objective_alternates_cut_within_and_between_equals_an_uninterrupted_one(
    tmp_path, monkeypatch
):
    """With a reference policy that one of its stages alone compares with."""
    changes = {
        "stages": {
            1: {"objective.policy": "online_dpo", "period": 2},
            2: {"objective.policy": "ppo_clip", "period": 2},
        },
        "steps": 6,
        "warm_start.steps": 0,
        "checkpoint.every": 10,
    }
    programs, make = [], context.make_update
    monkeypatch.setattr(context, "make_update", lambda *a, **k: programs.append(a) or make(*a, **k))
    loop.train(tiny.config(tmp_path / "straight", **changes))
    assert len(programs) == 2  # one for each objective
    clipped = ["clipped_high" in row for row in metrics.read(tmp_path / "straight")]
    assert clipped == [True, False] * 3
    for step in (1, 4):
        with pytest.raises(Cut):
            loop.train(tiny.config(tmp_path / "cut", **changes), cut_at(step))
    loop.train(tiny.config(tmp_path / "cut", **changes))
    assert tiny.artefacts(tmp_path / "cut") == tiny.artefacts(tmp_path / "straight")


DOMAINS = {
    "numbers": Domain("tests.data.hostile:finite", {"size": 10}, weight=1.0),
    "sums": Domain("arithmetic", {"digits": 1, "operators": "+"}, weight=1.0, max_new_tokens=2),
}


@pytest.mark.broad
def test_domains_are_scored_by_their_own_tasks_and_logged_apart(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # a run that does not ask for it goes without
    changes = {
        "domains": DOMAINS,
        "bandit.weigh": "sec",
        "steps": 2,
        "warm_start.steps": 0,
        "eval.split": "train",
        "score_workers": 1,
    }
    summary = loop.train(tiny.config(tmp_path, **changes))
    for row in metrics.read(tmp_path):
        assert row["domain/numbers/reward"] == 1.0 > row["domain/sums/reward"]
        assert row["domain/numbers/share"] + row["domain/sums/share"] == 1
        assert row["domain/sums/completion_length"] <= 2
    row = json.loads((tmp_path / "evals/000002.jsonl").read_text().splitlines()[0])
    assert "".join(row["tokens"]) == row["completion"] and max(row["logp"]) <= 0
    assert len(row["tokens"]) == len(row["logp"]) == len(row["entropy"]) == len(row["source"])
    assert {"pass@1/numbers", "pass@1/sums"} <= summary["eval"]["after"].keys()


def test_evaluations_are_scored_by_the_task_of_the_config_also_under_a_stage_at_0(tmp_path):
    """Any answer is right to the stage's task, and none of an untrained model to the config's."""
    changes = {
        "task_args": {},
        "stages": {0: {"task": "tests.data.hostile:finite"}},
        "steps": 1,
        "warm_start.steps": 0,
    }
    summary = loop.train(tiny.config(tmp_path, **changes))
    assert metrics.read(tmp_path)[0]["reward/mean"] == 1.0
    assert summary["eval"]["before"]["pass@1"] == summary["eval"]["after"]["pass@1"] == 0.0


@pytest.mark.exact("two processes continued by one use every prompt of an epoch exactly once")
@pytest.mark.broad
def test_a_pair_killed_in_mid_epoch_and_continued_by_one_sees_every_prompt_once(tmp_path):
    """Two processes draw prompts from a finite set, are killed, and one continues with the rest."""
    changes = {
        "task": "tests.data.hostile:finite",
        "task_args": {"size": 10},
        "eval.split": "train",
        "eval.problems": 2,
        "eval.every": 0,
        "warm_start.steps": 0,
        "checkpoint.every": 1,
        "steps": 5,
    }
    first, second = tiny.start_pair(tmp_path / "run", devices=1, **changes)
    assert tiny.kill_at(first, "train 2")
    second.kill()
    second.communicate()
    tiny.finish(tiny.start(tmp_path / "run", devices=2, **changes))
    seen = history.read(tmp_path / "run")
    assert [len(curve) for curve in seen.curves] == [2] * 10  # five steps of four: two epochs
    batches = [json.loads(line) for line in (tmp_path / "run/history.jsonl").open()]
    assert [row["batch"] for row in batches] == list(range(5))


def test_a_stage_is_part_of_what_may_not_change(tmp_path):
    config = tiny.config(tmp_path, stages={2: {"rollout.group_size": 2}})
    rundir.prepare(config, print)
    rundir.save_config(tmp_path, config)
    other = configs.replaced(config, "stages", {3: {"rollout.group_size": 2}})
    rundir.prepare(other, print)  # nothing has been trained
    (tmp_path / "checkpoints" / "00000000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "00000000" / "manifest.json").write_text("{}")
    rundir.prepare(config, print)
    with pytest.raises(ValueError, match="stages"):
        rundir.prepare(other, print)
