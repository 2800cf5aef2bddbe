"""The protocol of effects is kept: splits, arms, plans, rows, and what the command refuses."""

import dataclasses
import functools
import itertools
import json
import re
import shlex
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import __main__ as laboratory
from experiments import lab
from experiments.claims import aepo as aepo_claim
from experiments.claims import raft as raft_claim
from experiments.effects import claims_page, fair, markdown, picture, real, scales, verdicts
from experiments.effects import command as effects
from experiments.effects import page as effects_page
from experiments.effects import table as effects_table
from experiments.lab import (
    archive,
    arms,
    differences,
    families,
    files,
    measurement,
    plans,
    reading,
    reruns,
    split,
    statistics,
    stores,
    tuning,
    views,
)
from experiments.lab.tasks import EOS, FILLER, FIRST
from experiments.lab.variants import WRONG, sums, variants, wrong_verdicts
from jaxrl.config import replaced
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from tests.launch.fakes import Fake, git, play

EFFECTS = {name: effects_table.effect_of(name) for name in effects_table.names()}
TASKS = {id(e.task): (name, e.task) for name, e in EFFECTS.items()}
COMMON = {"neutral": lab.neutral(), "graded": lab.graded(), "carries": sums()}
TASKS |= {id(task): (name, task) for name, task in COMMON.items()}
GOLD = [name for name in EFFECTS if families.RECIPES[name][0] == "gold solutions"]
SEEDS = (0, 1, families.DEVELOPMENT[0])


@pytest.mark.sample(6, broad=5)
@pytest.mark.parametrize("task", [t for _, t in TASKS.values()], ids=[n for n, _ in TASKS.values()])
def test_no_held_out_prompt_is_trained_on(task):
    """Nor demonstrated."""
    for seed in SEEDS:
        made = task.make(seed)
        assert effects.overlap(task, seed) == 0
        assert len(made.test.prompt) >= split.HELD_OUT
        if task.respond is None:
            assert len(np.unique(made.test.prompt, axis=0)) == len(made.test.prompt)
        if task.respond is None:
            shown = {row.tobytes() for row in made.demonstrations.prompt}
            assert not shown & {row.tobytes() for row in made.test.prompt}


def test_no_piece_of_a_held_out_walk_is_demonstrated():
    """A demonstration that starts midway has another prompt, but the same symbol and steps."""
    task = EFFECTS["delethink_markovian_thinker"].task
    for seed in SEEDS:
        made = task.make(seed)
        asked, held_out = (
            {tuple(row[row != FILLER][:2].tolist()) for row in problems.prompt}
            for problems in (made.demonstrations, made.test)
        )
        assert not asked & held_out
        assert {steps for _, steps in held_out} < {steps for _, steps in asked}
        assert not {steps for _, steps in held_out} & set(made.train.prompt[:, -2].tolist())


def test_an_overlap_is_found():
    task = lab.neutral()

    def leaky(seed):
        made = task.make(seed)
        return made._replace(test=made.test._replace(prompt=made.test.prompt.copy()))

    def leaked(seed):
        made = leaky(seed)
        made.test.prompt[7] = made.train.prompt[3]
        return made

    def demonstrated(seed):
        made = leaky(seed)
        made.test.prompt[7] = made.demonstrations.prompt[3]
        return made

    assert effects.overlap(dataclasses.replace(task, make=leaky), 0) == 0
    assert effects.overlap(dataclasses.replace(task, make=leaked), 0) == 1
    assert effects.overlap(dataclasses.replace(task, make=demonstrated), 0) == 1


def test_a_task_with_too_few_prompts_is_refused():
    with pytest.raises(ValueError, match=r"domain 0 has \d+ different prompts on the .* side"):
        lab.cipher(((4, 0.5),), (((2,), 1.0),)).make(0)


@pytest.mark.parametrize("name", EFFECTS)
def test_an_arm_is_its_recipe(name):
    assert differences.unlike(recipes.load(name), EFFECTS[name].method) == []


def test_an_arm_that_is_not_its_recipe_is_found():
    config, method = recipes.load("raft"), EFFECTS["raft"].method
    for changed in (
        {"updates_per_batch": 3},
        {"temperature": 0.7},
        {"objective": dataclasses.replace(method.objective, kl_coef=0.1)},
        {"stages": ((0, {}), (9, {"oversampling": 2.0}))},
    ):
        lines = differences.unlike(config, dataclasses.replace(method, **changed))
        assert len(lines) == 1 and next(iter(changed)) in lines[0]
    assert differences.unlike(config, dataclasses.replace(method, steps=7, delay=3)) == []
    lion = dataclasses.replace(config, optimizer=OptimizerConfig(method="lion", schedule="linear"))
    (line,) = differences.unlike(lion, method)
    assert line.startswith("optimizer.method")
    with pytest.raises(ValueError, match="may not change temperature"):
        lab.arm(config, temperature=0.7)
    with pytest.raises(ValueError, match=r"may not change objective\.kl_coef"):
        lab.arm(config, sizes={"objective.kl_coef": 0.1})


def test_a_stage_that_is_not_its_recipes_is_found():
    config, method = (
        recipes.load("drive_pre_grpo"), EFFECTS["drive_pre_grpo"].method
    )  # fmt: skip
    *first, (start, fields) = method.stages
    other = dataclasses.replace(fields["curriculum"], retain=0.01)
    changed = (*first, (start, dict(fields) | {"curriculum": other}))
    (line,) = differences.unlike(config, dataclasses.replace(method, stages=changed))
    assert line == "stage 2: curriculum.retain: the recipe has 0.5, the arm 0.01"
    (line,) = differences.unlike(
        config, dataclasses.replace(method, stages=(*method.stages, (50, fields)))
    )
    assert line == "stages: the recipe has 2, the arm 3"


def test_check_exits_with_1_where_something_differs(capsys, monkeypatch):
    assert laboratory.main(["effects", "--check", "raft", "dump"]) == 0
    assert "2 methods, 0 problems" in capsys.readouterr().out
    wrong = dataclasses.replace(EFFECTS["raft"].method, updates_per_batch=3)
    made = dataclasses.replace(EFFECTS["raft"], method=wrong)
    monkeypatch.setattr(raft_claim, "effect", lambda: made)
    assert laboratory.main(["effects", "--check", "raft"]) == 1
    assert "updates_per_batch" in capsys.readouterr().out


PLACES = [*differences.PLACES.values(), *differences.EXTENSIONS.values()]


@pytest.mark.parametrize("field", PLACES)
def test_what_the_builder_of_arms_loses_is_seen(field):
    """The recipe is read by another way than the one that the arm was built by."""
    plain, lost = arms.Arm(), 0
    for name, effect in EFFECTS.items():
        own = getattr(effect.method, field)
        if own == getattr(plain, field):
            continue
        without = dataclasses.replace(effect.method, **{field: getattr(plain, field)})
        lines = differences.unlike(recipes.load(name), without)
        assert any(field in line for line in lines), name
        lost += 1
    assert lost or field in ("bandit", "latents", "sharpness"), "no arm sets it"


