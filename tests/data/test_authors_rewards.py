"""Our rewards against numbers that the authors' own functions gave.

A fixture holds inputs, constants and outputs of a public function, and names its repository,
commit, file and lines; the code itself is not here. Where a language model judges in it, a rule of
the fixture did.
"""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

from experiments.lab.beliefs import EVENTS, beliefs
from experiments.lab.tasks import ASK, EOS, FIRST, PAD
from jaxrl.data.environments.games import diagnosis
from jaxrl.data.environments.search import recall, retrieval
from jaxrl.data.environments.work import routing
from jaxrl.data.rewards import group, steps, text, verifier, wrappers
from jaxrl.data.sources import extract
from jaxrl.data.tasks.programs import bounds
from jaxrl.data.types import Problem, Score
from jaxrl.launch import recipes
from jaxrl.launch.recipes.search_agents import zerosearch
from jaxrl.losses.advantages import credit

FIXTURES = Path(__file__).with_name("authors_rewards.json")


@functools.cache
def fixtures():
    return json.loads(FIXTURES.read_text())


def fixture(name):
    """Inputs, constants and outputs."""
    found = fixtures()[name]
    assert found.keys() == {"source", "commit", "function", "constants", "inputs", "outputs"}
    return (SimpleNamespace(**found[part]) for part in ("inputs", "constants", "outputs"))


def equal(ours, theirs, tolerance=1e-6):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", sorted(fixtures()))
def test_a_fixture_is_of_the_code_that_the_recipe_names(name):
    found = fixtures()[name]
    source = f"{found['source'].split()[0]}@{found['commit']}"
    assert source in recipes.documented(name)["source"]


def test_rlcr():
    """Theirs is the sum of three parts of equal weight: form, right, and 1 less the Brier score.

    Not compared: the part for the form, which ours has not; other orders of the tags and text after
    them, which are malformed to them alone; and a confidence as `8e-1` or in two places, of which
    they read the last.
    """
    given, _, want = fixture("rlcr")
    reward = wrappers.calibrated(text.closeness("exact_match", "tags"))
    scores = [
        reward(Problem("p", "q", answer), completion)
        for completion, answer in zip(given.completions, given.answers, strict=True)
    ]
    equal([score.parts["format"] for score in scores], want.format)
    equal([score.value for score in scores], np.add(want.accuracy, want.brier) - 1)


def test_knowrl():
    """Ours has no tags around the answer.

    Not compared: answers without a thought, which only tags set apart; and empty thoughts and
    answers and text after the answer, which are malformed to them, where ours asks for the end of a
    thought alone.
    """
    given, constants, want = fixture("knowrl")
    reward = wrappers.factual(text.closeness("exact", "text"))
    problem = Problem("p", "q", constants.answer, metadata={"row": {"facts": constants.facts}})
    scores = [
        reward(problem, completion.replace("<answer>", "").replace("</answer>", ""))
        for completion in given.completions
    ]
    equal([2 * score.parts["format"] - 1 for score in scores], want.format)
    equal([score.value for score in scores], np.add(want.combined, want.format))
    assert {score.parts["refused"] for score in scores} == {0.0, 1.0}


def test_general_reasoner():
    """The wrapper takes all that follows a thought for the answer, so it gets that alone.

    Not compared: an answer that is not there and is accepted, which costs no length in ours.
    """
    given, _, want = fixture("general_reasoner")

    def accepts(problem, answer):
        reference = problem.answer.lower().split()
        return answer.lower().split()[: len(reference)] == reference

    def inner(problem, completion):
        return Score(float(accepts(problem, extract.spoken(completion))))

    boxed, rest = verifier.by_verdict(extract.boxed, accepts), wrappers.length_checked(inner)
    problems = [Problem("p", "q", answer) for answer in given.answers]
    pairs = list(zip(problems, given.completions, strict=True))
    equal([boxed(*pair).value for pair in pairs], want.scores)
    bare = [f"<think>so</think>{extract.boxed(completion) or ''}" for _, completion in pairs]
    equal([rest(*pair).value for pair in zip(problems, bare, strict=True)], want.scores)


