"""What recipes define for themselves, and the tasks that were made for them, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import lab
from experiments.claims import (
    bleuberi,
    general_reasoner,
    knowrl,
    rlcr,
    rlpr,
    rlpt,
    rubicon_rubric_anchors,
    simplerl_zoo,
)
from experiments.claims import post_training_for_vulnerability_detectio as vulnerability
from experiments.lab import (
    Sampled,
    causes,
    chains,
    confidence,
    facts,
    refusals,
    steering,
    surfaces,
    thoughts,
)
from experiments.lab.policy import all_logprobs
from experiments.lab.policy import shape as model_of
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD
from jaxrl.config import stages
from jaxrl.data import tasks
from jaxrl.data.rewards import shape
from jaxrl.data.selection import curriculum
from jaxrl.data.types import Problem, Score
from jaxrl.launch import recipes
from jaxrl.launch.recipes.game_agents import gtr
from jaxrl.launch.recipes.length import campo, kimi_k1_5
from jaxrl.launch.recipes.objectives import dph_rl, rast, scalerl
from jaxrl.launch.recipes.search_agents import zerosearch
from jaxrl.losses.policy import mixed
from jaxrl.losses.preference import reward_model
from jaxrl.models import decoder
from jaxrl.sampling.logits import Context
from jaxrl.training.tries import Chunks


def sampled(tokens, rewards=None, problems=None, score=None):
    """A batch of completions [N, T], with what a reward may look at."""
    tokens = jnp.asarray(tokens)
    rows = jnp.zeros(len(tokens))
    nothing = jnp.zeros(tokens.shape)
    rewards = rows if rewards is None else jnp.asarray(rewards)
    ids = jnp.zeros(len(tokens), int)
    key = jax.random.key(0)
    return Sampled(problems, tokens, tokens > 0, nothing, nothing, rewards, ids, 0, key, score)


def first(problems, count):
    return jax.tree.map(lambda a: a[:count], problems)


def test_kimi_adds_half_at_most_to_the_shortest_right_answer():
    rewards, lengths = jnp.array([1.0, 1.0, 0.0, 0.0]), jnp.array([2, 6, 4, 6])
    got = kimi_k1_5.brief(rewards, lengths, jnp.zeros(4, int), 1, weight=0.2)
    np.testing.assert_allclose(got, [1.1, 0.9, 0.0, -0.1], atol=1e-6)


def test_zerosearch_searches_grow_noisier_from_the_first_step_on():
    """By the values of the authors' `dynamic_threshold`, with exp_base 4, from 0 to 0.5."""
    want = [0.0, 0.0690356, 1 / 6, 0.3047379, 0.5]
    np.testing.assert_allclose([zerosearch.noise(i / 4) for i in range(5)], want, rtol=1e-6)
    config = recipes.load("zerosearch")
    given = {n: stages.at(config, n).task_args["noise"] for n in (0, 9, 10, 99)}
    assert given[0] == given[9] == 0 < given[10] < given[99] == zerosearch.noise(0.9)
    assert "noise" not in config.task_args  # held-out questions are put to a clean engine


def test_masksearch_masks_more_and_more_facts_and_then_asks():
    config = recipes.load("masksearch")
    given = [stages.at(config, n).task_args["masks"] for n in (0, 19, 20, 59, 60, 159)]
    assert given == [1, 1, 2, 3, 0, 0] and config.steps == 160
    assert "masks" not in config.task_args  # held-out problems are questions


def test_ur2_rewards_calls_for_a_quarter_of_the_steps():
    config = recipes.load("ur2")
    given = [stages.at(config, n).task_args for n in (0, 9, 10, 39)]
    assert [each["reward"] for each in given] == ["retrieve", "retrieve", "answer", "answer"]
    assert all(each["unknown"] and not each["single"] for each in given) and config.steps == 40
    assert not config.task_args["unknown"]  # the warm start shows what is known


@pytest.mark.parametrize(
    ("context", "thought", "want"),
    [
        ("numbers: 2, 3, 4\n", "<think>3 * 4 = 12</think>", "<think>3 * 4 = 12</think>"),
        ("numbers: 2, 3, 4\n", "<think>3 + 4 = 7</think>", "<think>2 * 3 = 6</think>"),
        ("numbers: 2, 3, 4\n2 * 3\nnumbers: 4, 6\n", "hm</think>", "<think>4 * 6 = 24</think>"),
        ("numbers: 1, 1\n", "<think>1 + 1 = 2</think>", ""),
        ("numbers: 5\n", "hm</think>", ""),
        ("", "hm</think>", ""),
    ],
)
def test_gtr_leaves_thoughts_that_lead_to_24_and_corrects_others(context, thought, want):
    assert gtr.corrected(context, thought) == want