def test_a_setting_that_a_recipe_loses_is_seen(capsys, monkeypatch):
    """Arm and recipe lose it together: the plan has it still."""
    load = recipes.load

    def cooler(name):
        config = load(name)
        return replaced(config, "rollout.temperature", 1.0) if name == "prorl" else config

    monkeypatch.setattr(recipes, "load", cooler)
    assert not differences.unlike(cooler("prorl"), effects_table.effect_of("prorl").method)
    assert laboratory.main(["effects", "--check", "prorl"]) == 1
    assert "the arm 'method' is another" in capsys.readouterr().out


@pytest.mark.broad
def test_check_names_where_the_regime_differs(capsys):
    """As the protocol allows these differences, they are shown and are no problems."""
    names = ("aepo", "areal", "karl", "a_lol", "par", "raft", "ring_1t_icepop_c3po")
    assert laboratory.main(["effects", "--check", *names]) == 0
    said = capsys.readouterr().out
    assert "aepo: regime differs: staleness 4 in the lab, 0 in the recipe\n" in said
    assert "areal: regime differs: staleness 16 in the lab, up to 4 in the recipe\n" in said
    assert "karl: regime differs: staleness up to 19 in the lab, 0 in the recipe\n" in said
    assert "a_lol: regime differs: data sampled once before training in the lab" in said
    assert "par: regime differs: rewards of claims.par:likes_fillers in the lab, of " in said
    own = "ring_1t_icepop_c3po: regime differs: "
    assert f"{own}sampling.weights trained in the lab, int8 in the recipe\n" in said
    assert f"{own}rollout.in_flight 1.0 in the lab, 1.5 in the recipe\n" in said
    assert "raft: regime differs" not in said and "7 methods, 0 problems" in said


@pytest.mark.broad
def test_every_difference_of_a_regime_is_named():
    """Each field of the regime that an arm sets beyond its recipe gives a line, and no other."""
    for name, effect in EFFECTS.items():
        config, method, lines = recipes.load(name), effect.method, effects_table.regime(name)
        fresh = (method.delay, method.sync_every) == (0, 1)
        stale = not (fresh and not config.asynchronous.staleness)
        found = (
            any("staleness" in line for line in lines),
            any("rewards" in line for line in lines),
            any("domains" in line for line in lines),
            any("earlier run" in line for line in lines),
            any("one turn" in line for line in lines),
            *(any(line.startswith(f"{path} ") for line in lines) for path in differences.SAMPLING),
        )
        assert found == (
            stale,
            method.rewards is not None,
            len(method.weights) != len(config.domains),
            method.before is not None,
            "branching" in config.extensions,
            config.sampling.weights != "trained",
            config.sampling.dtype != "",
            config.rollout.in_flight != 1,
            config.rollout.rounds != "fixed",
            config.asynchronous.order != "admitted",
        ), name
        assert len(lines) == sum(found)
    stale = {name for name in EFFECTS if any("staleness" in x for x in effects_table.regime(name))}
    known = {"aepo", "rec_red_off_policy_group_reinforce", "scalerl", "vcpo", "karl", "areal"}
    assert stale == known | {"llamarl", "a_lol", "asearcher", "ring_1t_icepop_c3po"}
    for row in effects_table.rows(["aepo", "prorl"]):
        assert row["regime"] == effects_table.regime(row["id"])


def test_every_method_has_a_family_an_ablation_and_baselines():
    assert sorted(families.RECIPES) == sorted(EFFECTS)
    for name, effect in EFFECTS.items():
        known = plans.competitors(effect, families.RECIPES[name][0])
        assert any(label.startswith("ablation: ") for label in known), name
        assert any(label.startswith("baseline: ") for label in known), name
        for label, other in known.items():
            if label.startswith("baseline: "):
                assert other != effect.method, (name, label)
                for field in ("steps", "prompts", "group_size", "delay", "sync_every"):
                    assert getattr(other, field) == getattr(effect.method, field), (name, label)


@pytest.mark.parametrize("name", GOLD)
def test_every_method_with_gold_solutions_is_compared_with_sft_alone(name):
    sft = plans.competitors(EFFECTS[name], "gold solutions")["baseline: SFT"]
    assert sft.guidance == families.EXPERTS
    assert (sft.objective.policy, sft.objective.policy_args) == ("chord", {"mu": 1.0})
    assert (sft.objective.kl_coef, sft.objective.entropy_coef, sft.stages) == (0, 0, ())


def test_some_methods_are_measured_on_two_more_tasks():
    chosen = [name for name, effect in EFFECTS.items() if effect.on_real_model]
    assert len(chosen) >= 8
    for name in chosen:
        made = variants(EFFECTS[name])
        assert sorted(made) == ["carries", "hostile", "neutral", "regime"], name
        hostile = made["hostile"]
        for label, other in plans.competitors(hostile, families.RECIPES[name][0]).items():
            assert other.rewards is wrong_verdicts, (name, label)
    for name in set(EFFECTS) - set(chosen):
        assert not {"carries", "hostile"} & variants(EFFECTS[name]).keys(), name


def test_methods_are_measured_on_a_neutral_task_unless_they_need_their_own():
    """Rewards of a regime are left out there; those of a method stay, or it has no such task."""
    for name, effect in EFFECTS.items():
        method, found = effect.method, variants(effect)
        about_its_task = method.weights or method.stages or method.chunks.size or effect.own_task
        if not about_its_task and not method.rewards and not effect.measure:
            assert "neutral" in found, name
    made = variants(EFFECTS["tricks_or_traps_lite_ppo"])["neutral"]
    assert made.method.rewards is made.ablation.rewards is None
    made = variants(EFFECTS["ace_rl"])["neutral"]
    assert made.method.rewards != made.ablation.rewards
    assert variants(EFFECTS["cure"])["neutral"].statistic == "pass@1"
    assert {*real.planned()["methods"]} <= {n for n, e in EFFECTS.items() if e.on_real_model}


def test_the_neutral_task_is_judged_by_one_sample():
    """Of eight samples one is right on all of its problems, whatever the arm."""
    made = variants(EFFECTS["pacs"])
    assert made["regime"].statistic == "pass@8" and made["neutral"].statistic == "pass@1"


def test_sums_are_sums_and_their_demonstrations_forget_carries():
    """One naming of the tokens as digits makes every held-out solution a sum."""
    task = sums(base=6, digits=2)
    made = task.make(0)
    assert np.all(np.array(jax.vmap(task.reward)(made.test.answer, made.test.gold)) == 1)
    other = np.any(made.test.answer != made.test.answer[::-1], axis=1)
    swapped = np.array(jax.vmap(task.reward)(made.test.answer, made.test.gold[::-1]))
    assert np.all(swapped == ~other)

    def columns(problems, digits):
        values = np.array(digits)[problems.prompt[:, :4] - FIRST]
        written = np.array(digits)[problems.gold[:, :3] - FIRST] @ [1, 6, 36]
        return values[:, 0::2] @ [1, 6], values[:, 1::2] @ [1, 6], written

    def is_sum(problems, digits):
        a, b, written = columns(problems, digits)
        return a + b == written

    known = [d for d in itertools.permutations(range(6)) if is_sum(made.test, d).all()]
    assert len(known) == 1 and is_sum(made.train, known[0]).all()
    assert set(made.test.gold[:, -1]) == {EOS}
    a, b, _ = columns(made.demonstrations, known[0])
    carries = (a % 6 + b % 6 >= 6) | (a + b >= 36)
    right = is_sum(made.demonstrations, known[0])
    assert right[~carries].all() and 0.2 < right[carries].mean() < 0.6


