"""RA3's bound by hand and against a plain forward pass, its programs, and the lab's task."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.claims import ra3 as ra3_claims
from experiments.lab import Arm, differences, macros, policy
from experiments.lab.collect import collect
from experiments.lab.tasks import FILLER, FIRST
from jaxrl.config import RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Problem, Score
from jaxrl.extensions import latents
from jaxrl.extensions.latents import LatentsConfig
from jaxrl.launch import recipes
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import programs
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.programs import Fork, Grade, Sample, written_by_expert
from jaxrl.training.logprobs import make_score
from jaxrl.types import Completion, Request, Source
from tests.jaxrl import tiny

SETTINGS = LatentsConfig(stay=0.5, beta=0.7)


def test_the_bound_is_the_gain_less_the_divergence_from_the_prior():
    """A plan (of 4), two tokens, a plan kept, a token: gains 1 + 0.5 + 0.25, by hand."""
    given = np.array([[-2.0, -0.5, -1.0, -0.1, -0.75]])
    kept = np.array([[-9.0, -1.5, -1.5, -9.0, -1.0]])
    slot = np.array([[True, False, False, True, False]])
    announced = np.array([[True, False, False, False, False]])
    got = latents.bound(
        given, kept, line=~slot, slot=slot, announced=announced, stay=0.9, choices=4, beta=0.5
    )
    wanted = 1.75 - 0.5 * ((-2.0 - np.log(0.1 / 4)) + (-0.1 - np.log(0.9)))
    np.testing.assert_allclose(got, [wanted], rtol=1e-6)


def test_drawing_the_texts_to_imitate():
    drawn = latents.imitated_groups(LatentsConfig(imitated=0.25), [1, 2], 4000)
    assert 0.22 < drawn.mean() < 0.28
    np.testing.assert_array_equal(
        drawn, latents.imitated_groups(LatentsConfig(imitated=0.25), [1, 2], 4000)
    )


def test_lines_and_the_plans_before_them():
    assert latents.lines("1+2+3=3+3=6", "=") == ["1+2+3=", "3+3=6"]
    assert latents.lines("3+3=6", "=") == ["3+3=6"] and latents.lines("6", "=") == ["6"]
    for text, places in (
        ("*3+3=6", [0]),
        ("*6+3+3=-9+3=12", [0, 7]),
        ("=6+3+3==9+3=12", [0, 7]),  # plans that look like an end
        ("6", [0]),
    ):
        assert np.flatnonzero(latents.plans([*map(ord, text)], ord("="))).tolist() == places


def run(generator, plans):
    """Drives a program that is told these plans, one token each; what was graded is kept."""
    said, graded, asked = iter(plans), [], []

    def answer(wanted):
        if isinstance(wanted, Grade):
            graded.append(wanted.text)
            return Score(1.0)
        assert isinstance(wanted, Sample)
        request = wanted.request
        asked.append(request)
        before = request.prefix or programs.EMPTY
        new = np.array([next(said)], np.int32)
        some = programs.Prefix(new, *(np.full(1, x) for x in (-0.5, 0.1, 3, Source.POLICY)))
        done = programs.join([before, some])
        return Completion(request, *done[:4], False, done.source)

    wanted = next(generator)
    while True:
        try:
            wanted = generator.send(answer(wanted))
        except StopIteration as end:
            return end.value, graded, asked


def world():
    task = tasks.get("arithmetic", digits=1, terms=4, operators="+", worked=True)
    return task, tokenizers.characters(task.alphabet)


def test_a_text_is_given_line_by_line_with_the_policys_plans():
    task, tokenizer = world()
    problem = Problem("p", "1+2+3+1=", 7, domain="text")
    ctx = programs.Context(RolloutConfig(group_size=2), 0, tokenizer, task)
    request = Request(5, tuple(tokenizer.prompt(problem.prompt)), 20)
    for imitated in (False, True):
        made = latents.texts(ctx, SETTINGS, problem, request, imitated)
        row, graded, asked = run(made, tokenizer.encode("*-"))
        assert row.text.startswith("*3+3+1=-6+1=7") and graded == [row.text]
        assert [one.turn_tokens for one in asked] == [1, 1]
        plans = np.isin(np.arange(14), [0, 7])
        actions = row.completion.actions
        np.testing.assert_array_equal(actions, np.ones(14, bool) if imitated else plans)
        assert (row.completion.source == Source.EXPERT).all() == imitated
        assert row.completion.request is request
    made = latents.texts(ctx, SETTINGS, problem, request, False)
    row, _, _ = run(made, [tokenizer.eos_ids[0], *tokenizer.encode("*")])
    assert row.text.startswith("-3+3+1=*6+1=7")  # the text goes on, and is not trained to end
    np.testing.assert_array_equal(np.flatnonzero(row.completion.actions), [7])
    program = latents.planned(SETTINGS, programs.single_turn)
    forked = next(program(ctx, problem, 0))
    assert isinstance(forked, Fork) and len(forked.programs) == 2
    forked = next(program(ctx, dataclasses.replace(problem, domain="target"), 0))
    assert next(forked.programs[0]).request.turn_tokens == 0  # answered as ever


@pytest.mark.broad
def test_texts_are_rewarded_by_the_bound():
    """Two texts and a prompt of another domain, against one unpacked sequence at a time."""
    _, tokenizer = world()
    model = DecoderConfig(tokenizer.vocab_size, 32, 64, 2, 2, 2, 16)
    params = decoder.init(model, jax.random.key(0))
    problems = [Problem("a", "1+2+3+1=", 7, domain=d) for d in ("text", "target")]
    end = tokenizer.eos_ids[0]
    prompt = tuple(tokenizer.prompt("1+2+3+1="))
    said = ("*3+3+1=-6+1=7", "-3+3+1==6+1=7", "7", "8")
    completions = [
        written_by_expert(Request(0, prompt, 20), [*tokenizer.encode(text), end]) for text in said
    ]
    scores = [Score(1.0), Score(None, error="timeout: "), Score(0.5), Score(0.0)]
    experience = Experience(problems, completions, list(said), scores, [])
    with jax.set_mesh(mesh.make(MeshConfig())):
        ctx = SimpleNamespace(
            config=tiny.config("unused"),
            policy=SimpleNamespace(tokenizer=tokenizer),
            score=make_score(model, temperature=1.0),
        )
        made = latents.bounded(ctx, SETTINGS, params, experience)
        both = latents.bounds(ctx, SETTINGS, params, completions[:2])

    def logp(text):
        tokens = jnp.array([[*prompt, *tokenizer.encode(text), end]])
        return policy.logprobs(model, params, tokens)[0][0, len(prompt) :]

    for value, text, new in ((both[0], said[0], [1, 0]), (both[1], said[1], [0, 1])):
        given, kept = logp(text), logp("-3+3+1=-6+1=7")
        gain = sum(float(given[n] - kept[n]) for n in range(14) if n not in (0, 7))
        prior = [np.log(0.5 / (tokenizer.vocab_size - 1)) if n else np.log(0.5) for n in new]
        cost = sum(float(given[n]) - p for n, p in zip((0, 7), prior, strict=True))
        np.testing.assert_allclose(value, gain - 0.7 * cost, atol=1e-4)
    assert made.scores[0].value == float(both[0]) and made.scores[0].parts["task"] == 1.0
    assert made.scores[1:] == scores[1:]  # a failure stays one, and so does another domain


@pytest.mark.broad
def test_the_labs_texts():
    """Texts are given but for plans, imitated ones are trained on whole, and gold is right."""
    task = macros.patterned()
    for made in (task.train, task.test):
        assert (jax.vmap(task.reward)(made.answer, made.gold) == 1).all()
    one = task.train.gold[:1].copy()
    one[:, 0] = FIRST + macros.SYMBOLS
    assert task.reward(task.train.answer[0], one[0]) == 1  # plans are not judged
    one[:, 1] += np.where(one[:, 1] == FIRST, 1, -1)
    assert task.reward(task.train.answer[0], one[0]) == 0
    task = task.over((0,))
    model = policy.shape(task.vocabulary, task.prompt_length + task.budget)
    params = jax.vmap(lambda k: decoder.init(model, k))(jax.random.split(jax.random.key(0), 1))
    ids = np.array([[0, 1, 2, len(task.train.domain[0]) - 1]])
    arm = Arm(latents=LatentsConfig(imitated=0.5), rewards=macros.read, group_size=2)
    batch, rewards = collect(task, model, params, arm, ids, 0, versions=np.zeros(1, int))
    imitated = latents.imitated_groups(arm.latents, [0, 0], 4)
    plans = np.arange(macros.BUDGET) % (macros.WIDTH + 1) == 0
    plans[-1] = False
    for n in range(6):
        written = batch.tokens[0, n, task.prompt_length :]
        actions = batch.action_mask[0, n, task.prompt_length :]
        if (written[plans] <= 1).any():  # the text was ended
            assert rewards[0, n // 2, n % 2] == macros.BROKEN
            continue
        gold = task.train.gold[0, ids[0, n // 2]]
        np.testing.assert_array_equal(written[~plans], gold[~plans])
        np.testing.assert_array_equal(actions, plans | imitated[n // 2])
        kept = np.where(plans, FILLER, written)
        both = np.stack([np.r_[task.train.prompt[0, ids[0, n // 2]], t] for t in (written, kept)])
        one = jax.tree.map(lambda a: a[0], params)
        logp = policy.logprobs(model, one, jnp.asarray(both))[0][:, task.prompt_length :]
        logp = np.asarray(logp, np.float64)
        new = written != FILLER
        settings = LatentsConfig()
        prior = np.where(new, np.log((1 - settings.stay) / macros.PATTERNS), np.log(settings.stay))
        wanted = (logp[0] - logp[1])[~plans].sum() - (logp[0] - prior)[plans].sum()
        np.testing.assert_allclose(rewards[0, n // 2, n % 2], wanted, atol=1e-4)
    assert not batch.expert[0, 6:].any()  # the policy wrote these itself


@pytest.mark.broad
def test_the_arm_has_the_recipes_latents():
    method = ra3_claims.effect().method
    assert method.latents == LatentsConfig() and not differences.unlike(
        recipes.load("ra3_plans"), method
    )