def test_solutions_with_thoughts_need_no_correction():
    task = tasks.get("game24", numbers=3, think=True, instructions=False)
    for index in range(5):
        problem = task.problem("train", 0, index)
        table, opening = task.turns.begin(problem, 0)
        context, replies = opening.messages[0]["content"], []
        for action in task.turns.gold(problem, 0):
            thought = action[: action.index("</think>") + len("</think>")]
            assert gtr.corrected(context, thought) == thought
            replies.append(task.turns.step(table, action))
            context += "".join(message["content"] for message in replies[-1].messages)
        assert replies[-1].reward == 1 and replies[-1].parts["thoughts"] == 1


def test_scalerl_leaves_solved_prompts_out_while_there_are_others():
    state = curriculum.record(
        curriculum.start(4), np.arange(4), np.array([[1, 1], [1, 1], [0, 1], [0, 0]])
    )
    _, ids = scalerl.unsolved(state, 2, np.ones(4, bool))
    assert set(ids) == {2, 3}
    _, ids = scalerl.unsolved(state, 3, np.ones(4, bool))
    assert len(set(ids)) == 3


def test_campo_takes_half_a_reward_for_a_loop_from_the_start():
    tokens = jnp.array([[9, 3, 3, 3], [9, 4, 5, 6]])
    mask = jnp.array([[False, True, True, True]] * 2)
    np.testing.assert_allclose(campo.penalised(jnp.ones(2), tokens, mask, weight=0.5), [0.5, 1.0])