def test_a_tenth_of_the_verdicts_are_wrong():
    verdicts = jnp.arange(4000) % 2.0
    given = lab.Sampled(*[None] * 5, verdicts, None, 0, jax.random.key(0))
    wrong = wrong_verdicts(given) != verdicts
    assert wrong.mean() == pytest.approx(WRONG, abs=0.02)
    assert wrong[::2].mean() == pytest.approx(WRONG, abs=0.03)


def test_a_bundle_is_taken_apart():
    method = lab.Arm(objective=ObjectiveConfig(policy="aepo", kl_coef=0.1), oversampling=2.0)
    plain = lab.Arm(steps=7)
    without = arms.parts(method, plain)
    assert sorted(without) == ["KL penalty", "all", "oversampling", "policy loss"]
    assert without["all"] == plain
    assert without["policy loss"].objective == ObjectiveConfig(kl_coef=0.1)
    assert without["oversampling"] == dataclasses.replace(method, oversampling=1.0)
    one = dataclasses.replace(method, objective=ObjectiveConfig(kl_coef=0.1))
    assert arms.parts(method, one) == {"policy loss": one}


def test_tuning_changes_rate_and_clip_alone():
    cispo = lab.Arm(objective=ObjectiveConfig(policy="cispo"))
    got = arms.tuned(cispo, 3e-3, 2.0)
    assert got.learning_rate == 3e-3
    assert got.objective.policy_args == {"clip_low": 1.0, "clip_high": 8.0}
    assert arms.tuned(cispo, cispo.learning_rate, 1.0) == cispo
    plain = lab.Arm(objective=ObjectiveConfig(policy="reinforce"))
    assert arms.tuned(plain, 1e-3, 2.0).objective == plain.objective


def test_tuning_for_length_keeps_the_accuracy(tmp_path):
    """The shortest setting fails at everything: it is not chosen."""
    by_rate = {3e-4: (0.40, 6.0), 1e-3: (0.39, 5.0), 3e-3: (0.0, 1.0)}

    def run(effect, given, seeds):
        accuracy, length = by_rate[given.learning_rate]
        figures = {"pass@1": [accuracy] * len(seeds), "length": [length] * len(seeds)}
        return {"final": figures, "area": figures, "minutes": 0.0}

    effect, store = EFFECTS["rorecomp"], stores.Store(tmp_path, run)
    assert (effect.statistic, effect.better) == ("length", "lower")
    chosen = tuning.tune(store, effect, effect.ablation)
    assert (chosen["learning_rate"], chosen["score"], chosen["pass@1"]) == (1e-3, 5.0, 0.39)
    accurate = dataclasses.replace(effect, statistic="pass@1", better="higher")
    assert tuning.tune(store, accurate, effect.ablation)["learning_rate"] == 3e-4


def test_figures_that_another_verifier_judged_are_not_taken(tmp_path):
    """The file of an arm is found by the problems, which two tasks may share."""

    def run(effect, given, seeds):
        figures = {"pass@1": [0.5] * len(seeds)}
        return {"final": figures, "area": figures, "minutes": 0.0}

    effect, store = EFFECTS["karl"], stores.Store(tmp_path, run)
    store.figures(effect, effect.method, (0, 1))
    store.figures(effect, effect.method, (0, 1))
    task = dataclasses.replace(effect.task, reward=lambda answer, completion: jnp.float32(0.5))
    other = dataclasses.replace(effect, task=task)
    with pytest.raises(ValueError, match="another verifier judged these figures"):
        store.figures(other, effect.method, (0, 1))


@pytest.mark.parametrize(("accuracy", "refused"), [(0.01, True), (0.5, False), (0.99, True)])
def test_a_task_at_the_floor_or_the_ceiling_is_refused(tmp_path, accuracy, refused):
    def run(effect, given, seeds):
        figures = {"pass@1": [accuracy] * len(seeds)}
        return {"final": figures, "area": figures, "minutes": 0.0}

    store = stores.Store(tmp_path, run)
    if not refused:
        assert plans.make(store, "karl", EFFECTS["karl"])
        return
    with pytest.raises(ValueError, match=f"its ablations are {accuracy:.3f} to {accuracy:.3f}"):
        plans.make(store, "karl", EFFECTS["karl"])


@pytest.mark.parametrize(
    ("name", "accuracy", "refused"),
    [
        ("alphaalign", 0.99, True),  # a measure of its own, whose statistic is an accuracy
        ("rlcr", 0.01, False),  # a measure and a statistic of its own
        ("rorecomp", 0.99, False),  # lengths can be compared where all is solved
        ("rorecomp", 0.01, True),
    ],
)
def test_a_task_is_refused_by_its_accuracies(tmp_path, name, accuracy, refused):
    effect = EFFECTS[name]

    def run(effect, given, seeds):
        figures = dict.fromkeys(("pass@1", effect.statistic), [accuracy] * len(seeds))
        return {"final": figures, "area": figures, "minutes": 0.0}

    store = stores.Store(tmp_path, run)
    if refused:
        with pytest.raises(ValueError, match="give the task other difficulties"):
            plans.make(store, name, effect)
    else:
        assert plans.make(store, name, effect)["tasks"]


@pytest.mark.broad
def test_nothing_is_measured_without_a_committed_plan(repository, monkeypatch, capsys):
    """Missing, not committed, changed after the commit, or not what the code would run."""
    fake = Fake(0.1)
    play(monkeypatch, fake)
    assert laboratory.main(["effects", "aepo"]) == 2
    assert "aepo.plan.json is missing" in capsys.readouterr().err
    assert laboratory.main(["effects", "aepo", "--plan"]) == 0
    path, tuned = repository / "aepo.plan.json", len(fake.ran)
    assert all(seeds == families.DEVELOPMENT for _, _, seeds in fake.ran)
    assert laboratory.main(["effects", "aepo"]) == 2
    assert "is not committed" in capsys.readouterr().err

    plan = path.read_text()
    files.commit([path], "Plan")
    path.write_text(plan.replace('"minimum": 0.03', '"minimum": 0.01'))
    assert laboratory.main(["effects", "aepo"]) == 2
    assert "is not committed" in capsys.readouterr().err
    files.commit([path], "Another plan")
    assert laboratory.main(["effects", "aepo"]) == 2
    assert "minimum: the plan has 0.01, the code 0.03" in capsys.readouterr().err
    path.write_text(plan)
    files.commit([path], "Plan")

    with monkeypatch.context() as changed:
        slower = dataclasses.replace(EFFECTS["aepo"].method, steps=61)
        other = dataclasses.replace(EFFECTS["aepo"], method=slower)
        changed.setattr(aepo_claim, "effect", lambda: other)
        assert laboratory.main(["effects", "aepo"]) == 2
        assert "the arm 'method' is another" in capsys.readouterr().err
    with monkeypatch.context() as changed:
        right = EFFECTS["aepo"].task
        judge = dataclasses.replace(right, reward=lambda answer, c: 1 - right.reward(answer, c))
        assert judge.digest() == right.digest()
        other = dataclasses.replace(EFFECTS["aepo"], task=judge)
        changed.setattr(aepo_claim, "effect", lambda: other)
        assert laboratory.main(["effects", "aepo"]) == 2
        assert "the task's verifier judges otherwise" in capsys.readouterr().err
    assert len(fake.ran) == tuned and not (repository / "measured.json").exists()

    assert laboratory.main(["effects", "aepo"]) == 0
    seen = {s for _, _, seeds in fake.ran[tuned:] for s in seeds}
    assert not seen & set(families.DEVELOPMENT) and min(seen) == 0
    recorded = json.loads((repository / "measured.json").read_text())["aepo"]
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert {row["plan"] for row in recorded} == {head.stdout.strip()}


