"""What recipes with judges, rubrics and reward models of several parts compute, by hand."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.claims import armed as armed_claims
from experiments.claims import wethink
from experiments.claims import wingpt_3_0 as wingpt_3_0_claims
from experiments.lab import greetings, routes, scores, scratchpads, surfaces, tradeoffs
from experiments.lab.tasks import EOS, FIRST, PAD
from jaxrl.data import tasks
from jaxrl.data.rewards.judged import principles
from jaxrl.data.sources import generate
from jaxrl.data.tasks.math import arithmetic
from jaxrl.extensions.renormalise import RenormaliseConfig
from jaxrl.launch import recipes
from jaxrl.launch.recipes.reward_models import creative_slm_rlaif as creative
from jaxrl.launch.recipes.skills import dynamic_control as dynamic
from tests.launch.test_recipe_functions import first, sampled


def test_parts_of_a_reward_are_added_or_the_second_is_put_into_units_of_its_history():
    """Two steps of two seeds, in float64 by the formula; a failed score is in no history."""
    rng = np.random.default_rng(0)
    steps = [np.stack([rng.integers(2, size=(2, 6)), 0.8 + 0.05 * rng.random((2, 6))], -1)]
    steps.append(steps[0] + [0, 0.01])
    steps[1][1, 4] = np.nan
    add = scores.settling(None, 2)
    settle = scores.settling(RenormaliseConfig(part="judge", weight=0.5, decay=0.9, clip=1.2), 2)
    for step in steps:
        np.testing.assert_allclose(add(step), step.sum(axis=-1), rtol=1e-6)
    found = [settle(step) for step in steps]
    for seed in range(2):
        exact, first = steps[0][seed].T
        z = np.clip((first - first.mean()) / (first.std() + 1e-6), -1.2, 1.2)
        np.testing.assert_allclose(found[0][seed], exact + 0.5 * z, rtol=1e-4)
        good = ~np.isnan(steps[1][seed, :, 0])
        exact, second = steps[1][seed, good].T
        mean = (0.9 * first.mean() + second.mean()) / 1.9
        square = (0.9 * (first**2).mean() + (second**2).mean()) / 1.9
        z = np.clip((second - mean) / (np.sqrt(square - mean**2) + 1e-6), -1.2, 1.2)
        np.testing.assert_allclose(found[1][seed, good], exact + 0.5 * z, rtol=1e-4)
        assert np.isnan(found[1][seed, ~good]).all()
    assert np.isnan(found[1]).sum() == 1 and (np.abs(z) == 1.2).any()


def test_without_a_part_the_whole_reward_is_renormalised():
    rewards = np.array([[1.0, 3.0]], np.float32)
    settle = scores.settling(RenormaliseConfig(weight=2.0), 1)
    np.testing.assert_allclose(settle(rewards), [[-2.0, 2.0]], rtol=1e-5)
    with pytest.raises(ValueError, match=r"renormalise\.part='judge': .* be \[N, 2\]"):
        scores.settling(RenormaliseConfig(part="judge"), 1)(rewards)


def test_armed_has_a_judge_whose_scores_are_close_to_each_other():
    share = jnp.array([0.0, 1 / 3, 2 / 3, 1.0] * 200)
    exact, score = np.asarray(armed_claims.narrow(sampled(np.ones((800, 4)), rewards=share))).T
    np.testing.assert_array_equal(exact, [0, 0, 0, 1] * 200)
    means = score.reshape(-1, 4).mean(axis=0)
    np.testing.assert_allclose(means, 0.80 + 0.05 * np.arange(4) / 3, atol=0.003)
    assert 0.008 < score.reshape(-1, 4).std(axis=0).mean() < 0.012
    method, ablation = armed_claims.effect().method, armed_claims.effect().ablation
    assert method.renormalise == recipes.load("armed").extensions["renormalise"]
    assert ablation.renormalise is None and ablation.rewards is method.rewards


def test_wethink_asks_the_rule_where_it_can_check():
    """Other forms, other values and open ends, by tables of what the judge takes."""
    task = routes.routes()
    made = task.make(0)
    assert (jax.vmap(task.reward)(made.test.answer, made.test.gold) == 1).all()
    problems = first(made.train, 64)
    free = problems.domain == 1
    accepts = problems.answer[:, 3:-1].reshape(64, 3, surfaces.WRITTEN)
    own = problems.gold[:, :3] - FIRST - surfaces.VALUES
    assert (own[~free] % surfaces.FORMS == 0).all() and 0 < free.mean() < 1
    rng = np.random.default_rng(0)
    for change in (own, own + (own % surfaces.FORMS == 0), rng.integers(36, size=own.shape)):
        tokens = np.concatenate([FIRST + surfaces.VALUES + change, problems.gold[:, 3:]], axis=1)
        same = (change == own).all(axis=1)
        equal = (change // surfaces.FORMS == own // surfaces.FORMS).all(axis=1)
        taken = np.take_along_axis(accepts, change[..., None], axis=2)[..., 0].all(axis=1)
        batch = sampled(tokens, problems=problems)
        np.testing.assert_array_equal(routes.by_rule(batch), same)
        np.testing.assert_array_equal(routes.by_judge(batch), taken)
        np.testing.assert_array_equal(routes.by_route(batch), np.where(free, taken, same))
        truth = jax.vmap(task.reward)(problems.answer, tokens)
        np.testing.assert_array_equal(truth, np.where(free, equal, same))
        unended = sampled(np.where(tokens == EOS, PAD, tokens), problems=problems)
        assert not np.any(routes.by_rule(unended)) and not np.any(routes.by_judge(unended))
    chosen = dataclasses.replace(wethink.effect().method, rewards=None)
    for rewards, share in ((routes.by_route, 0.5), (routes.by_judge, 1.0), (routes.by_rule, 0.0)):
        arm = dataclasses.replace(chosen, rewards=rewards)
        assert routes.share_judged(task, arm) == share


def test_wingpt_adds_half_of_what_a_model_finds_of_the_steps():
    """Against the model's own tables: right answers and wrong ones, and the toy's task."""
    problems = first(scratchpads.scratchpads().make(0).train, 32)
    tokens = np.array(problems.gold)
    tokens[::2, 1] = FIRST + (tokens[::2, 1] - FIRST + 1) % scratchpads.BASE
    rewards = jnp.arange(32) % 3 == 0
    batch = sampled(tokens, rewards=rewards.astype(float), problems=problems)
    chances = np.asarray(scratchpads.chances(batch, 0), np.float64)
    want = 0.5 * np.asarray(rewards) + 0.5 * np.prod(chances, axis=1)
    np.testing.assert_allclose(wingpt_3_0_claims.mixed(batch), want, rtol=1e-5)
    config = recipes.load("wingpt")
    task = tasks.get(config.task, **config.task_args)
    problem = task.problem("train", 0, 0)
    steps = arithmetic.steps(problem.prompt.rstrip("="))
    assert task.reward(problem, "=".join(steps)).value == 1.0
    assert (
        task.reward(problem, "=".join(["0", *steps[1:]])).value == wingpt_3_0_claims.WEIGHT + 0.25
    )


def test_dynamic_control_weighs_three_rewards_in_conflict():
    """Heads and rewards in float64; what is all in the style of most weight has 1."""
    task = tradeoffs.tradeoffs()
    made = task.make(0)
    assert (jax.vmap(task.reward)(made.test.answer, made.test.gold) == 1).all()
    problems = first(made.train, 48)
    rng = np.random.default_rng(0)
    codes = problems.answer[:, :-1].reshape(48, 3, 4)
    chosen = rng.integers(3, size=(48, 4))
    said = np.take_along_axis(codes, chosen[:, None], axis=1)[:, 0]
    said[::3, 0] = 0  # one wrong symbol
    tokens = np.concatenate([said, np.full((48, 1), EOS)], axis=1)
    counts = np.stack([((chosen == k) & (said > 0)).sum(axis=1) for k in range(3)], axis=1)
    want = counts / 4
    np.testing.assert_allclose(tradeoffs.heads(tokens, problems.answer), want, rtol=1e-6)
    batch = sampled(tokens, problems=problems)
    np.testing.assert_allclose(tradeoffs.even(batch), want.mean(axis=1), rtol=1e-6)
    weighed = (tradeoffs.WEIGHTS[problems.domain] * want).sum(axis=1) / 0.7
    got = jax.vmap(task.reward)(problems.answer, tokens)
    np.testing.assert_allclose(got, weighed, rtol=1e-4)
    assert not np.any(tradeoffs.heads(np.where(tokens == EOS, PAD, tokens), problems.answer))
    shares = np.bincount(made.train.domain) / len(made.train.domain)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.01)


def test_dynamic_control_reads_a_row_of_the_rewards(monkeypatch):
    rewards = np.arange(12.0).reshape(1, 6, 2) / 11
    monkeypatch.setattr(tradeoffs, "attempts", lambda *_, **__: (None, rewards))
    shown = SimpleNamespace(test=SimpleNamespace(domain=np.array([[0, 1, 2, 0, 1, 2]])))
    got = tradeoffs.controlled(None, shown, None, None, None)
    np.testing.assert_allclose(got["score/2"], [np.mean(rewards[0, [2, 5]])])
    np.testing.assert_allclose(got["score"], [0.5])
    np.testing.assert_allclose(got["pass@1"], [1 / 12])


def test_the_toy_of_dynamic_control_states_its_weights():
    """In three styles, by hand: two plain letters, a capital and a turned one."""
    task = dynamic.task()
    problem = generate.user_problem("tradeoffs", "1:bdak=", "1:bdak=", "bdak")
    score = task.reward(problem, "bdAx")
    assert score.parts == {"plain": 0.5, "capital": 0.25, "turned": 0.25}
    assert score.value == pytest.approx(0.1 * 0.5 + 0.7 * 0.25 + 0.2 * 0.25)
    assert task.reward(problem, "bda").value == 0 == task.reward(problem, "bdakk").value
    sides = [{task.problem(s, 0, i).prompt for i in range(60)} for s in ("train", "test")]
    assert not sides[0] & sides[1] and {p[0] for p in sides[0]} == {"0", "1", "2"}
    found = tasks.get(recipes.load("dynamic_control").task).problem("train", 0, 0)
    assert len(task.gold(found)) == 4 and task.reward(found, task.gold(found)).value > 0.1


def test_principles_move_where_two_answers_are_ranked_wrongly():
    """Two rounds by hand; a list that ranks all pairs rightly stays as it is."""
    better, worse = np.array([[1.0, 0.0], [0.5, 1.0]]), np.array([[0.0, 2.0], [1.0, 0.0]])
    # gaps (1, -2) and (-0.5, 1); even weights rank the first wrongly: (1, 1) + (1, -2), then
    # (2, -1) ranks the second wrongly: (2, -1) + (-0.5, 1)
    got = principles.reflected(better, worse, np.ones(2), rounds=2)
    np.testing.assert_allclose(got, [(2 + 1.5) / 2, (-1 + 0) / 2])
    np.testing.assert_array_equal(principles.reflected(better[1:], worse[1:], np.ones(2)), [1, 1])


def test_creative_writing_has_principles_that_rank_its_cases():
    better, worse = np.array(creative.CASES).transpose(1, 0, 2)
    rubric = json.loads(creative.rubric())
    weights = [each["weight"] for each in rubric["criteria"].values()]
    assert (better @ np.ones(3) <= worse @ np.ones(3)).any()
    assert (better @ weights > worse @ weights).all()
    config = recipes.load("creative_slm_rlaif")
    task = tasks.get(config.task, **config.task_args)
    found = task.problem("train", 0, 0)
    assert 0 < task.reward(found, task.gold(found)).value <= 1


@pytest.mark.broad
def test_a_hidden_quality_is_what_a_judge_and_a_model_learn_from_pairs():
    """Quality, marks and scores by hand; the judge is nearer to it in each of three instances."""
    task = greetings.greetings()
    made = task.make(0)
    assert (jax.vmap(task.reward)(made.test.answer, made.test.gold) == 1).all()
    problems = first(made.train, 128)
    right = problems.answer[:, :12].reshape(128, 4, 3)
    truth, judge = problems.answer[0, 12:19] / 100, problems.answer[0, 19:26] / 100
    rng = np.random.default_rng(1)
    chosen = rng.integers(-1, 4, size=(128, 3))
    said = np.take_along_axis(right, np.maximum(chosen, 0)[:, None], axis=1)[:, 0]
    said = np.where(chosen < 0, FIRST + greetings.SYMBOLS * greetings.STYLES, said)
    tokens = np.concatenate([said, np.full((128, 1), EOS)], axis=1)
    each = [(chosen >= 0).mean(axis=1), *((chosen == k).mean(axis=1) for k in range(4))]
    same = (chosen >= 0).all(axis=1) & (np.ptp(chosen, axis=1) == 0)
    marks = np.stack([*each, same, chosen[:, 0] == 0], axis=1)
    np.testing.assert_allclose(greetings.marks(chosen), marks, rtol=1e-6)
    worst = min(0.0, 1 + truth[1:5].min())
    want = (marks @ truth - worst) / (1.8 - worst)
    got = np.asarray(jax.vmap(task.reward)(problems.answer, tokens))
    np.testing.assert_allclose(got, want, atol=1e-5)
    batch = sampled(tokens, problems=problems)
    np.testing.assert_allclose(greetings.by_principles(batch), marks @ judge, atol=1e-4)
    table = problems.answer[:, 26:].reshape(128, 3, 64) / 100
    codes = np.maximum(said - FIRST, 0)
    scores = np.take_along_axis(table, np.minimum(codes, 63)[..., None], axis=2)[..., 0]
    scores = np.where(chosen < 0, -1.0, scores).sum(axis=1)
    np.testing.assert_allclose(greetings.by_pairs(batch), scores, atol=1e-4)
    assert np.corrcoef(got, marks @ judge)[0, 1] > np.corrcoef(got, scores)[0, 1] > 0.3
    cut = sampled(np.where(tokens == EOS, PAD, tokens), problems=problems)
    np.testing.assert_array_equal(greetings.by_pairs(cut), -3)
    np.testing.assert_array_equal(greetings.by_principles(cut), 0)
