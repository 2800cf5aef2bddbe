"""Guides: who is helped, when, and with how much."""

import numpy as np
import pytest

from jaxrl.data.selection import guidance

RNG = np.random.default_rng(0)
REWARDS = np.array([[0, 0, 0], [0, 1, 0], [np.nan, 0, 0]])
"""Groups 0 and 2 have failed; a failed score is no success."""


def places(hints):
    return [(h.problem, h.row) for h in hints]


def test_experts_are_the_last_rows_of_every_group():
    hints = guidance.expert_rows(0, None, RNG, count=2, group_size=4, rows=2)
    assert places(hints) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert all(h.expert and not h.given for h in hints)
    assert not guidance.expert_rows(1, REWARDS, RNG, count=3, group_size=3)


@pytest.mark.parametrize("guide", ["expert_on_failure", "escalate", "inpaint", "explain"])
def test_only_what_has_failed_is_helped(guide):
    guide = getattr(guidance, guide)
    assert not guide(0, None, RNG)
    hints = guide(1, REWARDS, RNG, rows=1)
    assert places(hints) == [(0, 0), (2, 0)]
    assert not guide(4, REWARDS, RNG)
    assert not guide(1, np.ones((3, 3)), RNG)


def test_hints_grow_from_attempt_to_attempt():
    given = [guidance.escalate(n, REWARDS, RNG)[0].given for n in (1, 2, 3)]
    assert given == [0.25, 0.5, 0.75]
    assert places(guidance.escalate(1, REWARDS, RNG)) == [(p, g) for p in (0, 2) for g in range(3)]
    assert not any(h.given for h in guidance.escalate(2, REWARDS, RNG, help=0.0))


def test_a_prefix_is_the_same_for_a_whole_group():
    hints = guidance.prefixes(0, None, RNG, count=200, group_size=2, share=0.3, low=0.4, high=0.6)
    shares = {p: {h.given for h in hints if h.problem == p} for p, _ in places(hints)}
    assert all(len(given) == 1 for given in shares.values())
    lengths = np.array([given.pop() for given in shares.values()])
    assert 0.4 <= lengths.min() < 0.45 and 0.55 < lengths.max() <= 0.6
    assert 35 <= len(lengths) <= 85  # 60 expected, deviation 6.5


def test_forks_are_before_the_least_certain_token():
    tokens = [[np.array([5, 6, 7]), np.array([8]), np.array([9, 9]), np.array([4])]]
    unsure = [[np.array([0.1, 0.2, 0.9]), np.array([0.3]), np.zeros(2), np.zeros(1)]]
    rng = np.random.default_rng(0)
    given = {"tokens": tokens, "entropies": unsure, "group_size": 4}
    assert guidance.forks(0, None, rng, tokens=[], entropies=[], group_size=4) == []
    first, second = guidance.forks(1, None, rng, **given, top=1)
    assert (first.problem, first.row, first.begin) == (0, 2, (5, 6))
    assert (second.row, second.begin) == (3, ())
    assert guidance.forks(2, None, rng, **given) == []


def test_an_empty_row_has_a_branch_that_begins_anew():
    rng, given = np.random.default_rng(0), {"tokens": [[[], [8]]], "entropies": [[[], [0.3]]]}
    (hint,) = guidance.forks(1, None, rng, **given, group_size=2)
    assert (hint.row, hint.begin) == (1, ())
