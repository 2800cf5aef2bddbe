"""Parts are taken out whole, baselines are what they are called, and methods have further tasks."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import lab
from experiments.effects import command, handicaps, table
from experiments.lab import arms, families, plans, split, stores, surfaces
from experiments.lab.tasks import FIRST
from experiments.lab.variants import variants
from jaxrl.config import CurriculumConfig
from jaxrl.training.objective import ObjectiveConfig

EFFECTS = {name: table.effect_of(name) for name in table.names()}


def drawn(arm):
    """The weights of the domains at each step."""
    return [arm.at(step).weights for step in range(arm.steps)]


@pytest.mark.parametrize("name", EFFECTS)
def test_no_part_is_taken_out_by_half(name):
    """An earlier run is read by what chooses prompts, domains come in the order of one arm, and no
    penalty is put in."""
    effect = EFFECTS[name]
    without = arms.parts(effect.method, effect.ablation)
    for part, arm in without.items():
        pairs = [(a.before, a.curriculum) for a in (arm, effect.method, effect.ablation)]
        assert not arm.before or pairs[0] in pairs[1:], part
        assert drawn(arm) in (drawn(effect.method), drawn(effect.ablation)), part
        if part != "all" and len(without) > 1:
            for coefficient in ("kl_coef", "entropy_coef"):
                own, whole = (getattr(a.objective, coefficient) for a in (arm, effect.method))
                assert bool(own) <= bool(whole), (part, coefficient)


def test_fields_that_need_each_other_are_one_part():
    before = lab.Arm(learning_rate=0.0)
    chosen = CurriculumConfig(score="least_solved", keep=9)
    method = lab.Arm(objective=ObjectiveConfig(kl_coef=0.1), curriculum=chosen, before=before)
    without = arms.parts(method, lab.Arm())
    assert sorted(without) == ["KL penalty", "all", "prompts of an earlier run"]
    assert without["prompts of an earlier run"] == lab.Arm(objective=method.objective)

    first, then = (1.0, 0.0), {"weights": (0.0, 1.0)}
    staged = dataclasses.replace(method, weights=first, stages=((0, {}), (3, then)))
    without = arms.parts(staged, dataclasses.replace(method, oversampling=2.0, **then))
    assert sorted(without) == ["all", "order of domains", "oversampling"]
    assert without["order of domains"] == dataclasses.replace(method, **then)

    shared = dataclasses.replace(method, before=None)  # one of the two differs, and is the part
    assert [*arms.parts(method, shared)] == ["before"]
    other = dataclasses.replace(method, curriculum=dataclasses.replace(chosen, score="central"))
    assert [*arms.parts(method, other)] == ["curriculum"]


def test_what_the_ablation_has_beside_the_method_is_no_part():
    """To take it out would put it in. Where it is the one difference, it is the ablation."""
    method = lab.Arm(objective=ObjectiveConfig(policy="cispo"))
    penalised = ObjectiveConfig(kl_coef=0.1, kl="k2", entropy_coef=0.1)
    without = arms.parts(method, lab.Arm(objective=penalised))
    assert sorted(without) == ["all", "policy loss"]
    assert without["policy loss"].objective == ObjectiveConfig()
    alone = lab.Arm(objective=dataclasses.replace(method.objective, kl_coef=0.1))
    assert arms.parts(method, alone) == {"KL penalty": alone}


@pytest.mark.parametrize("name", [n for n in EFFECTS if families.RECIPES[n][0] == "skills"])
def test_sft_on_the_target_imitates_the_target(name):
    """Where all arms read the target's texts after the RL, it is no RL before that."""
    method = EFFECTS[name].method
    sft = plans.competitors(EFFECTS[name], "skills")["baseline: SFT on the target"]
    reads_it_later = not families.shares(method)[-1]
    assert reads_it_later == (name == "past")
    if reads_it_later:
        assert sft.learning_rate == 0
        return
    assert sft.learning_rate > 0 and sft.guidance == families.EXPERTS
    assert (sft.objective.policy, sft.objective.policy_args) == ("chord", {"mu": 1.0})
    assert sft.weights[-1] > 0 and not any(sft.weights[:-1]) and sft.stages == ()