@pytest.mark.broad
def test_the_queue_continues_where_it_stopped(repository, monkeypatch):
    """Stopped during the measurement: nothing is run twice, and the plan's commit comes first."""
    fake = Fake(0.1)
    stopped = []

    def stops(effect, given, seeds):
        if seeds != families.DEVELOPMENT and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        return fake(effect, given, seeds)

    play(monkeypatch, stops)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    with pytest.raises(KeyboardInterrupt):
        effects.queue(["aepo"], lambda line: None)
    effects.queue(["aepo"], lambda line: None)
    keys = [json.dumps(run, sort_keys=True) for run in fake.ran]
    assert len(keys) == len(set(keys))
    effects.queue(["aepo"], lambda line: None)
    assert len(fake.ran) == len(keys)
    log = subprocess.run(
        ["git", "log", "--format=%s", "--reverse"], cwd=repository, capture_output=True, text=True,
        check=True,
    ).stdout.split("\n")  # fmt: skip
    assert log[:2] == ["Plan of aepo", "Effect of aepo, as planned"]


@pytest.mark.broad
def test_baselines_of_a_regime_are_run_once(repository, monkeypatch):
    """ViSurf trains in GHPO's regime: its queue runs neither SFT nor LUFFY again."""
    fake = Fake(0.0)
    play(monkeypatch, fake)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["ghpo"], lambda line: None)
    first = {json.dumps(run, sort_keys=True) for run in fake.ran}
    assert any("luffy" in run for run in first)
    fake.ran.clear()
    effects.queue(["visurf"], lambda line: None)
    assert fake.ran and not any("luffy" in json.dumps(run) for run in fake.ran)


@pytest.mark.broad
@pytest.mark.parametrize(("planted", "status"), [(0.1, "effect"), (0.0, "equivalent")])
def test_rows_say_what_was_planted(repository, monkeypatch, capsys, planted, status):
    play(monkeypatch, Fake(planted))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    assert laboratory.main(["effects", "--json"]) == 0
    every = json.loads(capsys.readouterr().out)
    wanted = {
        "id", "family", "task", "against", "statistic", "effect", "interval", "seeds", "looks",
        "status", "plan", "measured",
    }  # fmt: skip
    assert all(wanted <= row.keys() for row in every)
    assert {row["id"] for row in every} == {effects_table.identity(name) for name in EFFECTS}
    mine = [row for row in every if row["id"] == "aepo"]
    assert {row["against"] for row in mine} == {"ablation", "baseline"}
    assert {row["task"] for row in mine} == {"regime", "neutral", "carries", "hostile"}
    waiting = [row for row in mine if not row["measured"]]  # DAPO was the best: it takes more
    assert all(row["best"] and row["development"] for row in waiting)
    mine = [row for row in mine if row["measured"]]
    assert {row["status"] for row in mine} == {status}
    assert all(row["seeds"] >= 8 and row["looks"] == 1 for row in mine)
    for row in every:
        if row["id"] != "aepo":
            assert not row["measured"] and row["status"] == "undecided" and row["effect"] is None
    text = (repository / "README.md").read_text()
    assert f"Measured: 1 of {len(EFFECTS)} methods" in text

    claims = (repository / "effects.md").read_text()
    word = verdicts.SAME_UNVERIFIED
    if status == "effect":  # all other arms have the same figures, which is a handicap
        unmeasured = any(row["task"] == "regime" for row in waiting)
        word = verdicts.BASELINE_UNMEASURED if unmeasured else verdicts.HANDICAPPED
    assert f"*{word}*, 1: " in claims and f"| aepo | {word} |" in claims
    assert f"*{verdicts.UNMEASURED}*, {len(EFFECTS) - 1}: " in claims

    page = repository / "page.html"
    assert laboratory.main(["effects", "--html", str(page)]) == 0
    shown = page.read_text()
    assert shown.count("<circle") == len(mine)
    hollow = len(re.findall(r'<circle[^>]*fill="#fff"', shown))
    assert hollow == (0 if status == "effect" else len(mine))
    assert shown.count("<polyline") == len(mine) + 4  # each task's method, and the others


@pytest.mark.broad
def test_a_second_measurement_stays_as_a_look(repository, monkeypatch):
    play(monkeypatch, Fake(0.1))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    again = dataclasses.replace(EFFECTS["aepo"], claim="another one")
    monkeypatch.setattr(aepo_claim, "effect", lambda: again)
    effects.write_plan("aepo", lambda line: None)
    files.commit([repository / "aepo.plan.json"], "Another plan")
    assert not any(row["measured"] for row in effects_table.rows(["aepo"]))
    effects.measure("aepo", lambda line: None)
    assert {row["looks"] for row in effects_table.rows(["aepo"])} == {2}


@pytest.mark.broad
def test_the_queue_names_a_plan_whose_arm_has_changed(repository, monkeypatch):
    fake, said = Fake(0.1), list[str]()
    play(monkeypatch, fake)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], said.append)
    assert not any("not what would be measured" in line for line in said)
    own, count = EFFECTS["aepo"], len(fake.ran)
    longer = dataclasses.replace(own.method, steps=own.method.steps + 1)
    changed = dataclasses.replace(own, method=longer)
    monkeypatch.setattr(aepo_claim, "effect", lambda: changed)
    effects.queue(["aepo"], said.append)
    named = [line for line in said if "aepo.plan.json is not what would be measured" in line]
    assert len(named) == 1 and "the arm 'method' is another" in named[0]
    assert len(fake.ran) == count


