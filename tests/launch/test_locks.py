"""The lab's dials: what the environment says, what traces show, and what passes without them."""

import jax
import numpy as np
import pytest

from experiments.lab import locks
from experiments.lab.locks import BACK, CHOICE, NO, WAIT, YES, Trace
from experiments.lab.tasks import EOS, FILLER, PAD

TRACES = (Trace(2), Trace(1, waits=1), Trace(0, waits=2))
TASK = locks.locks(TRACES)


def passed(problems, tokens):
    return np.asarray(jax.vmap(TASK.reward)(problems.answer, tokens))


@pytest.mark.parametrize("domain", range(len(TRACES)))
def test_traces_are_what_their_domain_says(domain):
    problems = TASK.train
    rows = problems.domain == domain
    gold, trace = problems.gold[rows], TRACES[domain]
    assert (passed(problems, problems.gold)[rows] == 1).all()
    assert (locks.backtracking(gold) == trace.mistakes).all()
    assert (np.sum(gold == WAIT, axis=1) == 2 * trace.waits).all()
    turns = locks.DIALS + 2 * (trace.mistakes + trace.waits)
    assert (np.count_nonzero(gold, axis=1) == 2 * turns + 1).all()


@pytest.mark.broad
def test_the_environment_answers_as_the_traces_do():
    problems = jax.tree.map(lambda a: a[:40], TASK.train)
    for answer, gold in zip(problems.answer, problems.gold, strict=True):
        end = int(np.argmax(gold == EOS))
        for t in range(1, end, 2):
            so_far = np.where(np.arange(len(gold)) < t, gold, PAD)
            assert TASK.respond(answer, so_far, t) == gold[t]
            assert TASK.respond(answer, so_far, t - 1) == -1


def test_a_dial_is_open_by_its_last_setting():
    """By hand: wrong, back, right, right, wrong; then right after going back."""
    answer = np.array([2, 0, 1])
    choices = [CHOICE + 1, BACK, CHOICE + 2, CHOICE + 0, CHOICE + 2]
    wrong = locks.spoken(np.array(choices), answer)
    np.testing.assert_array_equal(wrong[1::2], [NO, FILLER, YES, YES, NO])
    right = locks.spoken(np.array([*choices, BACK, CHOICE + 1]), answer)
    size = TASK.train.gold.shape[1]

    def closed(tokens):
        return np.pad([*tokens, EOS], (0, size - len(tokens) - 1))

    assert TASK.reward(answer, closed(right)) == 1
    for tokens in (wrong, right[:-2]):
        assert TASK.reward(answer, closed(tokens)) == 0
    assert TASK.reward(answer, np.pad(right, (0, size - len(right)))) == 0  # not ended


@pytest.mark.broad
def test_demonstrations_never_go_back_and_seldom_pass():
    """A guess from the same odds is right by the sum of their squares, 0.38, and three by 0.055."""
    shown = TASK.demonstrations
    assert not np.isin(shown.gold, (BACK, WAIT)).any()
    assert 0.04 < passed(shown, shown.gold).mean() < 0.07
