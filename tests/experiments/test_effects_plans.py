"""A plan is what the code would measure: each of its fields, whoever changed it, plan or code."""

import copy
import dataclasses
import json

import numpy as np
import pytest

from experiments import __main__ as laboratory
from experiments.claims import aepo as aepo_claim
from experiments.effects import command, table
from experiments.lab import arms, families, files, plans, statistics, stores, tuning
from experiments.lab.variants import variants
from tests.launch.fakes import Fake, play

PLANS = sorted(table.RESULTS.glob("*.plan.json"))
RECORDED = stores.Store(table.RESULTS)
YOUNGER = {"over", "better", "minimum", "warm_steps", "measure"}


def other_measure(*args, **given):
    """Stands for another one."""


SWITCHES = {
    "statistic": {"statistic": "entropy"},
    "over": {"over": "area"},
    "better": {"better": "lower"},
    "minimum": {"minimum": 0.2},
    "warm_steps": {"warm_steps": 7},
    "measure": {"measure": other_measure},
}


def noisy(effect, given, seeds):
    """Figures that depend on the arm, the seed and what measures them."""
    arm = int(files.digest([arms.describe(given), stores.measured_by(effect)]), 16) % 1000
    drawn = [np.random.default_rng([arm, seed]).normal(0.5, 0.02) for seed in seeds]
    figures = {name: [float(x) for x in drawn] for name in ("pass@1", "score", "entropy")}
    return {"final": figures, "area": figures, "minutes": 0.0}


@pytest.fixture
def planned(tmp_path):
    """A new plan of RAFT with its experiment and its store."""
    effect, store = table.effect_of("raft"), stores.Store(tmp_path, noisy)
    return json.loads(json.dumps(plans.make(store, "raft", effect))), effect, store


@pytest.mark.sample(6, broad=6)
@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.name)
def test_the_code_still_measures_what_was_planned(path):
    """A result whose plan the code no longer matches cannot be run again: measure it anew."""
    name = path.name.partition(".")[0]
    effect, plan = table.effect_of(name), json.loads(path.read_text())
    assert plans.differences(plan, name, effect) == []
    assert plans.differences(plan, name, effect, RECORDED) == []


@pytest.mark.parametrize("field", SWITCHES)
def test_a_switch_in_the_code_is_found(planned, field):
    """On each task, also where it needs no other arm."""
    plan, effect, store = planned
    assert plans.differences(plan, "raft", effect, store) == []
    changed = dataclasses.replace(effect, **SWITCHES[field], portable=True)
    lines = plans.differences(plan, "raft", changed)
    assert any(line.startswith(f"regime: {field}: the plan has ") for line in lines)


@pytest.mark.parametrize("field", SWITCHES)
@pytest.mark.parametrize("name", ["raft", "kl_rl_as_bayesian_inference", "vcpo"])
def test_a_switch_is_found_by_the_figures_of_a_plan_that_is_older_than_the_field(name, field):
    effect = table.effect_of(name)
    plan = json.loads((table.RESULTS / f"{name}.plan.json").read_text())
    younger = [task for task, own in plan["tasks"].items() if YOUNGER & own.keys()]
    assert "regime" not in younger
    switch = SWITCHES[field]
    if switch.get("better") == effect.better:
        switch = {"better": "higher"}
    changed = dataclasses.replace(effect, **switch, portable=True)
    lines = plans.differences(plan, name, changed, RECORDED)
    assert [line for line in lines if line.partition(": ")[0] not in younger]


def edits():
    """What to write into a task of a plan -> what the difference says."""
    return [
        ({"statistic": "entropy"}, "statistic: the plan has 'entropy', the code 'pass@1'"),
        ({"over": "area"}, "over: the plan has 'area', the code 'final'"),
        ({"better": "lower"}, "better: the plan has 'lower'"),
        ({"minimum": 0.3}, "minimum: the plan has 0.3"),
        ({"warm_steps": 3}, "warm_steps: the plan has 3"),
        ({"measure": "x"}, "measure: the plan has 'x'"),
        ({"baseline": "baseline: Nonsense"}, "the baseline is 'baseline: Nonsense'"),
        ({"baseline": "method"}, "the baseline is 'method'"),
        ({"looks": [6, 12, 18]}, "looks: the plan has [6, 12, 18]"),
        ({"seeds": 3}, "seeds: the plan has 3"),
        ({"seeds": 3, "looks": [3]}, "seeds: the plan has 3"),
        ({"seeds": 13, "looks": [13]}, "seeds: the plan has 13"),
        ({"seeds": 96, "looks": [96]}, "seeds: the plan has 96"),
    ]