@pytest.mark.broad
def test_a_task_that_is_added_leaves_the_others_as_measured(repository, monkeypatch):
    """Neither their plans nor their rows change, and they count no further look."""
    fake = Fake(0.1)
    play(monkeypatch, fake)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    every = EFFECTS["aepo"]
    with monkeypatch.context() as changed:
        fewer = dataclasses.replace(every, on_real_model=False)
        changed.setattr(aepo_claim, "effect", lambda: fewer)
        effects.queue(["aepo"], lambda line: None)
        before, path = effects_table.rows(["aepo"]), repository / "aepo.plan.json"
        planned = json.loads(path.read_text())["tasks"]
    assert {row["task"] for row in before} == {"regime", "neutral"}
    fake.ran.clear()
    effects.queue(["aepo"], lambda line: None)
    now = json.loads(path.read_text())["tasks"]
    assert {task: now[task] for task in planned} == planned and len(now) == 4
    known = {variants(every)[task].task.digest() for task in ("hostile", "carries")}
    assert {task for task, _, _ in fake.ran} == known
    rows = effects_table.rows(["aepo"])
    figures = ("effect", "plan", "looks", "arms")
    kept = [{k: row[k] for k in figures} for row in rows if row["task"] in planned]
    assert kept == [{k: row[k] for k in figures} for row in before]
    assert {row["looks"] for row in rows} == {1} and {row["task"] for row in rows} == {*now}


@pytest.mark.broad
def test_a_row_that_a_family_always_has_is_measured_by_the_plan_that_exists(
    repository, monkeypatch
):
    """The plan and its other rows stay as they are, and only the arm of that row is run."""
    fake = Fake(0.1)
    play(monkeypatch, fake)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    before, path = effects_table.rows(["aepo"]), repository / "aepo.plan.json"
    plan = path.read_text()
    monkeypatch.setitem(families.ALWAYS, "objectives", ("CISPO",))
    assert not any(row["other"] == "CISPO" for row in before)
    fake.ran.clear()
    effects.queue(["aepo"], lambda line: None)
    assert path.read_text() == plan
    rows = effects_table.rows(["aepo"])
    added = [row for row in rows if row["other"] == "CISPO"]
    assert {row["task"] for row in added} == {row["task"] for row in before}
    assert len(rows) == len(before) + len(added) and {row["looks"] for row in rows} == {1}
    assert {row["power"] for row in added} == {None} and not any(row["best"] for row in added)
    assert {given["objective"]["policy"] for _, given, _ in fake.ran} == {"cispo"}
    assert "not planned" in (repository / "README.md").read_text()
    page = repository / "page.html"
    assert laboratory.main(["effects", "--html", str(page)]) == 0
    assert "not planned" in page.read_text()


@pytest.mark.broad
def test_pages_are_those_of_the_recorded_results():
    """What `python -m experiments effects --table` writes."""
    rows = effects_table.rows()
    assert effects_table.TABLE.read_text() == markdown.markdown(scales.markdown())
    assert claims_page.PAGE.read_text() == claims_page.markdown(rows)
    assert claims_page.PICTURE.read_text() == picture.svg(rows)
    assert len(claims_page.PICTURE.read_bytes()) < 50_000
    assert recipes.measurements() == claims_page.in_short(rows)


@pytest.mark.parametrize(
    ("status", "baseline", "changes", "fidelity", "verdict"),
    [
        ("effect", "effect", {}, "partial: x", verdicts.FAIR),
        ("effect", "effect", {"handicap": ["it is blind"]}, "partial: x", verdicts.HANDICAPPED),
        ("effect", "equivalent", {}, "partial: x", verdicts.ABLATION_ONLY),
        ("effect", "contrary", {}, "partial: x", verdicts.ABLATION_ONLY),
        ("effect", "undecided", {}, "partial: x", verdicts.BASELINE_OPEN),
        ("effect", "undecided", {"measured": False}, "", verdicts.BASELINE_UNMEASURED),
        ("contrary", "effect", {}, "verified against code", verdicts.CONTRARY),
        ("contrary", "effect", {}, "partial: x", verdicts.WORSE_UNVERIFIED),
        ("equivalent", "effect", {}, "verified against equations", verdicts.NO_EFFECT),
        ("equivalent", "effect", {}, "partial: x", verdicts.SAME_UNVERIFIED),
        ("undecided", "effect", {}, "verified against code", verdicts.UNTOLD),
        ("effect", "effect", {}, "own formula", verdicts.OWN_FORMULA),
        ("contrary", "effect", {}, "own formula", verdicts.OWN_FORMULA),
    ],
)
def test_a_claim_is_judged_by_its_primary_row(status, baseline, changes, fidelity, verdict):
    """And where that is an effect, by the one against the fair baseline; no other row counts."""
    base = {"task": "regime", "measured": True, "best": False, "handicap": [], "regime": []}
    primary = base | {"role": "primary", "status": status}
    rows = [base | {"role": "descriptive", "status": "contrary"}, primary]
    rows += [base | {"role": "baseline", "status": baseline, "best": True} | changes]
    rows += [base | {"role": "descriptive", "status": "effect", "task": "neutral", "best": True}]
    assert verdicts.verdict(rows, fidelity) == verdict
    assert verdicts.verdict(rows[-1:], fidelity) == verdicts.UNMEASURED


def test_a_fair_baseline_is_run_on_the_seeds_of_the_plan_and_once(tmp_path):
    plan = json.loads((effects_table.RESULTS / "tp_grpo.plan.json").read_text())
    seeds, effect = [], effects_table.effect_of("tp_grpo")
    planned = plan["tasks"]["carries"]
    tuned = plans.arms_of(effect, plan["family"], "carries", planned)

    def run(variant, arm, drawn):
        assert variant.task.digest() == variants(effect)["carries"].task.digest()
        assert arm == tuned["baseline: Dr. GRPO"]
        seeds.extend(drawn)
        return {"minutes": 0.0}

    store = stores.Store(tmp_path, run=run)
    assert fair.measure(store, plan, effect, "carries") == "baseline: Dr. GRPO"
    assert seeds == list(range(planned["looks"][0]))
    assert fair.measure(store, plan, effect, "carries") == ""
    assert len(seeds) == planned["looks"][0]


@pytest.mark.broad
def test_a_baseline_of_more_samples_is_not_the_fair_one():
    """Its row stays, and the best of the others has one: of kept figures, or without any."""
    for name in ("gain_rl", "aepo", "prorl"):
        rows = effects_table.rows([name])
        plan = json.loads((effects_table.RESULTS / f"{name}.plan.json").read_text())
        for task, planned in plan["tasks"].items():
            own = [row for row in rows if row["task"] == task]
            (best,) = [row for row in own if row["best"]]
            larger = {"DAPO", "dynamic sampling"} - ({"DAPO"} if name == "prorl" else set())
            scores = {
                label.removeprefix("baseline: "): chosen["score"]
                for label, chosen in planned["arms"].items() if label.startswith("baseline: ")
            }  # fmt: skip
            rivals = {k: v for k, v in scores.items() if k not in larger}
            assert best["other"] == max(rivals, key=rivals.get) and not best["larger"]
            assert best["measured"] == bool(best["interval"]) != bool(best["development"])
            known = [row["other"] for row in own if row["larger"]]
            assert known == [k for k in [max(scores, key=scores.get)] if k in larger]