def test_zerosearch():
    """Not compared: steps between the ten at which the recipe's noise grows."""
    given, constants, want = fixture("zerosearch")
    total = constants.total_steps
    equal([zerosearch.noise(min(step / total, 1)) for step in given.steps], want.thresholds)
    for step, threshold in zip(given.steps, want.thresholds, strict=True):
        stage = zerosearch.METHOD.stages.get(step / total)
        assert stage is None or stage["task_args.noise"] == pytest.approx(threshold)
    assert len(zerosearch.METHOD.stages.keys() & {step / total for step in given.steps}) == 10


def test_rlpr():
    """Theirs is rounded to eight bits.

    Not compared: an empty reference, which is 0 to them and no score here; the part for the format,
    and the filter of prompts.
    """
    given, _, want = fixture("rlpr")
    ours = group.reference_probability(np.array(given.logp), np.array(given.mask))
    equal(ours, want.scores, 2**-8)
    equal(group.debiased_probability(ours, np.array(given.without)), want.rewards, 2**-8)
    exact = np.array(want.scores) * 128 % 1 == 0
    assert exact.sum() >= 5
    equal(ours[exact], np.array(want.scores)[exact])


@pytest.mark.parametrize("place", range(3))
def test_router_r1(place):
    """Their quantiles are set to 0 and to what an episode can cost, by which ours is scaled.

    Not compared: more calls than are allowed, and their rules for how a model is asked.
    """
    given, constants, want = fixture("router_r1")
    metadata = {"experts": constants.experts, "level": constants.level}
    problem = Problem("p", "q", constants.answer, metadata=metadata)
    turns = routing.task(experts=3, calls=2, price=given.cost_coe[place]).turns

    def played(actions):
        desk, _ = turns.begin(problem, 0)
        return [turns.step(desk, action) for action in actions][-1]

    replies = [played(actions) for actions in given.actions]
    assert all(reply.done for reply in replies)
    equal([reply.parts["spent"] for reply in replies], given.prices)
    equal([reply.reward for reply in replies], want.rewards[place])


def test_ur2():
    """In units of the most that can be had.

    Not compared: more than four calls, and each rule of what is malformed.
    """
    given, _, want = fixture("ur2")
    columns = zip(given.right, given.formed, given.calls, given.search, strict=True)
    ends = [recall.Ended(*column) for column in columns]
    equal([8 * recall.retrieve(end) for end in ends], want.first)
    equal([3 * recall.answer(end) for end in ends], want.second)


def test_ssrl():
    """Not compared: thoughts that are not one more than searches, which have a part of the form to
    them, and more than eight, which have none."""
    given, _, want = fixture("ssrl")
    columns = zip(given.right, given.formed, given.searches, strict=True)
    equal([recall.ssrl(recall.Ended(*column, tool=False)) for column in columns], want.rewards)


def test_vulnerability_detection():
    """Their -1 is 0 here.

    Not compared: the part for the form; thoughts that contradict the verdict, and completions that
    were cut, which are wrong to them whatever they say.
    """
    given, constants, want = fixture("vulnerability_detection")
    tasks = {level: bounds.task(level=level).reward for level in bounds.LEVELS}
    whole, compared = wrappers.product(tasks["label"]), 0
    for flawed, completion, ended, answer, verdict, cause in zip(
        given.flawed, given.completions, given.ended, given.answers, want.verdict, want.cause,
        strict=True,
    ):  # fmt: skip
        problem = Problem("p", "q", constants.line if flawed else 0, metadata={"lines": 3})
        ours = f"<answer>{answer}</answer>"
        if not ended:
            assert verdict == cause == -1
            continue
        assert 2 * tasks["label"](problem, ours).value - 1 == verdict
        if ("safe" in completion.partition("</think>")[0]) != ("NO_VUL" in completion):
            assert cause == -1
            continue
        assert 2 * tasks["cause"](problem, ours).value - 1 == cause
        assert 2 * whole(problem, ours).value - 1 == cause
        compared += 1
    assert compared >= 9


def test_deepresearcher():
    """Answers are names, of which theirs reads one as ours does.

    Not compared: answers of several words, whose F1 is of sets of words, and an answer in its form
    that names nothing, which is 0 to them and malformed here.
    """
    given, constants, want = fixture("deepresearcher")
    turns = retrieval.task(hops=1, searches=0, malformed=-1.0).turns
    metadata = {"facts": ((0, "a", constants.answer), (0, "d", "c")), "chain": ("a", "b")}
    problem = Problem("p", "1a", constants.answer, metadata=metadata)

    def judged(action):
        reply = turns.step(turns.begin(problem, 0)[0], action)
        assert reply.done
        return reply.reward

    equal([judged(action) for action in given.actions], want.scores)
    assert set(want.scores) == {-1.0, 0.0, 1.0}


