"""What the recipes of fine-tuning, priming and merging measure, and their tasks, by hand."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxrl.launch.lab import skills
from jaxrl.launch.lab.policy import shape
from jaxrl.launch.lab.tasks import EOS, FILLER, PAD
from jaxrl.launch.recipes import echo_chamber, past, vb_vs_vf_scaling
from jaxrl.launch.recipes import off_the_principals_three_gate_theory as off_principals
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
    monkeypatch.setattr(off_principals, "held_out", lambda *_, **__: figures)
    doubled = jax.tree.map(lambda a: 2 * a, start)
    same = off_principals.drift(model, None, None, start, start)
    moved = off_principals.drift(model, None, None, doubled, start)
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
    task = echo_chamber.two_formats()
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
    monkeypatch.setattr(echo_chamber, "attempts", lambda *_, **__: (given, rewards))
    shown = SimpleNamespace(test=SimpleNamespace(answer=answer[None]))
    got = echo_chamber.formats(None, shown, None, None, None)
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
    monkeypatch.setattr(past, "read", lambda *_: reader)
    seen = []
    monkeypatch.setattr(
        past, "held_out", lambda m, t, a, params, *_, **__: seen.append(params) or {}
    )
    got = past.injected(model, task, None, jax.tree.map(lambda a: a - 0.5, start), start)
    np.testing.assert_allclose(got["cosine"], [-1, -1], rtol=1e-4)
    assert past.injected(model, task, None, start, start, samples=1) == {}
    np.testing.assert_allclose(past.injected(model, task, None, start, start)["cosine"], [0, 0])
    for params, wanted in zip(seen, (start, reader), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, wanted)