@pytest.mark.broad
def test_a_rerun_compares_digests(repository, monkeypatch, capsys):
    play(monkeypatch, Fake(0.1))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    assert laboratory.main(["effects", "--rerun", "aepo"]) == 2
    effects.queue(["aepo"], lambda line: None)
    capsys.readouterr()
    assert laboratory.main(["effects", "--rerun", "aepo"]) == 0
    told = capsys.readouterr().out
    assert ": equal" in told and "differs" not in told
    play(monkeypatch, Fake(0.2))
    assert laboratory.main(["effects", "--rerun", "aepo"]) == 1
    told = capsys.readouterr().out
    assert ": differs" in told and "another type of machine" not in told
    here = views.machine()
    monkeypatch.setattr(views, "machine", lambda: "another")
    assert laboratory.main(["effects", "--rerun", "aepo"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert ": beyond noise" in told
    assert f"recorded on another type of machine ({here}) than this (another)" in told
    assert "mean 0.5986 recorded, 0.6986 now; it was recorded on another type" in told


def test_another_machine_may_differ_by_noise_alone():
    """A shift, a constant one too, and figures that no longer belong to their seeds are beyond."""
    rng = np.random.default_rng(0)
    before = 0.8 + rng.normal(0, 0.05, 24)
    rounding = rng.normal(0, 0.01, 24)
    assert reruns.within_noise(before, before)
    assert reruns.within_noise(before, before + rounding - rounding.mean())
    assert not reruns.within_noise(before, before + rounding - 0.1)
    assert not reruns.within_noise(before, before - 0.01)
    assert not reruns.within_noise(before, np.full(24, 0.15))
    assert not reruns.within_noise(before, before + rng.normal(0, 0.5, 24))
    honest = [reruns.within_noise(before, before + rng.normal(0, 0.03, 24)) for _ in range(500)]
    assert np.mean(honest) > 0.99


@pytest.mark.broad
def test_the_command_of_a_row_runs_its_two_arms(repository, monkeypatch, capsys):
    """And no others; what is not kept is not run at all."""
    fake = Fake(0.1)
    play(monkeypatch, fake)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    row = next(row for row in effects_table.rows(["aepo"]) if row["against"] == "ablation")
    command = shlex.split(row["command"])
    assert command[:3] == ["python", "-m", "experiments"]
    fake.ran.clear()
    assert laboratory.main(command[3:]) == 0
    assert len(fake.ran) == 2 and len({seeds for _, _, seeds in fake.ran}) == 1
    assert len(fake.ran[0][2]) == row["seeds"]
    (repository / "arms" / f"{row['arms'][1][0]}.json").unlink()
    fake.ran.clear()
    said = []
    plan = json.loads((repository / "aepo.plan.json").read_text())
    again = reruns.rerun(
        stores.Store(repository, fake, said.append), plan, EFFECTS["aepo"], [row["task"]]
    )
    found = [x.found for x in again]
    assert found[1] == "not kept" and found.count("equal") == len(fake.ran) == len(found) - 1
    for path in (repository / "arms").iterdir():
        path.unlink()
    assert laboratory.main(["effects", "--rerun", "aepo"]) == 1
    assert "so nothing was compared" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--arms", "ablation: all"], "arms='ablation: all' has no row in the plan; use one of"),
        (["--task", "hard"], "task='hard' has no row in the plan; use one of"),
    ],
)
def test_a_rerun_of_an_unknown_arm_names_those_that_are_known(capsys, flags, said):
    assert laboratory.main(["effects", "--rerun", "vcpo", *flags]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.broad
def test_a_real_arm_gives_its_recorded_figures_again(tmp_path):
    """A small one, trained twice; then one figure of one seed is changed in the file."""
    effect = dataclasses.replace(EFFECTS["raft"], warm_steps=2)
    store = stores.Store(tmp_path, functools.partial(lab.run_arm, steps=2))
    planned = {
        "looks": [2],
        "baseline": "baseline: GRPO",
        "arms": {
            name: {"learning_rate": 1e-3, "clip": 1.0}
            for name in ("method", "ablation: rewards", "baseline: GRPO")
        },
    }
    plan = {"family": "objectives", "tasks": {"regime": planned}}

    def again():
        return [x.found for x in reruns.rerun(store, plan, effect, labels=["method"])]

    assert again() == ["not kept"]
    store.figures(effect, arms.tuned(effect.method, 1e-3, 1.0), range(2))
    assert again() == ["equal"]
    (path,) = (tmp_path / "arms").glob("*.json")
    kept = json.loads(path.read_text())
    kept["curves"]["pass@1"][-1][1] += 0.001
    files.write(path, kept)
    assert again() == ["differs"]
    files.write(path, kept | {"machine": "another"})
    assert again() == ["within noise"]  # the statistic at the end is as it was
    kept["final"]["pass@1"] = [value - 0.1 for value in kept["final"]["pass@1"]]
    files.write(path, kept | {"machine": "another"})
    assert again() == ["beyond noise"]


@pytest.mark.broad
def test_recorded_digests_are_those_of_the_figures():
    archive.check(effects_table.RESULTS)
    arms_kept = dict(archive.read_all(effects_table.RESULTS))
    assert len(arms_kept) > 4000
    for key, kept in arms_kept.items():
        assert stores.digest_of_kept(kept) == kept["digest"], key


def test_packed_arms_are_read_as_before_and_new_ones_come_first(tmp_path):
    for key in "ab":
        files.write(archive.path_of(tmp_path, key), {"version": 1, "final": [0.25, 1e-07]})
    before = dict(archive.read_all(tmp_path))
    assert archive.pack(tmp_path) == 2 and not list((tmp_path / "arms").iterdir())
    packed = (tmp_path / archive.NAME).read_bytes()
    assert {k: {**v, "key": k} for k, v in before.items()} == dict(archive.read_all(tmp_path))
    assert archive.pack(tmp_path) == 2 and (tmp_path / archive.NAME).read_bytes() == packed
    files.write(archive.path_of(tmp_path, "b"), {"version": 2})
    assert archive.read(tmp_path, "b") == {"version": 2} and archive.read(tmp_path, "c") is None
    archive.check(tmp_path)
    (tmp_path / archive.DIGEST).write_text("0  arms.jsonl")
    with pytest.raises(ValueError, match="digest"):
        archive.check(tmp_path)


@pytest.mark.broad
def test_a_plan_that_is_not_in_the_history_is_marked(repository, monkeypatch, capsys, tmp_path):
    """In a clone with the last commits alone too, where nobody can look for it."""
    play(monkeypatch, Fake(0.1))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo", "ghpo"], lambda line: None)
    assert laboratory.main(["effects", "--history"]) == 0
    assert json.loads((repository / "history.json").read_text()) == {"lost": {}, "early": []}
    assert all(row["plan_found"] for row in effects_table.rows(["aepo", "ghpo"]))
    assert effects_table.NOT_FOUND not in (repository / "README.md").read_text()

    result = repository / "measured.json"
    plan = effects_table.rows(["aepo"])[0]["plan"]
    result.write_text(result.read_text().replace(plan, 40 * "b"))
    assert laboratory.main(["effects", "--history"]) == 0
    assert json.loads((repository / "history.json").read_text())["lost"] == {40 * "b": ["aepo"]}
    found = {row["id"]: row["plan_found"] for row in effects_table.rows(["aepo", "ghpo"])}
    assert found == {"aepo": False, "ghpo": True}
    own = sum(row["measured"] for row in effects_table.rows(["aepo"]))
    for page in ("README.md", "effects.md"):
        text = (repository / page).read_text()
        assert "| aepo † |" in text and "| ghpo |" in text
        assert text.count(f"† {own} of ") == 1
    page = repository / "page.html"
    assert laboratory.main(["effects", "--html", str(page)]) == 0
    assert "<td>aepo †" in page.read_text() and f"† {own} of " in page.read_text()

    table = (repository / "README.md").read_text()
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "All")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(shallow))
    monkeypatch.setattr(effects_table, "RESULTS", shallow)
    assert markdown.markdown(scales.markdown()) == table
    capsys.readouterr()
    assert laboratory.main(["effects", "--history"]) == 2
    assert "`git fetch --unshallow` gets" in capsys.readouterr().err


