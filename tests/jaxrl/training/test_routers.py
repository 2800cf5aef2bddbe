"""How often tokens count in the terms of routers, where an episode has several contexts."""

from __future__ import annotations

import collections

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.sampling.chunks import Chunks
from jaxrl.training import routers
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.types import Trajectory

CASES = {
    "a turn taken back": ("pp|AAA|BBB", {5: 1}),
    "a turn of one token taken back": ("pp|A|BB|C", {3: 1, 5: 1}),
    "its last token taken back": ("pp|AAA|BB", {5: 3}),
    "a turn replaced by an observation": ("pp|AAA|qBB", {5: 1}),
    "taken back in a later state": ("pp|AAqBB|CC|rDD", {7: 4, 9: 8}),
    "an earlier context goes on": ("pp|AA|qBB|rCC", {4: 0, 7: 3}),
    "taken back twice, and gone on": ("pp|AAA|BBB|CCC|qDD", {5: 1, 8: 1, 11: 7}),
    "its last token dropped by an observation": ("pp|AAA|qBB", {5: 3}),
}
"""Tokens, of which capital letters are actions, and what some continue: else the one before."""


def weights(rows):
    """How often each token counts, by its number, and how many sequences do.

    Args:
      rows: of a sequence each: numbers of tokens, whether each is an action, and the places of what
        each continues.
    """
    count, width = len(rows), max(len(row[0]) for row in rows)
    tokens, mask, parent = (np.zeros((count, width), kind) for kind in (np.int32, bool, np.int32))
    parent += np.arange(-1, width - 1, dtype=np.int32)
    for n, row in enumerate(rows):
        for array, values in zip((tokens, mask, parent), row, strict=True):
            array[n, : len(values)] = values
    zeros = np.zeros((count, width), np.float32)
    data = Trajectory(
        tokens, mask, zeros, zeros.astype(np.int32), zeros[:, 0], mask.any(1),
        np.zeros(count, np.int32), extra={"parent": parent},
    )  # fmt: skip
    packed = pack(data, PackingConfig(micro_batch_tokens=64, bucket=8))[0]
    found, sequences = collections.Counter(), 0
    for index in range(int(packed.micro_batches)):
        ended = routers.ends(packed, jnp.int32(index), jnp.ones(count, bool))
        shares = np.asarray(routers.token_weights(packed, jnp.int32(index), ended))
        sequences += int((ended >= 0).sum())
        for token, share in zip(packed.tokens[index].ravel(), shares.ravel(), strict=True):
            found[int(token)] += float(share)
    return {token: share for token, share in found.items() if share}, sequences


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("case", CASES)
def test_a_token_counts_in_each_context_as_in_a_row_of_its_own(case):
    written, others = CASES[case]
    text = written.replace("|", "")
    acts = np.array([each.isupper() for each in text])
    parent = np.arange(-1, len(text) - 1)
    parent[list(others)] = list(others.values())
    assert_counts_as_apart(acts, parent)


@pytest.mark.sample(8, broad=5)
@pytest.mark.parametrize("seed", range(40))
def test_so_it_does_in_contexts_at_random(seed):
    draw = np.random.default_rng(seed)
    size = int(draw.integers(4, 14))
    acts = draw.random(size) < 0.6
    acts[0], acts[-1] = False, True
    parent = np.arange(-1, size - 1)
    for at in range(2, size):
        if draw.random() < 0.3:
            parent[at] = draw.integers(0, at)
    assert_counts_as_apart(acts, parent)


def test_a_chunk_without_actions_ends_no_sequence():
    tokens, mask = np.arange(1, 12, dtype=np.int32)[None], np.zeros((1, 11), bool)
    mask[0, [2, 3, 10]] = True  # and none in the chunk of 6 to 8
    zeros = np.zeros((1, 11), np.float32)
    one = np.ones(1, np.float32)
    data = Trajectory(
        tokens, mask, zeros, zeros.astype(np.int32), one, one > 0, np.zeros(1, np.int32)
    )
    settings = PackingConfig(micro_batch_tokens=64, bucket=8, row_length=8)
    packed = pack(data, settings, chunks=Chunks(4, 1))[0]
    assert packed.leaf.sum() == 2 and (packed.sequence[packed.leaf] == 0).all()
    assert sorted(packed.target[packed.leaf].tolist()) == [4, 11]


def assert_counts_as_apart(acts, parent):
    """Each token counts as often as where every context has a row of its own."""
    numbers = np.arange(1, len(acts) + 1)
    apart = []
    goes_on = np.zeros(len(acts), bool)  # whether an action comes of a token
    for at in range(len(acts) - 1, 0, -1):
        goes_on[parent[at]] |= acts[at] | goes_on[at]
    for last in np.flatnonzero(acts & ~goes_on):
        path = [last]
        while parent[path[-1]] >= 0:
            path.append(parent[path[-1]])
        own = path[::-1]
        apart.append((numbers[own], acts[own], np.arange(-1, len(own) - 1)))
    assert weights([(numbers, acts, parent)]) == weights(apart)