def test_tom_rl_vs_sft():
    """Their 3, for the form and the answer, is 1 here, and all else 0.

    Not compared: an answer in another spelling or within a sentence, and no thought at all, which
    is no form to them and leaves nothing out here.
    """
    given, constants, want = fixture("tom_rl_vs_sft")
    symbols = {"ASK": ASK, "EOS": EOS}
    symbols |= {name: FIRST + place for place, name in enumerate(("one", "two", "three"))}
    completions = [[symbols[name] for name in row.split()] for row in given.tokens]
    padded = np.array([row + [PAD] * (EVENTS + 4 - len(row)) for row in completions], np.int32)
    answer = jnp.full(EVENTS, symbols[constants.answer.split()[-1]])
    ours = jax.jit(jax.vmap(functools.partial(beliefs().reward, answer)))(padded)
    np.testing.assert_array_equal(ours, np.array(want.scores) == 3)


def test_bleuberi():
    """Equal where every n-gram is in the reference, however short the response is.

    Elsewhere they add 1 to all counts, of matches and of n-grams. The counts, and so the tokens,
    are equal. Not compared: a tag that is not closed, of which they score the rest.
    """
    given, _, want = fixture("bleuberi")
    bleu, whole = sacrebleu.BLEU(effective_order=True), 0
    for completion, answer, theirs in zip(
        given.completions, given.answers, want.scores, strict=True
    ):
        find = "tags" if "<answer>" in completion else "text"
        ours = text.closeness("bleu", find)(Problem("p", "q", answer), completion).value
        response = extract.EXTRACTORS[find](completion)
        if response is None:
            assert ours == theirs == 0
            continue
        counted = bleu.sentence_score(response, [answer])
        equal(ours, min(counted.score / 100, 1))
        smoothed = (np.array(counted.counts) + 1) / (np.array(counted.totals) + 1)
        equal(counted.bp * np.exp(np.log(smoothed).mean()), theirs)
        if counted.counts == counted.totals:
            equal(ours, theirs)
            whole += 1
    assert whole >= 6


def test_spare():
    """Their labels are a language model's, but for the last and those that it left out."""
    given, constants, want = fixture("spare")
    ours = [steps.aligned(row, constants.reference) for row in given.steps]
    assert [[int(label) for label in row] for row in ours] == want.labels


def test_promed_shapley_values_and_weights():
    """Theirs is a mean over orders, of which each was drawn once."""
    given, constants, want = fixture("promed")
    for worth, values in zip(given.worths, want.shapley, strict=True):
        equal(diagnosis.shapley(np.array(worth)), values)
    for (disease, findings), values, weights in zip(
        given.patients, given.values, want.weights, strict=True
    ):
        findings = tuple(findings)
        equal(diagnosis.shapley(diagnosis.worth(disease, findings)), values)
        for temperature, theirs in zip(constants.temperatures, weights, strict=True):
            equal(diagnosis.weighed(disease, findings, temperature), theirs)


@pytest.mark.parametrize("place", range(2))
def test_promed_rewards_of_turns(place):
    """Rewards of turns, of which ours makes advantages in its own way.

    Not compared: a fact that is asked for again, which earns again with them; format, deviation.
    """
    given, constants, want = fixture("promed")
    rewards = np.array(want.turn_rewards[place])
    gains = [
        [sum(constants.fact_weights[j] for j in turn) for turn in t] for t in given.facts_found
    ]
    later = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    gained = [[*row, float(right)] for row, right in zip(gains, given.right, strict=True)]
    advantages = functools.partial(
        credit.promed,
        num_groups=1,
        process=constants.alpha[place],
        outcome=constants.beta,
        answer=constants.gamma,
        scale="none",
    )
    mask = jnp.ones(rewards.shape, bool)
    ours = jax.jit(advantages)(jnp.array(gained), jnp.zeros(len(gains), jnp.int32), step_mask=mask)
    equal(ours, later - later.mean(axis=0))