@pytest.mark.broad
def test_figures_that_are_older_than_their_plan_are_marked(repository, monkeypatch):
    """Both arms were in the history before the plan that the row names, which is there too."""
    play(monkeypatch, Fake(0.1))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    assert all(row["plan_first"] for row in effects_table.rows(["aepo"]) if row["measured"])
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "Later")
    head = files.head(repository / "measured.json")
    result = repository / "measured.json"
    looks = json.loads(result.read_text())
    looks["aepo"][0]["plan"] = head
    files.write(result, looks)
    effects_table.record_history()
    rows = [row for row in effects_table.rows(["aepo"]) if row["measured"]]
    assert [row["plan_first"] for row in rows].count(False) == 1
    assert [effects_table.mark(row) for row in rows].count(effects_table.NOT_FIRST) == 1


@pytest.mark.broad
def test_rows_state_the_power_of_their_plan():
    for name in ("areal", "vcpo", "kimi_k1_5", "veripo"):
        plan = json.loads((effects_table.RESULTS / f"{name}.plan.json").read_text())
        for row in effects_table.rows([name]):
            planned, label = plan["tasks"][row["task"]], f"{row['against']}: {row['other']}"
            if not row["by_plan"]:
                continue
            later = planned.get("later", {}).get(label, {})
            stated = later["power"] if row["further"] else planned["power"][label]
            assert row["power"] == (1.0 if np.isnan(stated) else stated)


