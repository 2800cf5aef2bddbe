"""Balanced division against the best of all divisions."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data import batching


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=7), st.integers(1, 3))
def test_every_index_once_and_within_grahams_bound_of_the_best(costs, parts):
    divided = batching.balance(costs, parts)
    assert sorted(itertools.chain(*divided)) == list(range(len(costs))) and len(divided) == parts
    best = min(
        max(sum(c for c, p in zip(costs, where, strict=True) if p == part) for part in range(parts))
        for where in itertools.product(range(parts), repeat=len(costs))
    )
    fullest = max(sum(costs[i] for i in part) for part in divided)
    assert fullest <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9


def test_by_hand_and_bad_arguments():
    assert batching.balance([7, 6, 5, 4, 3], 2) == [[0, 3, 4], [1, 2]]
    with pytest.raises(ValueError, match="parts=0"):
        batching.balance([1], 0)
    with pytest.raises(ValueError, match="must not be negative"):
        batching.balance([-1], 1)
