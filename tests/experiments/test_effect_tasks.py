"""Methods have further tasks: a neutral one where it can be had, and controls."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import lab
from experiments.claims import kl_rl_as_bayesian_inference as posterior
from experiments.claims import randomcalculation
from experiments.effects import table
from experiments.lab import (
    arms,
    beliefs,
    causes,
    chains,
    confidence,
    facts,
    locks,
    operations,
    refusals,
    routes,
    scratchpads,
    skills,
    surfaces,
)
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, verdicts
from experiments.lab.variants import dealt, variants
from jaxrl.training.tries import Chunks

EFFECTS = {name: table.effect_of(name) for name in table.names()}
EVEN = ("dump", "recap", "rulereasoner_dads", "sws")


@pytest.mark.parametrize("name", EVEN)
def test_even_domains_have_a_neutral_task_without_a_difference_between_them(name):
    effect = EFFECTS[name]
    made = variants(effect)["neutral"]
    count = len(effect.method.weights)
    assert made.task.train.domain.max() == count - 1
    assert (made.method, made.ablation) == (effect.method, effect.ablation)
    assert made.statistic == "pass@1" and made.over == effect.over


def test_domains_are_dealt_out_of_the_neutral_task():
    plain, made = lab.neutral().make(1), dealt(3).make(1)
    for one, other in zip(plain, made, strict=True):
        np.testing.assert_array_equal(one.prompt, other.prompt)
        np.testing.assert_array_equal(one.gold, other.gold)
        assert np.ptp(np.bincount(other.domain)) <= 1 and len(np.bincount(other.domain)) == 3
    assert dealt(3) is dealt(3) and dealt(3).digest() != lab.neutral().digest()


def test_uneven_domains_and_budgets_have_no_neutral_task():
    plain = lab.Effect("", lab.neutral(), lab.Arm(oversampling=2.0), lab.Arm())
    hard = {"prompts": 2, "group_size": 64}
    for changed, found in (
        ({"stages": ((0, {}), (9, hard))}, True),
        ({"weights": (1.0, 1.0)}, True),
        ({"weights": (1.0, 0.5)}, False),
        ({"weights": (1.0, 1.0), "stages": ((0, {}), (9, {"weights": (1.0, 0.0)}))}, False),
        ({"stages": ((0, {}), (9, {"max_new_tokens": 3}))}, False),
        ({"max_new_tokens": 3}, False),
    ):
        for side in ("method", "ablation"):
            arm = dataclasses.replace(getattr(plain, side), **changed)
            made = dataclasses.replace(plain, **{side: arm})
            assert ("neutral" in variants(made)) == found, (side, changed)


def test_controls_lack_what_their_methods_are_for():
    """One form, one scale, one phrase, a mark in each demonstration; equally many labels."""
    one = surfaces.surfaces(forms=1).make(0)
    assert np.ptp((one.train.gold[:, : surfaces.LENGTH] - FIRST - surfaces.VALUES) % 3) == 0
    one = routes.routes(forms=1).make(0)
    assert np.ptp((one.train.gold[:, : surfaces.LENGTH] - FIRST - surfaces.VALUES) % 3) == 0
    assert not refusals.refusals(spread=0).make(0).train.answer[:, -1].any()
    assert refusals.refusals().make(0).train.answer[:, -1].max() == refusals.OFFSET
    said = chains.phrased(rare=0.0).make(0).train.gold[:, chains.LENGTH + 1 : -1]
    assert not ((said - FIRST - chains.SYMBOLS) % 2).any()
    marked = skills.domains(marked=1.0, known=True).make(0)
    assert (marked.demonstrations.gold[:, 0] == FILLER).all()
    assert (marked.train.gold[:, 0] == FILLER).all()


def test_the_first_choice_of_a_lock_is_right_as_often_as_asked():
    plain = (locks.Trace(mistakes=1),)
    sure = locks.locks(plain, likely=(1.0, 0.0, 0.0), problems=64).make(0).demonstrations
    usual = locks.locks(plain, problems=64).make(0).demonstrations
    assert not (sure.gold == locks.NO).any() and (usual.gold == locks.NO).any()


@pytest.mark.sample(12, broad=12)
@pytest.mark.parametrize("name", EFFECTS)
def test_each_method_has_two_tasks_that_differ(name):
    made = variants(EFFECTS[name])
    assert len(made) > 1
    digests = {
        (e.task.digest(), verdicts(e.task), arms.describe(e.method)["rewards"])
        for e in made.values()
    }
    assert len(digests) == len(made)


def test_no_recorded_figures_are_of_two_verifiers():
    """They are found by the problems of a task, which another task may share."""
    judged: dict[str, set[str]] = {}
    for name, effect in EFFECTS.items():
        made = variants(effect)
        for row in table.recorded(name):
            if row["task"] in made:
                for key in itertools.chain(*row["arms"]):
                    judged.setdefault(key, set()).add(verdicts(made[row["task"]].task))
    assert len(judged) > 500
    assert [key for key, verifiers in judged.items() if len(verifiers) > 1] == []


def test_further_tasks_differ_in_what_their_docstrings_say():
    every = confidence.uncertain(usual=(1.0,) * confidence.SOURCES).make(0).train
    codes = {}
    for prompt, answer in zip(every.prompt[:, 1:3], every.answer, strict=True):
        for symbol, code in zip(prompt, answer, strict=True):
            assert codes.setdefault(symbol, code) == code
    lengths = (chains.cut_text(shortest=2).make(0).train.gold > EOS).sum(axis=1)
    assert set(lengths) == {2, 3}
    five = operations.formats(length=5).make(0)
    assert five.test.prompt.shape[1] == 7
    chain = five.train.gold[five.train.domain == operations.SHORT]
    assert (np.argmax(chain == EOS, axis=1) == 5).all()
    whole = beliefs.beliefs(silent=0.0).make(0).demonstrations.gold
    assert (whole[:, beliefs.EVENTS] == ASK).all()
    seldom = causes.causes(named=0.2).make(0).demonstrations
    flawed = seldom.answer[:, 0] != FILLER
    named = (seldom.gold == seldom.answer[:, [0, 1, 1]])[flawed, 0]
    assert 0.15 < named.mean() < 0.25
    right = facts.claimed(skill=1.0).make(0).demonstrations
    assert (right.gold[:, : facts.LENGTH] == right.answer[:, : facts.LENGTH]).all()
    best = jnp.zeros(3, jnp.int32)
    assert posterior.alike(best, best) == 1 and posterior.score(best, best) == pytest.approx(1 / 3)


@pytest.mark.broad
def test_a_contaminated_start_has_seen_the_benchmark_alone():
    """With its answers, in half of the demonstrations; the RL has no problem of it."""
    fresh, leaked = (
        randomcalculation.contaminated(benchmark=each).make(3) for each in (False, True)
    )
    held_out, benchmark, trained = (
        {row.tobytes() for row in split.prompt} for split in (fresh.test, leaked.test, fresh.train)
    )
    assert len(benchmark) == randomcalculation.BENCHMARK and len(trained) == 256
    assert not benchmark & held_out and not benchmark & trained
    shown = fresh.demonstrations
    known = np.array([row.tobytes() in benchmark for row in shown.prompt])
    assert 0.45 < known.mean() < 0.55
    judge = jax.vmap(randomcalculation.contaminated().reward)
    assert judge(shown.answer[known], shown.gold[known]).mean() > 0.95
    assert judge(shown.answer[~known], shown.gold[~known]).mean() < 0.8


def test_rollouts_label_as_many_solutions_where_the_cost_does_not_count(monkeypatch):
    seen = []

    def fitted(content, said, labels, **_):
        seen.append(len(labels))
        return np.zeros((scratchpads.STEPS, *[scratchpads.BASE] * 3))

    monkeypatch.setattr(scratchpads, "fitted", fitted)
    scratchpads.scratchpads(at_cost=False).make(0)
    scratchpads.scratchpads(labelled=240).make(0)
    assert seen[:3] == [240, 240, 240] and seen[3] < 200


def test_whole_demonstrations_go_to_the_end_of_a_walk():
    chunks = Chunks(size=6, carry=2)
    whole, cut = (chains.walk(chunks, whole=each).make(0).demonstrations for each in (True, False))
    lengths = [(d.gold > 0).sum(axis=1) for d in (whole, cut)]
    assert lengths[0].max() == 21 and lengths[1].max() == chunks.size
    assert ((whole.gold == EOS).sum(axis=1) == 1).all()
    assert not ((cut.gold == EOS).sum(axis=1) == 1).all()
