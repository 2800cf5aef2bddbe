"""Thinking in chunks: what is asked for, what is trained on, and that both see the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import chunks, config, loop, metrics
from jaxrl.chunks import WHOLE, Chunks
from jaxrl.packing import PackingConfig, pack
from jaxrl.types import Completion, Request
from tests.jaxrl import tiny
from tests.jaxrl.batches import batch
from tests.jaxrl.test_packing import prefixes

STOP = 9


def writer(request: Request, turn: int) -> Completion:
    """Counts on from the last token it is shown, up to STOP or its budget."""
    tokens = np.arange(request.prompt[-1] + 1, STOP + 1)[: request.max_new_tokens]
    logp = np.full(len(tokens), -float(turn), np.float32)
    version = np.zeros(len(tokens), np.int32)
    return Completion(request, tokens, logp, logp, version, STOP in tokens)


def test_a_response_is_made_of_chunks_that_carry_their_end_over():
    asked = []

    def sample(requests, turn):
        asked.append([(r.prompt, r.max_new_tokens) for r in requests])
        return [writer(r, turn) for r in reversed(requests)]

    requests = [Request(0, (7, 0), 20), Request(1, (7, 5), 20), Request(2, (7, -9), 6)]
    made = {c.request.id: c for c in chunks.generate(sample, requests, Chunks(4, 1))}
    assert asked == [
        [((7, 0), 4), ((7, 5), 4), ((7, -9), 4)],
        [((7, 0, 4), 3), ((7, -9, -5), 2)],  # no more than is left of the budget
        [((7, 0, 7), 3)],
    ]
    assert made[0].tokens.tolist() == list(range(1, 10)) and made[0].stopped
    assert made[0].logp.tolist() == [0.0] * 4 + [-1.0] * 3 + [-2.0] * 2
    assert made[1].tokens.tolist() == [6, 7, 8, 9]
    assert made[2].tokens.tolist() == [-8, -7, -6, -5, -4, -3] and not made[2].stopped
    assert [made[i].request for i in range(3)] == requests

    (whole,) = chunks.generate(sample, requests[:1], WHOLE)
    assert whole.tokens.tolist() == list(range(1, 10)) and (whole.logp == 0).all()

    def short(requests, turn):
        return [writer(dataclasses.replace(r, max_new_tokens=3), turn) for r in requests]

    (cut,) = chunks.generate(short, requests[:1], WHOLE)  # what one context gave is the response
    assert cut.tokens.tolist() == [1, 2, 3] and cut.request == requests[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.data())
def test_an_action_sees_its_prompt_and_its_chunk_alone(seed, size, data):
    carry = data.draw(st.integers(0, size - 1))
    given_ = batch(seed=seed)
    packed, _ = pack(
        given_, PackingConfig(micro_batch_tokens=64, bucket=8), chunks=Chunks(size, carry)
    )
    found = prefixes(packed)
    assert set(found) == set(zip(*np.nonzero(given_.action_mask), strict=True))
    for (n, t), (tokens, positions, target) in found.items():
        row = given_.tokens[n].tolist()
        first = int(np.argmax(given_.action_mask[n]))
        context = row[:first]  # as it grows, token by token, while the response is written
        for place in range(first, t):
            if len(context) == first + size:
                context = row[:first] + context[len(context) - carry :]
            context = [*context, row[place]]
        if len(context) == first + size:
            context = row[:first] + context[len(context) - carry :]
        assert tokens == context, (n, t)
        assert positions == list(range(len(context)))
        assert target == row[t]


def test_trained_log_probabilities_are_the_sampled_ones(tmp_path):
    """In the real loop, three chunks long."""
    changes = {"rollout.max_new_tokens": 9, "rollout.chunks": Chunks(5, 3), "warm_start.steps": 0}
    made = tiny.config(tmp_path / "run", steps=2, **{"eval.every": 0}, **changes)
    loop.train(made)
    rows = metrics.read(tmp_path / "run")
    assert rows[0]["completion_length_max"] == 9
    assert all(row["logp_gap_max"] < 1e-4 for row in rows)
    assert config.load(tmp_path / "run" / "config.json") == made


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout.chunks": Chunks(4, 4)},
        {"rollout.chunks": Chunks(4, -1)},
        {"rollout.chunks": Chunks(4, 1), "rollout.in_flight": 2.0},
        {"rollout.chunks": Chunks(4, 1), "guidance.guide": "data.guidance:escalate"},
        {"rollout.chunks": Chunks(4, 1), "policy_reward.use": True},
    ],
)
def test_chunks_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match=r"rollout\.chunks\.size=4"):
        config.check(tiny.config("unused", **changes))
