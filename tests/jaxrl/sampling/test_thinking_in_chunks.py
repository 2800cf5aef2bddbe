"""Thinking in chunks: what is asked for, what is trained on, and that both see the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import config
from jaxrl.config import RolloutConfig
from jaxrl.record import metrics
from jaxrl.rollout import programs
from jaxrl.run import loop
from jaxrl.sampling.requests import forced
from jaxrl.training.packing import PackingConfig, pack, trajectory
from jaxrl.training.tries import Chunks
from jaxrl.types import Completion, Request, Source
from tests.jaxrl import tiny
from tests.jaxrl.batches import batch
from tests.jaxrl.training.test_packing import prefixes

STOP = 9


def context(size, carry):
    rollout = RolloutConfig(group_size=1, max_prompt_tokens=8, max_new_tokens=20)
    chunks = Chunks(size, carry)
    return programs.Context(dataclasses.replace(rollout, chunks=chunks), 0, None, None)


def completed(request: Request) -> Completion:
    """Counts on from the last token it is shown, from 1 where that is beyond STOP, up to STOP or
    its budget."""
    shown = [*request.prompt, *([] if request.prefix is None else request.prefix.tokens)]
    given = 0 if request.prefix is None else len(request.prefix.tokens)
    first = shown[-1] + 1 if shown[-1] < STOP else 1
    tokens = np.arange(first, STOP + 1)[: request.max_new_tokens - given]
    before = np.zeros(0, np.int32) if request.prefix is None else request.prefix.tokens
    whole = np.concatenate([before, tokens]).astype(np.int32)
    logp = np.full(len(whole), -float(request.draw >> 16), np.float32)
    source = np.full(len(whole), Source.POLICY, np.int8)
    if request.prefix is not None:
        source[:given] = request.prefix.source
    version = np.zeros(len(whole), np.int32)
    return Completion(request, whole, logp, logp, version, STOP in tokens, source)


def run(request, size, carry):
    """What a response's program asks for, and what it returns."""
    asked, program, value = [], programs.write(context(size, carry), request), None
    while True:
        try:
            wanted = program.send(value)
        except StopIteration as stop:
            return asked, stop.value
        asked.append((wanted.request.prompt, wanted.request.max_new_tokens))
        value = completed(wanted.request)


@pytest.mark.parametrize(
    ("prompt", "budget", "asked", "tokens"),
    [
        ((7, 0), 20, [((7, 0), 4), ((7, 0, 4), 3), ((7, 0, 7), 3)], range(1, 10)),
        ((7, 5), 20, [((7, 5), 4)], range(6, 10)),
        ((7, -9), 6, [((7, -9), 4), ((7, -9, -5), 2)], range(-8, -2)),  # no more than is left
    ],
)
def test_a_response_is_made_of_chunks_that_carry_their_end_over(prompt, budget, asked, tokens):
    request = Request(0, prompt, budget)
    found, made = run(request, 4, 1)
    assert found == asked
    assert made.tokens.tolist() == list(tokens)
    assert made.stopped == (STOP in tokens) and made.request == request
    assert made.logp.tolist() == [-float(max(i - 1, 0) // 3) for i in range(len(tokens))]


def test_without_chunks_a_response_is_one_request():
    found, made = run(Request(0, (7, 0), 20), 0, 0)
    assert found == [((7, 0), 20)] and made.tokens.tolist() == list(range(1, 10))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.data())
def test_a_forced_prefix_is_read_in_the_chunks_it_is_trained_in(given_tokens, size, data):
    """Every chunk reads it behind the prompt, in the sampler and in the trainer."""
    carry = data.draw(st.integers(0, size - 1))
    prefix = tuple(range(-given_tokens, 0))
    found, made = run(Request(0, (7, 50), 20, prefix=forced(prefix)), size, carry)
    assert found[0] == ((7, 50, *prefix), min(size, 20 - given_tokens))
    assert made.tokens[:given_tokens].tolist() == list(prefix)
    assert (made.source[:given_tokens] == Source.FORCED).all()
    assert (made.source[given_tokens:] == Source.POLICY).all()

    given_ = trajectory([made], [0.0], [0], length=24)
    packed, _ = pack(
        given_, PackingConfig(micro_batch_tokens=64, bucket=8), chunks=Chunks(size, carry)
    )
    trained, place = prefixes(packed), 2 + given_tokens
    for prompt, most in found:
        assert tuple(trained[0, place][0]) == prompt
        place += most


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


@pytest.mark.broad
@pytest.mark.exact("log-probs of responses in chunks are the same in training and sampling")
def test_trained_log_probabilities_are_the_sampled_ones(tmp_path):
    """In the real loop, three chunks long, with a prefix cache."""
    changes = {
        "rollout.max_new_tokens": 9, "rollout.chunks": Chunks(5, 3), "warm_start.steps": 0,
        "sampler.prefix_cache": 1, "sampler.prefix_block": 2,
    }  # fmt: skip
    made = tiny.config(tmp_path / "run", steps=2, **{"eval.every": 0}, **changes)
    loop.train(made)
    rows = metrics.read(tmp_path / "run")
    assert rows[0]["completion_length_max"] == 9
    assert all(row["logp_gap_max"] < 1e-4 and row["prefixes/cached"] > 0 for row in rows)
    assert config.load(tmp_path / "run" / "config.json") == made


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout.chunks": Chunks(4, 4)},
        {"rollout.chunks": Chunks(4, -1)},
    ],
)
def test_chunks_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match=r"rollout\.chunks\."):
        config.check(tiny.config("unused", **changes))