def test_dph_rehearses_by_the_forward_kl():
    """Over all tokens of a small distribution, stored samples give KL(pi_0 || pi) in the mean."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    given = {"presample_steps": 5, "coefficient": 1.0, "advantages": jnp.zeros((1, 1))}
    logp, initial = jnp.log(p)[None], jnp.log(q)[None]
    gap = jnp.full((1, 3), 9)
    loss, metrics = mixed.dph(logp, initial, lag=gap, step=jnp.asarray(9), **given)
    np.testing.assert_allclose((q * loss[0]).sum(), (q * np.log(q / p)).sum(), rtol=1e-5)
    assert metrics["lr_scale"] == 1
    fresh = mixed.dph(logp, initial, lag=gap - 5, step=jnp.asarray(9), **given)[0]
    np.testing.assert_array_equal(fresh, 0.0)
    presampling = mixed.dph(logp, initial, lag=gap, step=jnp.asarray(4), **given)[1]
    assert presampling["lr_scale"] == 0


def test_dph_stores_what_the_initial_policy_solved():
    rewards = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, np.nan], [1.0, 1.0]])
    versions = np.array([[0, 1], [0, 0], [0, 0], [1, 2]])
    kept = dph_rl.initially_solved(rewards, rewards, versions, before=2)
    np.testing.assert_array_equal(kept, [[True, True], [False] * 2, [False] * 2, [False] * 2])


def test_rlcr_is_the_reward_of_texts():
    """As `jaxrl.data.rewards.shape` scores the same statements."""
    sure = FIRST + confidence.SYMBOLS + confidence.SOURCES + 7
    answer = [FIRST, FIRST]
    tokens = [[*answer, sure, EOS], [*answer, sure, EOS], [*answer, sure, PAD], [1, 0, 0, 0]]
    got = rlcr.right_and_honest(sampled(tokens, rewards=[1.0, 0.0, 1.0, 0.0]))
    text = ["<confidence>0.7</confidence>"] * 2 + ["", ""]
    for value, reward, stated in zip(got, [1.0, 0.0, 1.0, 0.0], text, strict=True):
        scored = shape.calibrated(lambda problem, completion, r=reward: Score(r))
        assert value == pytest.approx(scored(Problem("", "", ""), stated).value, abs=1e-6)


def test_rlcr_measures_calibration(monkeypatch):
    """By hand: half are right; stated 0.9 of which 3 in 4, and 0.1 of which 1 in 4."""
    sure = FIRST + confidence.SYMBOLS + confidence.SOURCES
    tokens = np.array([[[FIRST, FIRST, sure + q, EOS] for q in (9, 9, 9, 9, 1, 1, 1, 1)]])[:, None]
    right = np.array([[[1.0, 1, 1, 0, 1, 0, 0, 0]]])
    written = type("Written", (), {"tokens": tokens})
    monkeypatch.setattr(confidence, "attempts", lambda *_, **__: (written, right))
    got = confidence.calibration(None, None, None, None, None)
    np.testing.assert_allclose(got["pass@1"], [0.5])
    np.testing.assert_allclose(got["ece"], [0.15])
    np.testing.assert_allclose(got["brier"], [(3 * 0.01 + 0.81) / 4])


def test_rlpr_puts_the_reference_behind_the_reasoning():
    """A policy that finds the reference likely after right reasoning, less so after none."""
    task = chains.phrased()
    problems = first(task.train, 2)
    tokens = problems.gold.copy()
    tokens[1, 0] = FIRST + (tokens[1, 0] - FIRST + 1) % chains.SYMBOLS  # a slip, and another answer
    tokens[:, chains.LENGTH + 1 :] = 0
    seen = []

    def score(given):
        seen.append(np.asarray(given))
        reasoned = given.shape[1] > problems.prompt.shape[1] + 1 + chains.LENGTH
        p = jnp.array([0.8, 0.1]) if reasoned else jnp.array([0.3, 0.3])
        return jnp.log(jnp.broadcast_to(p[:, None], given.shape))

    batch = sampled(tokens, problems=problems, score=score)
    np.testing.assert_allclose(rlpr.probability(batch), [0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(rlpr.likelihood(batch), [0.8**3, 0.1**3], rtol=1e-5)
    reasoned, bare, _ = seen
    wanted = np.concatenate([problems.prompt, problems.gold[:, :-1]], axis=1)
    np.testing.assert_array_equal(reasoned[0], wanted[0])
    assert (reasoned[1] != wanted[1]).sum() == 1
    np.testing.assert_array_equal(np.delete(wanted, np.s_[4:7], axis=1), bare)
    assert (jax.vmap(task.reward)(task.test.answer, task.test.gold) == 1).all()


def test_bleuberi_compares_tokens_as_words():
    """By hand: unigrams 1/2, no bigram of 1, smoothed to 1/2; nothing said is 0."""
    gold = np.array([[5, 6, EOS, PAD]] * 3)
    problems = lab.Problems(gold, gold, gold, gold[:, 0], gold)
    batch = sampled([[5, 6, EOS, PAD], [5, 7, EOS, PAD], [EOS, PAD, PAD, PAD]], problems=problems)
    np.testing.assert_allclose(jax.jit(bleuberi.overlap)(batch), [1.0, 0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(bleuberi.exact(batch), [1.0, 0.0, 0.0])


def test_rubicon_takes_no_more_fillers_than_are_wanted():
    """By hand, of marks right, whole, ended, rich: all and 2 fillers; all and 6; none right and 6;
    two of three right and 1."""
    rewards, fillers = [1.0, 1.0, 0.0, 2 / 3], [2, 6, 6, 1]
    tokens = [[FILLER] * n + [EOS] + [PAD] * (6 - n) for n in fillers]
    batch = sampled(tokens, rewards=rewards)
    got = jax.jit(rubicon_rubric_anchors.anchored)(batch)
    partly = (2 * 2 / 3 + 0 + 1 + 2 * 0.5 + 2 / 3 * 0.5) / 7
    np.testing.assert_allclose(got, [1.0, 1.0, 0.0, partly**2], atol=1e-6)
    got = rubicon_rubric_anchors.linear(batch)
    want = [(4 + 2 / 3) / 6, 1.0, (1 + 2) / 6, (4 / 3 + 1 + 2 / 6) / 6]
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_simplerl_format_allows_nothing_but_the_answer():
    """By hand: right; wrong; right with a filler, which the verifier ignores; without an end."""
    tokens = [[FIRST, EOS, PAD], [FIRST, EOS, PAD], [FILLER, FIRST, EOS], [FIRST, FIRST, FIRST]]
    batch = sampled(tokens, rewards=[1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(jax.jit(simplerl_zoo.in_format)(batch), [1.0, -0.5, -1.0, -1.0])


def test_knowrl_pays_wrong_answers_by_their_claims():
    """By hand: right, refused, wrong with 2 of 3 claims right, out of form; claims count once."""
    task = facts.claimed()
    problems = first(task.train, 4)
    tokens = problems.gold.copy()
    tokens[1, facts.LENGTH + 1] = FILLER
    tokens[2, 1] = FIRST + (tokens[2, 1] - FIRST + 1) % facts.SYMBOLS
    tokens[2:, facts.LENGTH + 1] = ASK
    tokens[3, -1] = PAD
    verdicts = jax.vmap(task.reward)(problems.answer, tokens)
    np.testing.assert_array_equal(verdicts, [1, 0, 0, 0])
    batch = sampled(tokens, rewards=verdicts, problems=problems)
    want = np.array([1 + 2, 1 + 1, 1 - 1, -1 - 1.0])
    np.testing.assert_allclose(knowrl.answers(batch), want)
    np.testing.assert_allclose(
        knowrl.knowledgeable(batch), want + np.array([0, 0, 2 / 3, 1]), atol=1e-6
    )
    right = jax.vmap(task.reward)(task.demonstrations.answer, task.demonstrations.gold)
    assert 0.3 < right.mean() < 0.5
    assert 0.7 < facts.support(task.demonstrations.gold, task.demonstrations.answer).mean() < 0.8


def test_alphaalign_checks_refusals_and_grades_answers():
    """Of each domain: right, refused with another reason, and with one code of two right."""
    task = refusals.refusals()
    good, bad = (np.flatnonzero(task.train.domain == d)[0] for d in (0, 1))
    problems = jax.tree.map(lambda a: a[[good, good, good, bad, bad, bad]], task.train)
    tokens = problems.gold.copy()
    tokens[[1, 4]] = FILLER, FIRST, EOS
    tokens[[2, 5], 0] = tokens[0, 0], FIRST
    tokens[[2, 5], 1] = FIRST + refusals.SYMBOLS
    verdicts = jax.vmap(task.reward)(problems.answer, tokens)
    np.testing.assert_array_equal(verdicts, [1, 0, 0, 1, 0, 0])
    batch = sampled(tokens, rewards=verdicts, problems=problems)
    offset = task.train.answer[good, -1]
    earned = refusals.guarded(batch)
    np.testing.assert_allclose(earned.rewards, [offset + 1, -1, offset + 0.5, 1, 0, 0])
    helpful = [offset + 1, offset, offset + 0.5, 0, 0, 0]
    np.testing.assert_allclose(earned.parts, np.transpose([helpful, [0, 1, 0, 1, 1, 0]]))
    alone = refusals.guarded_alone(batch)
    np.testing.assert_allclose(alone.rewards, [0, -1, 0, 1, 0, 0])
    np.testing.assert_allclose(alone.parts, np.transpose([[0] * 6, [0, 1, 0, 1, 1, 0]]))
    assert set(task.train.answer[:, -1]) == {0, 1, 2}
    shown, asked = task.demonstrations.gold[:, 0] == FILLER, task.demonstrations.domain == 1
    assert abs(shown[asked].mean() - 0.6) < 0.05 and abs(shown[~asked].mean() - 0.3) < 0.05


def test_causes_are_part_of_what_is_right():
    """A prompt with a flaw: right, with another cause, with another verdict, without an end."""
    task = causes.causes()
    flawed = np.flatnonzero(task.train.answer[:, 1] == causes.FLAWED)[0]
    problems = jax.tree.map(lambda a: np.repeat(a[flawed : flawed + 1], 4, axis=0), task.train)
    tokens = problems.gold.copy()
    tokens[1, 0], tokens[2, 1], tokens[3, 2] = FILLER, causes.SAFE, PAD
    verdicts = jax.vmap(task.reward)(problems.answer, tokens)
    batch = sampled(tokens, rewards=verdicts, problems=problems)
    np.testing.assert_array_equal(verdicts, [1, 0, 0, 0])
    np.testing.assert_array_equal(vulnerability.label(batch), [1, 1, 0, 0])
    for made in (task.train, task.test):
        assert (jax.vmap(task.reward)(made.answer, made.gold) == 1).all()
        assert abs((made.answer[:, 1] == causes.SAFE).mean() - 0.5) < 0.1
    shown, true = task.demonstrations.gold, task.demonstrations.answer
    bad = true[:, 1] == causes.FLAWED
    assert abs((shown[:, 1] == true[:, 1]).mean() - 0.7) < 0.03
    assert abs((shown[bad, 0] == true[bad, 0]).mean() - 0.4) < 0.03
    assert abs((shown[~bad, 0] == FILLER).mean() - 0.8) < 0.03


def test_general_reasoner_trusts_a_verifier_that_errs():
    """The reference, another form of its values, another value, and no end."""
    task = surfaces.surfaces()
    problems = jax.tree.map(lambda a: np.repeat(a[:1], 4, axis=0), task.train)
    tokens, start = problems.gold.copy(), FIRST + surfaces.VALUES
    place = tokens[0, 0] - start
    other = place // surfaces.FORMS * surfaces.FORMS + (place + 1) % surfaces.FORMS
    wrong = (place + surfaces.FORMS) % surfaces.WRITTEN
    tokens[1, 0], tokens[2, 0], tokens[3, -1] = start + other, start + wrong, PAD
    takes = problems.answer[0, surfaces.LENGTH :].reshape(surfaces.LENGTH, -1)
    own = [takes[i, tokens[0, i] - start] for i in range(surfaces.LENGTH)]
    want = np.array([own[0], takes[0, other], takes[0, wrong], 1.0]) * np.prod(own[1:])
    verdicts = jax.vmap(task.reward)(problems.answer, tokens)
    np.testing.assert_array_equal(verdicts, [1, 1, 0, 0])
    batch = sampled(tokens, rewards=verdicts, problems=problems)
    np.testing.assert_allclose(general_reasoner.by_verifier(batch), [*want[:3], -0.5])
    np.testing.assert_allclose(general_reasoner.by_text(batch), [1, 0, 0, -0.5])
    equal = np.kron(np.eye(surfaces.VALUES), np.ones((surfaces.FORMS,) * 2)) == 1
    rates = []
    for seed in range(4):
        made = surfaces.trained(np.random.default_rng(seed), (0.8, 0.5))
        rates.append([made[equal].mean(), made[~equal].mean()])
        all_seen = surfaces.trained(np.random.default_rng(seed), (1.0, 1.0))
        np.testing.assert_array_equal(all_seen, equal)
    taken, fooled = np.mean(rates, axis=0)
    assert 0.7 < taken < 0.98 and 0.005 < fooled < 0.1


def test_rlmt_rewards_the_answer_whatever_was_thought():
    """Right after a thought, after a wrong one, at once, another answer, and none."""
    task = thoughts.sums_aloud()
    for made in (task.train, task.test):
        assert (jax.vmap(task.reward)(made.answer, made.gold) == 1).all()
        assert (made.prompt[:, 0] == np.where(made.domain, FILLER, ASK)).all()
    thinking = np.flatnonzero(task.train.domain == 0)[0]
    problems = jax.tree.map(lambda a: np.repeat(a[thinking : thinking + 1], 5, axis=0), task.train)
    tokens, right = problems.gold.copy(), task.train.answer[thinking, 0]
    tokens[1, 0] = FIRST + (tokens[1, 0] - FIRST + 1) % thoughts.BASE
    tokens[2], tokens[3] = [right, EOS] + [PAD] * 5, tokens[0]
    tokens[3, -2] = other = FIRST + (right - FIRST + 1) % thoughts.BASE
    tokens[4, -1] = PAD
    verdicts = jax.vmap(task.reward)(problems.answer, tokens)
    np.testing.assert_array_equal(verdicts, [1, 1, 1, 0, 0])
    batch = sampled(tokens, rewards=verdicts, problems=problems)
    good, bad = (task.train.answer[thinking, 1 + t - FIRST] / 100 for t in (right, other))
    np.testing.assert_allclose(thoughts.preferred(batch), [good, good, good, bad, -3], rtol=1e-6)


def test_rlmt_learns_a_reward_model_from_comparisons():
    """The right answer is mostly the best, and not always; scores are where the gradient is 0."""
    rng = np.random.default_rng(0)
    scores = thoughts.compared(rng, 500, 2.0)
    best = (scores.argmax(axis=1) == 0).mean()
    assert 0.7 < best < 0.99 and abs(scores.sum(axis=1)).max() < 1e-6
    rng = np.random.default_rng(1)
    (got,) = thoughts.compared(rng, 1, 2.0, steps=4000)
    rng = np.random.default_rng(1)
    one = rng.integers(4, size=12)
    two = (one + rng.integers(1, 4, size=12)) % 4
    won = rng.random(12) < 1 / (1 + np.exp(-2.0 * ((one == 0) * 1.0 - (two == 0))))
    chosen, rejected = np.where(won, one, two), np.where(won, two, one)

    def loss(s):
        pairs, _ = reward_model.bradley_terry(s[chosen], s[rejected])
        return jnp.sum(pairs) + 0.05 * jnp.sum(s**2)

    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(got)), 0.0, atol=1e-4)


def test_rlpt_takes_any_beginning_of_the_text_from_the_segment_on():
    text = np.array([[5, 6, 7]] * 6)
    said = np.array([[5, 1, 0, 0], [5, 6, 7, 1], [5, 7, 1, 0], [1, 0, 0, 0], [5, 6, 7, 7], [7] * 4])
    np.testing.assert_array_equal(chains.is_prefix(text, said, np.ones(6)), [1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(chains.is_prefix(text, said, np.full(6, 2)), [0, 1, 0, 0, 0, 0])
    task = chains.cut_text()
    batch = sampled(task.train.gold, problems=task.train)
    np.testing.assert_array_equal(rlpt.prefix(batch), 1.0)
    shorter = np.where(
        np.arange(task.budget) == 1,
        EOS,
        np.pad(task.train.gold[:, :1], ((0, 0), (0, task.budget - 1))),
    )
    batch = sampled(shorter, problems=task.train)
    np.testing.assert_array_equal(rlpt.prefix(batch), task.train.answer[:, -1] == 1)
    assert (jax.vmap(task.reward)(task.train.answer, task.train.gold) == 1).all()
    longer = task.train.answer[:, -1] < chains.LENGTH
    whole = np.pad(task.train.answer[:, :-1], ((0, 0), (0, 1)), constant_values=EOS)
    np.testing.assert_array_equal(jax.vmap(task.reward)(task.train.answer, whole), ~longer)


@pytest.mark.broad
@pytest.mark.parametrize("strength", [1.0, 0.5, 2.0])
def test_rast_adds_what_training_changed(strength):
    task = lab.cipher()
    small = model_of(task.vocabulary, 16)
    params = jax.vmap(lambda k: decoder.init(small, k))(jax.random.split(jax.random.key(0), 3))
    large, tuned, untuned = (jax.tree.map(lambda a, i=i: a[i], params) for i in range(3))
    passed = steering.steered(small, small, task.over((0,)), strength)

    def of(*trees):
        return passed(*(jax.tree.map(lambda a: a[None], tree) for tree in trees))

    tokens = np.concatenate([task.test.prompt, task.test.gold], axis=1)
    written = np.arange(tokens.shape[1]) >= task.test.prompt.shape[1]

    def chance(scores):
        p = np.asarray(jax.nn.softmax(scores, axis=-1), np.float64)
        chosen = np.take_along_axis(p, tokens[:, 1:, None], axis=-1)[..., 0]
        return np.where(written[1:] & (tokens[:, 1:] > 0), chosen, 1.0).prod(axis=1).mean()

    logits = [all_logprobs(small, p, tokens[:, :-1]) for p in (large, tuned, untuned)]
    got = of(large, tuned, untuned)
    np.testing.assert_allclose(
        got["pass@1"][0], chance(logits[0] + strength * (logits[1] - logits[2])), rtol=1e-4
    )
    np.testing.assert_allclose(got["small"][0], chance(logits[1]), rtol=1e-4)
    alone = steering.alone(small, task.over((0,)))(jax.tree.map(lambda a: a[None], large))
    for own in (of(large, tuned, tuned)["pass@1"], alone):
        np.testing.assert_allclose(own[0], chance(logits[0]), rtol=1e-4)
    guide = rast.steered(small, tuned, untuned, strength=2.0)
    context = Context(None, None, None, (jnp.array([[1.0, 0.0]]), jnp.array([[0.5, 0.5]])))
    got = guide.process(jnp.zeros((1, 2)), context, guide.args)
    np.testing.assert_allclose(got, [[1.0, -1.0]])


def test_delethink_steps_fit_into_a_chunk():
    size = 6
    task = chains.walk(Chunks(size, 2))
    reward = jax.vmap(task.reward)
    for problems in (task.train, task.test):
        assert (reward(problems.answer, problems.gold) == 1).all()
        wrong = problems.gold.copy()
        wrong[:, 2] += 1
        assert (reward(problems.answer, wrong) == 0).all()
    assert (np.count_nonzero(task.train.gold, axis=1) <= 2 * 4 + 1).all()
    assert (np.count_nonzero(task.test.gold, axis=1) >= 2 * 5 + 1).all()
    prompt, gold = task.demonstrations.prompt, task.demonstrations.gold
    carried = (prompt[:, -1] != ASK).astype(int) * 2
    assert (np.count_nonzero(gold, axis=1) + carried <= size).all()
    assert 0.2 < (carried > 0).mean() < 0.5
    assert (prompt[carried == 0, :2] == FILLER).all()
