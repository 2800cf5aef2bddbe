"""What the recipes of fine-tuning, priming and merging measure, and their tasks, by hand."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.claims import donod as donod_claims
from experiments.claims import echo_chamber as echo_chamber_claims
from experiments.claims import off_the_principals_three_gate_theory as off_principals_claims
from experiments.claims import past as past_claims
from experiments.claims import tram as tram_claims
from experiments.claims import vb_vs_vf_scaling
from experiments.lab import arms, operations, skills
from experiments.lab.policy import all_logprobs, shape
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD
from jaxrl.models import decoder


@pytest.fixture(scope="module")
def policies():
    """Two policies of a small model, stacked."""
    model = shape(12, 8)
    keys = jax.random.split(jax.random.key(0), 2)
    return model, jax.vmap(lambda key: decoder.init(model, key))(keys)


def test_weights_that_double_have_shifted_spectra_and_equal_directions(policies, monkeypatch):
    """Singular values that double move by their own norm; what is multiplied keeps its span."""
    model, start = policies
    figures = {"pass@1": np.array([0.25, 0.75])}
    monkeypatch.setattr(off_principals_claims, "held_out", lambda *_, **__: figures)
    doubled = jax.tree.map(lambda a: 2 * a, start)
    same = off_principals_claims.drift(model, None, None, start, start)
    moved = off_principals_claims.drift(model, None, None, doubled, start)
    np.testing.assert_array_equal(same["spectral_shift"], [0, 0])
    np.testing.assert_array_equal(same["unchanged"], [1, 1])
    np.testing.assert_allclose(moved["spectral_shift"], [1, 1], rtol=1e-5)
    assert (moved["angle"] < 0.1).all() and (moved["unchanged"] < 0.1).all()
    np.testing.assert_array_equal(moved["pass@1"], [0.25, 0.75])


def test_a_trace_earns_what_is_left_of_its_budget():
    """By hand, for a budget of 12 and three codes: 9 tokens can be left at most."""
    answer = np.array([5, 6, 5])
    for said, earned in (
        ([5, 6, 5, EOS], 9 / 9),
        ([5, 7, 6, 5, EOS], 8 / 9),
        ([6, 5, 6, 6, 5, EOS], 7 / 9),
        ([5, 5, 6, EOS], 0.0),
        ([9] * 9 + [5, 6, 5, EOS], 0 / 9),
    ):
        tokens = np.pad(said, (0, vb_vs_vf_scaling.BUDGET + 1 - len(said)))
        np.testing.assert_allclose(vb_vs_vf_scaling.score(answer, tokens), earned, rtol=1e-6)
    task = vb_vs_vf_scaling.planted()
    earned = jax.vmap(task.reward)(task.train.answer, task.train.gold)
    assert (np.sum(task.train.gold == EOS, axis=1) == 1).all()
    assert 0.3 < np.mean(earned) < 0.7 and np.max(earned) == 1


def test_the_commonest_format_is_counted_among_right_answers(monkeypatch):
    """Two problems and four samples: three right in the second format, one in the first."""
    task = echo_chamber_claims.two_formats()
    answer = task.test.answer[:2]
    first, second = answer[:, :3], answer[:, 3:6]
    end = np.full((2, 1), EOS)
    written = [np.concatenate([side, end], axis=1) for side in (first, second, second)]
    mixed = written[0].copy()
    mixed[:, 0] = second[:, 0]
    wrong = np.full_like(mixed, FILLER)
    tokens = np.stack([written[1], written[2], mixed, wrong], axis=1)[None]
    tokens[0, 0, 0] = written[0][0]
    rewards = np.array([[[1.0, 1, 1, 0]] * 2])
    given = SimpleNamespace(tokens=tokens)
    monkeypatch.setattr(echo_chamber_claims, "attempts", lambda *_, **__: (given, rewards))
    shown = SimpleNamespace(test=SimpleNamespace(answer=answer[None]))
    got = echo_chamber_claims.formats(None, shown, None, None, None)
    np.testing.assert_allclose(got["dominance"], [3 / 6])
    np.testing.assert_allclose(got["pass@1"], [0.75])
    np.testing.assert_allclose(got["pass@8"], [1.0])
    for row in (written[0], written[1], mixed):  # the verifier takes either, and a mixture
        assert (jax.vmap(task.reward)(answer, row) == 1).all()


def test_the_source_and_the_target_share_a_mark_and_no_symbol():
    task = skills.domains()
    right = np.asarray(jax.vmap(task.reward)(task.train.answer, task.train.gold))
    target = task.train.domain == 1
    assert (right[~target] == 1).all() and 0.2 < right[target].mean() < 0.4
    assert (task.test.domain == 1).all() and (task.demonstrations.domain == 0).all()
    sides = [set(task.train.prompt[rows, :-1].ravel()) for rows in (target, ~target)]
    assert not sides[0] & sides[1]
    unmarked = np.concatenate([task.test.answer, [[EOS, PAD]] * len(task.test.answer)], axis=1)
    assert not np.any(jax.vmap(task.reward)(task.test.answer, unmarked))


def test_a_skill_is_added_to_what_was_read(policies, monkeypatch):
    """A skill of zero leaves the reader; one that undoes the reading gives the start again."""
    model, start = policies
    texts = np.zeros((2, 4, 8), np.int32)
    problems = SimpleNamespace(prompt=texts[..., :4], gold=texts[..., 4:], domain=np.ones((2, 4)))
    task = SimpleNamespace(train=problems)
    reader = jax.tree.map(lambda a: a + 0.5, start)
    monkeypatch.setattr(past_claims, "read", lambda *_: reader)
    seen = []
    monkeypatch.setattr(
        past_claims, "held_out", lambda m, t, a, params, *_, **__: seen.append(params) or {}
    )
    got = past_claims.injected(model, task, None, jax.tree.map(lambda a: a - 0.5, start), start)
    np.testing.assert_allclose(got["cosine"], [-1, -1], rtol=1e-4)
    assert past_claims.injected(model, task, None, start, start, samples=1) == {}
    np.testing.assert_allclose(
        past_claims.injected(model, task, None, start, start)["cosine"], [0, 0]
    )
    for params, wanted in zip(seen, (start, reader), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, wanted)


def test_formats_say_what_is_left_after_each_operation():
    states = np.array([5, 3, 3, 7])
    wanted = ([5], [7], [5, 3, 3, 7], [5, 5, 3, 3, 3, 3, 7, 7], [7])
    for domain, said in enumerate(wanted):
        np.testing.assert_array_equal(operations.written(domain, states), said)
    task = operations.formats()
    reward = jax.vmap(task.reward)
    for problems in (task.train, task.test):
        assert (reward(problems.answer, problems.gold) == 1).all()
    lengths = np.sum(task.train.gold > EOS, axis=1)
    for domain, length in enumerate((1, 1, 4, 8, 1)):
        assert (lengths[task.train.domain == domain] == length).all()
    equations = task.train.prompt[task.train.domain == operations.EQUATIONS]
    assert len(np.unique(equations, axis=0)) == 8 * 4
    assert (equations[:, 2:5] == FILLER).all() and (task.train.prompt[:, -1] == ASK).all()
    assert not np.any(reward(task.test.answer, np.full_like(task.test.gold, FIRST)))  # no end
    assert not np.any(reward(task.test.answer, np.full_like(task.test.gold, EOS)))
    shown = task.demonstrations
    np.testing.assert_allclose(
        np.bincount(shown.domain) / len(shown.domain), operations.SHOWN, atol=0.03
    )


def test_equations_and_thoughts_agree_on_what_an_operation_does():
    """Each step of a chain is the equation of its symbol and its operation."""
    task = operations.formats()
    of = {name: task.train.domain == getattr(operations, name) for name in ("EQUATIONS", "SHORT")}
    prompt, gold = (getattr(task.train, name)[of["EQUATIONS"]] for name in ("prompt", "gold"))
    known = {(row[0], row[1]): told[0] for row, told in zip(prompt, gold, strict=True)}
    prompt, gold = (getattr(task.train, name)[of["SHORT"]] for name in ("prompt", "gold"))
    for row, told in zip(prompt, gold, strict=True):
        before = [row[0], *told[:3]]
        assert [known[pair] for pair in zip(before, row[1:5], strict=True)] == told[:4].tolist()


def test_two_fifths_of_the_solutions_are_wrong_and_counted_where_they_are_kept(monkeypatch):
    """What is kept by a score that knows the right ones, and by one that prefers the wrong."""
    task = donod_claims.corrupted().over((3, 4))
    reward = jax.jit(jax.vmap(jax.vmap(task.reward)))
    right = np.asarray(reward(task.train.answer, task.train.gold))
    assert 0.5 < right.mean() < 0.7
    assert (reward(task.test.answer, task.test.gold) == 1).all()
    monkeypatch.setattr(donod_claims, "held_out", lambda *_, **__: {"pass@1": np.ones(2)})
    for sign, wanted in ((1, 1.0), (-1, 0.0)):
        score = lambda task, model, place, params, problems, s=sign: s * right[place]  # noqa: E731
        monkeypatch.setattr(donod_claims.prompts, "closeness", score)
        np.testing.assert_array_equal(
            donod_claims.kept(None, task, None, None, None)["clean"], wanted
        )
    assert set(donod_claims.kept(None, task, None, None, None, samples=1)) == {"pass@1"}


@pytest.mark.broad
def test_sharpness_is_the_rise_of_the_loss_uphill(policies, monkeypatch):
    """To first order, the radius times the norm of the scaled gradient."""
    model, start = policies
    monkeypatch.setattr(tram_claims, "RADIUS", 1e-3)
    tokens = np.random.default_rng(0).integers(FIRST, 12, (2, 5, 8))
    got = jax.jit(functools.partial(tram_claims.rise.__wrapped__, model, 4))(start, tokens)

    @jax.jit
    @jax.grad
    def gradient(params, tokens):
        logp = all_logprobs(model, params, tokens[:, :-1])[:, 3:]
        said = jax.nn.one_hot(tokens[:, 4:], 12)
        return -(logp * said).sum() / said.sum()

    for seed in range(2):
        one = jax.tree.map(lambda a, s=seed: a[s], start)
        slope = gradient(one, tokens[seed])
        norm = np.sqrt(
            sum(jax.tree.leaves(jax.tree.map(lambda p, g: float(((p * g) ** 2).sum()), one, slope)))
        )
        assert norm > 0.1
        np.testing.assert_allclose(got[seed], 1e-3 * norm, rtol=0.05)


def test_a_field_younger_than_plans_is_described_where_it_is_set():
    """So that the digests of earlier plans hold."""
    assert "sharpness" not in arms.describe(arms.Arm())
    described = arms.flat(arms.describe(tram_claims.effect().method))
    assert described["sharpness.radius"] == 0.0