@pytest.mark.broad
def test_the_rows_are_strict_json(capsys):
    """Plans of earlier code hold what is no number."""

    def no(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert laboratory.main(["effects", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out, parse_constant=no)
    assert len({row["id"] for row in rows}) == len(EFFECTS)
    assert all(0 < row["power"] <= 1 for row in rows if row["power"] is not None)
    for row in rows:
        if row["measured"]:
            assert 0 < row["achieved_power"] <= 1
        else:
            assert row["achieved_power"] is None


@pytest.mark.broad
def test_the_achieved_power_is_that_of_the_observed_deviation(repository, monkeypatch):
    """It stands beside the plan's on every page. The plan expected no quieter pilot than 0.03."""
    fake = Fake(0.0)

    def of_objectives(effect, given, seeds):
        """Arms of one policy loss have the same figures."""
        made, own = fake(effect, given, seeds), len(given.objective.policy)
        for k, seed in enumerate(seeds):
            made["final"]["pass@1"][k] += np.random.default_rng([own, seed]).normal(0, 0.03)
        return made

    play(monkeypatch, of_objectives)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    rows = [row for row in effects_table.rows(["aepo"]) if row["measured"]]
    compared = [
        [
            json.loads((repository / "arms" / f"{keys[0]}.json").read_text())["final"]["pass@1"]
            for keys in row["arms"]
        ]
        for row in rows
    ]
    for row, (mine, other) in zip(rows, compared, strict=True):
        spread = np.std(np.array(mine) - np.array(other), ddof=1)
        known = statistics.power(spread, row["minimum"], row["seeds"])
        assert row["achieved_power"] == pytest.approx(known, abs=1e-3)
        assert row["power"] <= round(statistics.power(0.03, 0.03, row["seeds"]), 3)
    title = "| planned power | achieved power |"
    assert title in (repository / "README.md").read_text()
    assert f"(achieved {rows[0]['achieved_power']:.2f})" in effects_table.describe(rows[0])
    page = effects_page.page(rows, repository, "", [])
    assert "<th>planned power<th>achieved power" in page
    shown = "".join(f"<td>{rows[0][k]:.2f}" for k in ("power", "achieved_power"))
    assert shown in page


@pytest.mark.broad
def test_rows_of_two_machines_say_so(repository, monkeypatch):
    play(monkeypatch, Fake(0.0))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    assert markdown.machines_sentence(effects_table.rows(["aepo"])) == []
    row = effects_table.rows(["aepo"])[0]
    path = repository / "arms" / f"{row['arms'][1][0]}.json"
    files.write(path, json.loads(path.read_text()) | {"machine": "another"})
    mixed = next(r for r in effects_table.rows(["aepo"]) if r["arms"] == row["arms"])
    assert mixed["machines"] == [[views.machine()], ["another"]]
    (line,) = markdown.machines_sentence(effects_table.rows(["aepo"]))
    assert "rows come from machines of two types" in line and "rows of aepo" in line


def test_a_large_family_is_planned_with_more_seeds(repository, monkeypatch):
    play(monkeypatch, Fake(0.1))
    for name in ("raft", "karl"):
        large = effects_table.family_rows(families.RECIPES[name][0]) > statistics.LARGE
        assert large == (name == "raft")
        effects.write_plan(name, lambda line: None)
        plan = json.loads((repository / f"{name}.plan.json").read_text())
        seeds = {planned["seeds"] for planned in plan["tasks"].values()}
        assert seeds == {18 if large else 12}


def looked_at(store, differences):
    """The rows of AEPO's plan with two looks, with planted differences [24], and its plan."""

    def run(effect, given, seeds):
        whole = given.objective.policy == "aepo" and "alpha" not in given.objective.policy_args
        own = differences if whole else np.zeros(24)
        values = [0.5 + own[s % 10000] for s in seeds]
        figures = {"pass@1": values, "tokens": [1.0] * len(values), "updates": [1.0] * len(values)}
        same = {"final": figures, "area": figures, "before": {}, "curves": {}}
        return same | {"marks": [1], "minutes": 0.0}

    store = stores.Store(store, run)
    plan = plans.make(store, "aepo", EFFECTS["aepo"])
    plan["tasks"] = {"regime": plan["tasks"]["regime"] | {"looks": [12, 24]}}
    return store, plan, list(measurement.measure(store, plan, EFFECTS["aepo"], "x"))


def test_measurement_stops_at_the_look_that_decides(tmp_path):
    """Each look has its own level, and the last one all seeds."""
    clear = np.linspace(0.08, 0.12, 24)
    slow = np.concatenate([0.02 + 0.05 * (-1.0) ** np.arange(12), np.full(12, 0.1)])
    first, both = statistics.levels([12, 24])
    store, plan, rows = looked_at(tmp_path / "clear", clear)
    assert {(row["look"], row["comparison"]["seeds"]) for row in rows} == {(1, 12)}
    assert {row["comparison"]["level"] for row in rows} == {first}
    again = list(reruns.rerun(store, plan, EFFECTS["aepo"]))
    assert [x.found for x in again] == ["equal", "not kept"] * (len(again) // 2)

    store, plan, rows = looked_at(tmp_path / "slow", slow)
    (early, late), *_ = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
    assert (early["look"], early["alone"]) == (1, "undecided")
    assert (late["look"], late["alone"], late["comparison"]["seeds"]) == (2, "effect", 24)
    assert late["comparison"]["level"] == both
    assert late["comparison"]["effect"] == pytest.approx(slow.mean())
    again = list(reruns.rerun(store, plan, EFFECTS["aepo"]))
    assert {x.found for x in again} == {"equal"}
    keys = [x.key for x in again if x.label == "method"]
    assert late["arms"][0] == keys and early["arms"][0] == keys[:1] and len(keys) == 2


def test_a_row_that_stopped_early_may_be_undecided_after_the_correction(tmp_path):
    """It stops by its own p value."""
    _, _, rows = looked_at(tmp_path, np.linspace(0.08, 0.12, 24))
    own = [
        row | {"id": "aepo", "role": "primary", "digests": [["a"], [str(n)]]}
        for n, row in enumerate(rows)
    ]
    assert {row["status"] for row in reading.corrected(own)} == {"effect"}
    null = dataclasses.asdict(statistics.paired(np.linspace(-1, 1, 12), minimum=0.03))
    others = [own[0] | {"comparison": null, "digests": [["a"], [f"x{n}"]]} for n in range(40)]
    read = reading.corrected([own[0], *others])[0]
    assert (own[0]["look"], own[0]["alone"], read["status"]) == (1, "effect", "undecided")


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize(
    ("name", "handicap"),
    [
        ("past", "it is not trained"),
        ("p5", "it gives the ablation's figures on every seed"),
        ("rlcr", "it is trained on the ablation's reward"),
        ("limr_lim", "it reads no earlier run, whose tokens are not counted"),
        ("ghpo", "the method's guide throws attempts away, which its tokens leave out"),
        ("wethink", ""),  # of its two baselines, one has another reward than the ablation
        ("karl", ""),
    ],
)
def test_handicaps_of_baselines_are_named(name, handicap):
    rows = effects_table.rows([name])
    assert not any(row["handicap"] for row in rows if row["against"] == "ablation")
    (row, *_) = [r for r in rows if r["against"] == "baseline" and r["task"] == "regime"]
    assert (handicap in row["handicap"]) if handicap else row["handicap"] == []


@pytest.mark.parametrize("budget", ["tokens", "updates"])
def test_arms_are_compared_at_equal_budgets(budget):
    """The method took twice as much: it is read where the other ended, halfway between marks."""

    def part(tokens, values):
        curves = {budget: [[t] * 2 for t in tokens], "pass@1": [[v, v + 0.1] for v in values]}
        return {"before": {"pass@1": [0.0, 0.1]}, "curves": curves}

    mine, other = [part([200, 400], [0.2, 0.6])], [part([150, 300], [0.3, 0.5])]
    final = views.at_equal(budget, EFFECTS["raft"], mine, other, 0.05)
    assert final["effect"] == pytest.approx(0.4 - 0.5) and final["seeds"] == 2
    area = dataclasses.replace(EFFECTS["raft"], over="area")
    own, its = (0.15 + 0.4) / 2, (0.3 + 0.5) / 2
    assert views.at_equal(budget, area, mine, other, 0.05)["effect"] == pytest.approx(own - its)
    del other[0]["curves"]["pass@1"]
    assert views.at_equal(budget, area, mine, other, 0.05) is None


def test_sides_of_the_forest_plot_are_those_of_the_claim():
    row = {
        "id": "x", "task": "regime", "other": "y", "effect": -1.0, "interval": [-1.2, -0.8],
        "minimum": 0.5, "status": "effect", "better": "lower",
    }  # fmt: skip
    right = float(re.search(r'<circle cx="([\d.]+)"', effects_page.forest([row]))[1])
    left = float(
        re.search(r'<circle cx="([\d.]+)"', effects_page.forest([row | {"better": "higher"}]))[1]
    )
    assert right > left


def test_the_forest_plot_cuts_neither_labels_nor_effects_without_a_mark():
    row = {
        "id": "x" * 60, "task": "regime", "other": "another <one>", "minimum": 0.5, "effect": 1.0,
        "interval": [0.8, 1.2], "status": "effect", "better": "higher",
    }  # fmt: skip
    label = f"{'x' * 60} (regime) against another &lt;one&gt;"
    inside = effects_page.forest([row])
    assert f">{label}</text>" in inside
    width = float(re.search(r'viewBox="0 0 (\d+)', inside)[1])
    start = float(re.search(r'<rect x="([\d.]+)"', inside)[1])
    assert 6.5 * len(row["id"] + " (regime) against another <one>") < start < width

    def marks(effect, low, high):
        shown = effects_page.forest([row | {"effect": effect, "interval": [low, high]}])
        shapes = ("<circle", 'class="beyond"', 'class="further"')
        return tuple(shown.count(shape) for shape in shapes)

    assert marks(1.0, 0.8, 1.2) == (1, 0, 0)
    assert marks(2.9, 2.0, 3.9) == (1, 0, 1)
    assert marks(-2.9, -3.9, 3.9) == (1, 0, 2)
    assert marks(9.0, 8.0, 10.0) == marks(-9.0, -10.0, -8.0) == (0, 1, 0)
    assert marks(4.0, -4.0, 12.0) == (0, 1, 1)
    for effect, side in ((9.0, 1), (-9.0, -1)):
        shown = effects_page.forest([row | {"effect": effect, "interval": [effect, effect]}])
        back, tip = re.search(r'd="M ([\d.]+) \d+ L ([\d.]+)', shown).groups()
        assert (float(tip) - float(back)) * side > 0


@pytest.mark.broad
def test_ids_are_those_of_the_catalogue(capsys):
    assert recipes.load("1_shot_rlvr") == recipes.load("one_shot_rlvr")
    assert laboratory.main(["effects", "--json", "1_shot_rlvr"]) == 0
    assert {row["id"] for row in json.loads(capsys.readouterr().out)} == {"1_shot_rlvr"}
    assert laboratory.main(["effects", "--check", "1_shot_rlvr"]) == 0
    assert "one_shot" not in capsys.readouterr().out
    assert {row["id"] for row in recipes.rows()} >= {"1_shot_rlvr", "aepo"}
    for name in recipes.names():
        assert recipes.load(name).recipe == name
        assert recipes.load(recipes.identity(name)) == recipes.load(name)