@pytest.mark.parametrize(("edit", "said"), edits(), ids=lambda x: str(x)[:40])
def test_an_edit_of_a_plan_is_found(planned, edit, said):
    plan, effect, _ = planned
    plan["tasks"]["neutral"] |= edit
    lines = plans.differences(plan, "raft", effect)
    assert any(line.startswith(f"neutral: {said}") for line in lines), lines


@pytest.mark.parametrize(
    ("edit", "said"),
    [e for e in edits() if not YOUNGER & e[0].keys()],
    ids=lambda x: str(x)[:40],
)
def test_an_edit_of_an_old_plan_is_found(edit, said):
    for path in PLANS[::12]:
        plan, name = json.loads(path.read_text()), path.name.partition(".")[0]
        said_here = said.partition(", the code")[0]
        plan["tasks"]["regime"] |= edit
        lines = plans.differences(plan, name, table.effect_of(name))
        assert any(line.startswith(f"regime: {said_here}") for line in lines), (name, lines)


def test_an_arm_that_is_not_at_its_best_setting_is_found(planned):
    """Though its score, its description and the best baseline are those of the worse setting."""
    plan, effect, store = planned
    task, family = plan["tasks"]["regime"], plan["family"]
    for label, made in plans.competitors(effect, family).items():
        edited = copy.deepcopy(plan)
        own = edited["tasks"]["regime"]["arms"][label]
        rate = next(r for r in families.GRID["learning_rate"] if r != own["learning_rate"])
        worse = arms.tuned(made, rate, 1.0)
        figures = tuning.scored(effect, store.figures(effect, worse, families.DEVELOPMENT))
        own |= {"learning_rate": rate, "clip": 1.0}
        own |= {name: figures[name] for name in ("score", "pass@1")}
        edited["tasks"]["regime"]["described"][label] = files.digest(arms.describe(worse))
        chosen = edited["tasks"]["regime"]["arms"]
        edited["tasks"]["regime"]["baseline"] = tuning.best_baseline(effect, chosen)
        assert plans.differences(edited, "raft", effect) == []
        said = f"regime: the learning_rate of {label!r} is {rate} in the plan; "
        lines = plans.differences(edited, "raft", effect, store)
        assert any(line.startswith(said) for line in lines), lines
    label = next(iter(task["power"]))
    task["power"][label] = 0.85 if task["power"][label] > 0.9 else 0.95
    lines = plans.differences(plan, "raft", effect, store)
    assert any(line.startswith(f"regime: the power against {label!r} is") for line in lines), lines


def test_a_field_that_is_taken_out_of_a_plan_is_found(planned):
    """A task without any of the younger fields is one of an old plan, whose figures are read."""
    plan, effect, store = planned
    task = plan["tasks"]["regime"]
    assert task.keys() > YOUNGER
    for field in task:
        some = copy.deepcopy(plan)
        del some["tasks"]["regime"][field]
        if field == "verifier":  # of which plans of one day had none
            continue
        assert any(f"{field}" in x for x in plans.differences(some, "raft", effect)), field
    old = copy.deepcopy(plan)
    for field in YOUNGER:
        del old["tasks"]["regime"][field]
    assert plans.differences(old, "raft", effect, store) == []
    switched = dataclasses.replace(effect, statistic="entropy")
    assert plans.differences(old, "raft", switched)
    switched = dataclasses.replace(effect, measure=other_measure, portable=True)
    lines = plans.differences(old, "raft", switched, store)
    assert any("regime: the development figures of 'method' are not kept" in x for x in lines)


def test_a_better_baseline_may_not_be_left_out_of_a_plan(planned):
    plan, effect, _ = planned
    task = plan["tasks"]["regime"]
    gone = task["baseline"]
    del task["arms"][gone], task["described"][gone]
    rest = [label for label in task["arms"] if label.startswith("baseline: ")]
    task["baseline"] = max(rest, key=lambda label: task["arms"][label]["score"])
    assert f"regime: the plan has no arm {gone!r}" in plans.differences(plan, "raft", effect)


