"""Sizes of the rounds of dynamic sampling, by hand."""

import numpy as np
import pytest

from jaxrl.data.selection import curriculum, sampling_rounds
from jaxrl.data.selection.sampling_rounds import Acceptance

GOOD, BAD = [0.0, 1.0], [1.0, 1.0]


def test_a_round_asks_for_what_is_missing_at_the_lowest_share_so_far():
    """Two batches of 4 by the rule of the authors' code."""
    state, quota = Acceptance(), curriculum.quota(4, oversampling=5)
    assert sampling_rounds.size(state, quota) == 4
    first = np.array([GOOD, GOOD, BAD, BAD])
    quota, _, _ = curriculum.dynamic(quota, first)
    state = sampling_rounds.observe(state, first, last=False)
    assert state == Acceptance(1.0, 0.5, 2, 4)
    assert sampling_rounds.size(state, quota) == 4  # 2 / 0.5
    second = np.array([GOOD, GOOD, GOOD, BAD])
    quota, keep, _ = curriculum.dynamic(quota, second)
    assert keep.sum() == 2  # one is left over, and counts for the share
    state = sampling_rounds.observe(state, second, last=True)
    assert state == Acceptance(5 / 8)
    quota = curriculum.quota(4, oversampling=5)
    assert sampling_rounds.size(state, quota) == 7  # 4 / (5/8) is 6.4
    better = sampling_rounds.observe(state, np.array([GOOD] * 7), last=True)
    assert better == state  # the share never rises


@pytest.mark.parametrize("found, lowest", [(0, 1 / 12), (3, 3 / 12)])
def test_a_round_stays_within_the_budget(found, lowest):
    state, quota = Acceptance(), curriculum.quota(4, oversampling=3)
    none = np.array([BAD] * 4)
    quota, _, _ = curriculum.dynamic(quota, none)
    state = sampling_rounds.observe(state, none, last=False)
    assert state.within == 0 and sampling_rounds.size(state, quota) == 8
    rest = np.array([GOOD] * found + [BAD] * (8 - found))
    quota, _, _ = curriculum.dynamic(quota, rest)
    state = sampling_rounds.observe(state, rest, last=True)
    assert state.lowest == lowest and sampling_rounds.size(state, quota) == 0


def test_a_full_batch_asks_for_none():
    quota, _, _ = curriculum.dynamic(curriculum.quota(2), np.array([GOOD, GOOD]))
    assert sampling_rounds.size(Acceptance(), quota) == 0
