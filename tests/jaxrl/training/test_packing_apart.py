"""Rows without trees: every action behind a copy of its own context, all of it just before."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.tries import WHOLE, Chunks, count_levels
from tests.jaxrl.batches import batch
from tests.jaxrl.training.test_packing import branched


def contexts(packed, *, in_line: bool) -> dict[tuple[int, int], tuple[int, ...]]:
    """What each action sees, and itself, by sequence and time."""
    seen = {}
    for k, r, a in zip(*np.nonzero(packed.sequence >= 0), strict=True):
        at = packed.predictor[k, r, a]
        cells = np.arange(packed.tokens.shape[-1])
        visible = np.flatnonzero((cells <= at) & (packed.visible_until[k, r] > at))
        positions = packed.positions[k, r, visible]
        assert positions.tolist() == list(range(len(visible)))
        if in_line:
            assert visible.tolist() == list(range(at + 1 - len(visible), at + 1))
        action = int(packed.sequence[k, r, a]), int(packed.time[k, r, a])
        assert action not in seen
        seen[action] = (*packed.tokens[k, r, visible].tolist(), int(packed.target[k, r, a]))
    return seen


@pytest.mark.exact("rows without shared prompts hold the same actions in the same contexts")
@pytest.mark.parametrize("chunks", [WHOLE, Chunks(4, 2)])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_contexts(seed, chunks):
    data = batch(seed, groups=3, size=3)
    if chunks is WHOLE and seed % 2:
        data = branched(data, seed)
    shared, _ = pack(data, PackingConfig(256, bucket=8), chunks=chunks)
    apart, _ = pack(data, PackingConfig(256, bucket=8, share_prompts=False), chunks=chunks)
    assert contexts(apart, in_line=True) == contexts(shared, in_line=False)
    assert shared.levels > 1 == apart.levels
    assert shared.levels >= count_levels(shared.visible_until)