def test_scores_and_seeds_of_a_plan_are_those_of_the_development_figures(planned):
    plan, effect, store = planned
    task = plan["tasks"]["regime"]
    raised = copy.deepcopy(plan)
    raised["tasks"]["regime"]["arms"]["method"]["score"] += 0.1
    lines = plans.differences(raised, "raft", effect, store)
    assert any("regime: the score of 'method' is" in line for line in lines)
    assert 18 < task["seeds"] < 48
    for seeds in {18, 24, 36, 48} - {task["seeds"]}:
        more = copy.deepcopy(plan)
        more["tasks"]["regime"] |= {"seeds": seeds, "looks": [seeds], "power": {"x": 1.0}}
        lines = plans.differences(more, "raft", effect, store)
        assert any(f"regime: seeds: the plan has {seeds}, the code would" in x for x in lines)
        for field in YOUNGER:
            del more["tasks"]["regime"][field]
        fewer = bool(plans.differences(more, "raft", effect, store))
        assert fewer == (seeds < task["seeds"])  # an arm that needed more may have been removed


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("field", SWITCHES)
def test_planning_after_a_switch_tunes_again(planned, field):
    """Arms that were tuned for another statistic are not kept, in new plans and in older ones."""
    plan, effect, store = planned
    changed = dataclasses.replace(effect, **SWITCHES[field], portable=True)
    older = copy.deepcopy(plan)
    for task in older["tasks"].values():
        for younger in YOUNGER:
            del task[younger]
    assert plans.make(store, "raft", effect, plan) == plan
    assert plans.make(store, "raft", effect, older) == older
    for old in (plan, older):
        new = plans.make(store, "raft", changed, old)
        assert plans.differences(json.loads(json.dumps(new)), "raft", changed, store) == []
        for name, task in new["tasks"].items():
            before, now = (plans.stated_of(variants(e)[name])[field] for e in (effect, changed))
            assert task[field] == now != before
            assert task.keys() > YOUNGER


@pytest.mark.broad
def test_the_command_refuses_a_switch(repository, monkeypatch, capsys):
    """Also where the plan is older than the field that would tell it."""
    play(monkeypatch, Fake(0.1))
    assert laboratory.main(["effects", "aepo", "--plan"]) == 0
    path = repository / "aepo.plan.json"
    plan = json.loads(path.read_text())
    for task in plan["tasks"].values():
        for field in YOUNGER:
            del task[field]
    files.write(path, plan)
    files.commit([path, repository / "arms"], "Plan")
    effect = table.effect_of("aepo")
    other = dataclasses.replace(effect, measure=other_measure, portable=True)
    monkeypatch.setattr(aepo_claim, "effect", lambda: other)
    assert laboratory.main(["effects", "aepo"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "aepo.plan.json is not what would be measured" in said and "are not kept" in said
    assert not (repository / "measured.json").exists()
    monkeypatch.setattr(aepo_claim, "effect", lambda: effect)
    assert laboratory.main(["effects", "aepo"]) == 0


@pytest.mark.parametrize(("own", "refused"), [(0.005, True), (0.5, False), (0.995, True)])
def test_a_task_is_refused_by_its_method_and_ablations(tmp_path, own, refused):
    """Whatever the baselines, as IGPO's are: its method and ablation solve nothing."""
    effect = table.effect_of("igpo")

    def run(effect, given, seeds):
        of_baseline = families.EXPERTS in (given.guidance, given.at(0).guidance)
        values = [0.7 if of_baseline else own] * len(seeds)
        figures = dict.fromkeys(("pass@1", effect.statistic), values)
        return {"final": figures, "area": figures, "minutes": 0.0}

    store = stores.Store(tmp_path, run)
    if not refused:
        made = plans.make(store, "igpo", effect)["tasks"]["regime"]["arms"]
        assert {arm["score"] for arm in made.values()} == {0.5, 0.7}
        return
    with pytest.raises(ValueError, match=f"method and its ablations are {own:.3f} to {own:.3f}"):
        plans.make(store, "igpo", effect)


def test_a_plan_of_a_large_family_is_read_by_either_least_number_of_seeds(repository, monkeypatch):
    """Families grow, and plans keep their seeds."""
    play(monkeypatch, Fake(0.1))
    for rows in (1, statistics.LARGE + 1):
        monkeypatch.setattr(table, "family_rows", lambda family, rows=rows: rows)
        command.write_plan("raft", lambda line: None)
        path = repository / "raft.plan.json"
        plan = json.loads(path.read_text())
        effect, store = table.effect_of("raft"), command._store(print)
        assert plans.differences(plan, "raft", effect, store) == []
        path.unlink()
