"""What is written of sampled groups, against numbers made by hand."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.config import Config, RolloutConfig, RolloutLogConfig
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import rollout_log
from jaxrl.rollout.experience import Experience
from jaxrl.training import packing
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Completion, Request, TrainState

LETTERS = {1: "a", 2: "b", 3: "+", 0: ""}


def decode(ids):
    return "".join(LETTERS[i] for i in ids)


def made(rewards=((1.0, 0.0), (None, 1.0))):
    """Two groups of two; the logged probabilities are -1, -2, ... along each completion."""
    texts = [[1, 2, 0], [2, 0], [3], [1, 1, 1]]
    requests = [Request(i, (3, 3) if i < 2 else (1, 3, 3), 3) for i in range(4)]
    completions = [
        Completion(
            request,
            np.array(ids, np.int32),
            -np.arange(1, len(ids) + 1, dtype=np.float32),
            np.full(len(ids), 0.5, np.float32),
            np.full(len(ids), 7, np.int32),
            ids[-1] == 0,
        )
        for request, ids in zip(requests, texts, strict=True)
    ]
    scores = [
        Score(None, error="timeout: 1 s") if r is None else Score(r, {"correct": r})
        for pair in rewards
        for r in pair
    ]
    problems = [Problem("p/0", "++", 0), Problem("p/1", "a++", [1])]
    experience = Experience(problems, completions, [decode(ids) for ids in texts], scores, [])
    batch = packing.trajectory(completions, [s.value for s in scores], [0, 0, 1, 1], length=8)
    return experience, batch


def record(directory, config, step, experience, batch):
    logp = jnp.where(batch.action_mask, batch.behavior_logp + 0.25, jnp.nan)
    write = rollout_log.recorder(directory, config, decode, lambda params, batch: logp)
    write(step, experience, batch, TrainState({}, {}, jnp.int32(step)))
    return [json.loads(line) for line in (directory / "rollouts" / f"{step:06d}.jsonl").open()]


def test_rows_hold_each_token_with_its_numbers(tmp_path):
    config = Config(steps=9, rollout=RolloutConfig(prompts=2, group_size=2, max_new_tokens=3))
    rows = record(tmp_path, config, 1, *made())
    assert [row["group"] for row in rows] == [0, 0, 1, 1]
    first = rows[0]
    assert first["tokens"] == ["a", "b", ""] and first["completion"] == "ab"
    assert first["logp"] == [-1, -2, -3] and first["version"] == [7, 7, 7]
    assert first["source"] == ["policy"] * 3 and first["stopped"] and not rows[2]["stopped"]
    assert first["log_ratio"] == [0.25, 0.25, 0.25]
    assert first["answer"] == "0" and rows[2]["answer"] == "[1]"
    # Rewards 1 and 0: mean 1/2 and unbiased spread sqrt(1/2), so advantages are +-1/sqrt(2).
    np.testing.assert_allclose(first["advantage"], 3 * [0.5**0.5], rtol=1e-3)
    np.testing.assert_allclose(rows[1]["advantage"], 2 * [-(0.5**0.5)], rtol=1e-3)
    # A completion without a score has an error in its place, and leaves its group of one at 0.
    assert rows[2]["reward"] is None and rows[2]["error"] == "timeout: 1 s"
    assert rows[2]["advantage"] == [0] and rows[3]["advantage"] == [0, 0, 0]


def counted(
    rewards: jax.Array, group_ids: jax.Array, num_groups: int, step: jax.Array
) -> jax.Array:
    """Says in which update a sequence was, of how many sequences, and its group there."""
    return 100.0 * step + 10.0 * num_groups + group_ids + jnp.zeros_like(rewards)


def test_advantages_are_those_of_the_update_that_a_sequence_was_in(tmp_path):
    """Two updates of one group each, the first of them the run's fifth."""
    config = Config(
        steps=9,
        updates_per_batch=2,
        rollout=RolloutConfig(prompts=2, group_size=2, max_new_tokens=3),
        objective=ObjectiveConfig(advantage="tests.jaxrl.rollout.test_rollout_log:counted"),
    )
    experience, batch = made()
    write = rollout_log.recorder(tmp_path, config, decode, lambda state, _: batch.behavior_logp)
    write(1, experience, batch, TrainState({}, {}, jnp.int32(7)))
    rows = [json.loads(line) for line in (tmp_path / "rollouts" / "000001.jsonl").open()]
    assert [row["advantage"][0] for row in rows] == [520, 520, 620, 620]


def test_which_steps_and_groups_are_kept(tmp_path):
    keep = RolloutLogConfig(every=4, groups=1)
    config = Config(steps=9, rollout=RolloutConfig(max_new_tokens=3), rollout_log=keep)
    experience, batch = made()
    write = rollout_log.recorder(tmp_path, config, decode, lambda params, _: batch.behavior_logp)
    for step in range(1, 10):
        write(step, experience, batch, TrainState({}, {}, jnp.int32(step)))
    files = sorted((tmp_path / "rollouts").iterdir())
    assert [file.stem for file in files] == ["000001", "000004", "000008", "000009"]
    assert all(len(file.read_text().splitlines()) == 2 for file in files)


@pytest.mark.exact("the pieces of a logged completion join to its text")
@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.data())
def test_pieces_join_to_the_text(text, data):
    """Byte tokens: several make one character, and a cut can fall amid one."""
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    backend = hf.Tokenizer(hf.models.BPE({c: i for i, c in enumerate(sorted(alphabet))}, []))
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = hf.decoders.ByteLevel()
    ids = backend.encode(text).ids
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    pieces = rollout_log.pieces(backend.decode, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == backend.decode(ids)


def test_pieces_of_a_tokenizer_that_drops_the_leading_blank():
    words = {1: " two", 2: " words", 3: "."}
    pieces = rollout_log.pieces(lambda ids: "".join(words[i] for i in ids).lstrip(), [1, 2, 3])
    assert pieces == ["two", " words", "."]