def test_a_method_that_routes_is_compared_with_the_verifier():
    known = plans.competitors(EFFECTS["wethink"], "routing")
    assert known["baseline: GRPO on verdicts"].rewards is None


def test_baselines_of_delethink_have_a_handicap():
    assert "10 tokens" in handicaps.KNOWN["delethink_markovian_thinker"]
    effect = EFFECTS["delethink_markovian_thinker"]
    longest = effect.task.test.answer[:, -1].max()
    assert (effect.method.max_new_tokens, 2 * longest + 1) == (10, 21)


def test_a_part_that_a_plan_lacks_is_added_to_it(tmp_path):
    """The other arms and the seeds stay as they were planned."""

    def run(effect, given, seeds):
        noise = [
            np.random.default_rng([s, len(given.objective.policy)]).normal(0.5, 0.02) for s in seeds
        ]
        figures = dict.fromkeys(("pass@1", "pass@8"), noise)
        return {"final": figures, "area": figures, "minutes": 0.0}

    name, label = "grao", "ablation: policy loss"
    store = stores.Store(tmp_path, run)
    plan = plans.make(store, name, EFFECTS[name])
    older = json.loads(json.dumps(plan))
    for task, planned in older["tasks"].items():
        for field in ("arms", "power", "described"):
            del planned[field][label]
        variant = variants(EFFECTS[name])[task]
        assert plans.unplanned(variant, plan["family"], planned) == [label]
        assert plans.unplanned(variant, plan["family"], plan["tasks"][task]) == []
    made = plans.make(store, name, EFFECTS[name], older)
    for task, planned in made["tasks"].items():
        added = planned.pop("later")
        assert planned == older["tasks"][task] and [*added] == [label]
        assert added[label]["described"] == plan["tasks"][task]["described"][label]


def test_a_score_in_units_of_its_history_stays_on_the_neutral_task():
    made = variants(EFFECTS["armed"])["neutral"]
    assert made.method.rewards is made.ablation.rewards is EFFECTS["armed"].method.rewards
    assert made.method.renormalise and not made.ablation.renormalise


def test_a_further_task_is_a_variant():
    plain = EFFECTS["aepo"]
    made = variants(plain.also("control", task=lab.graded(), statistic="score"))
    assert [*made] == [*variants(plain), "control"]
    assert made["control"].task is lab.graded() and made["control"].statistic == "score"
    assert made["regime"].task is plain.task and made["control"].further == {}
    twice = variants(plain.also("one", minimum=0.1).also("two", minimum=0.2))
    assert (twice["one"].minimum, twice["two"].minimum) == (0.1, 0.2)


ELSEWHERE = [(n, task) for n, effect in EFFECTS.items() for task in effect.elsewhere]


@pytest.mark.sample(3, broad=4)
@pytest.mark.parametrize(("name", "task"), ELSEWHERE)
def test_a_further_task_is_another_and_holds_problems_out(name, task):
    effect = EFFECTS[name]
    made = variants(effect)[task]
    differing = [made.task.digest(), made.method, made.ablation]
    assert differing != [effect.task.digest(), effect.method, effect.ablation]
    assert made.stands_for == effect.stands_for and made.over == effect.over
    for seed in (0, 1, families.DEVELOPMENT[0]):
        assert command.overlap(made.task, seed) == 0
        assert len(made.task.make(seed).test.prompt) >= split.HELD_OUT


@pytest.mark.parametrize("name", [name for name, task in ELSEWHERE if task == "control"])
def test_a_control_differs_in_its_task_alone(name):
    """That of magic_token_co_training is read by plain figures, as its own need its own task."""
    effect, made = EFFECTS[name], variants(EFFECTS[name])["control"]
    if name == "magic_token_co_training":
        assert made.measure is None
        made = dataclasses.replace(made, measure=effect.measure)
    same = dataclasses.replace(made, task=effect.task, statistic=effect.statistic)
    assert same == dataclasses.replace(effect, elsewhere={}, further={})


@pytest.mark.parametrize("name", ["general_reasoner", "wethink"])
def test_controls_have_one_form_of_each_value(name):
    made = EFFECTS[name].elsewhere["control"].task.make(0)
    for problems in made:
        said = problems.gold[:, : surfaces.LENGTH] - FIRST - surfaces.VALUES
        assert not (said % surfaces.FORMS).any()
