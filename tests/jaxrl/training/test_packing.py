"""Packing: whatever the layout, each action is predicted from exactly its own prefix."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.mesh.buckets import round_to_eighth, round_up
from jaxrl.training.packing import PackingConfig, pack, reward_parts, shares, trajectory
from jaxrl.training.tries import Chunks
from jaxrl.types import Completion, Packed, Request, Trajectory
from tests.jaxrl.batches import batch

SMALL = PackingConfig(micro_batch_tokens=128, bucket=8)


def prefixes(packed: Packed) -> dict[tuple[int, int], tuple[list[int], list[int], int]]:
    """What each action (n, t) is predicted from: tokens and positions it sees, and its target."""
    length, width = packed.tokens.shape[-1], packed.target.shape[-1]
    tokens, positions, until = (
        np.asarray(a).reshape(-1, length)
        for a in (packed.tokens, packed.positions, packed.visible_until)
    )
    predictor, target, sequence, place = (
        np.asarray(a).reshape(-1, width)
        for a in (packed.predictor, packed.target, packed.sequence, packed.time)
    )
    out = {}
    for row, column in zip(*np.nonzero(sequence >= 0), strict=True):
        action, query = (sequence[row, column], place[row, column]), predictor[row, column]
        seen = [s for s in range(query + 1) if query < until[row, s]]
        assert action not in out
        out[action] = (
            tokens[row, seen].tolist(),
            positions[row, seen].tolist(),
            target[row, column],
        )
    return out


def check_prefixes(data: Trajectory, packed: Packed) -> None:
    found = prefixes(packed)
    assert set(found) == set(zip(*np.nonzero(data.action_mask), strict=True))
    for (n, t), (tokens, positions, target) in found.items():
        assert tokens == data.tokens[n, :t].tolist()
        assert positions == list(range(t))
        assert target == data.tokens[n, t]


def test_a_group_is_laid_out_as_its_prompt_with_branches():
    request = Request(0, (5, 6, 7), 4)
    completions = [
        Completion(request, np.array(t, np.int32), *([np.zeros(len(t), np.float32)] * 2),
                   np.zeros(len(t), np.int32), True)
        for t in ([1, 2], [3], [4, 8, 9])
    ]  # fmt: skip
    data = trajectory(completions, [1.0, None, 0.0], [0, 0, 0], length=8)
    packed, cost = pack(data, PackingConfig(micro_batch_tokens=8, row_length=8))
    # the prompt, then all but the last token of each completion: a last token predicts nothing
    assert packed.tokens[0, 0].tolist() == [5, 6, 7, 1, 4, 8, 0, 0]
    assert packed.positions[0, 0].tolist() == [0, 1, 2, 3, 3, 4, 0, 0]
    assert packed.visible_until[0, 0].tolist() == [6, 6, 6, 4, 6, 6, 0, 0]
    assert packed.predictor[0, 0, :6].tolist() == [2, 3, 2, 2, 4, 5]
    assert packed.target[0, 0, :6].tolist() == [1, 2, 3, 4, 8, 9]
    assert int(packed.micro_batches) == 1
    assert cost["padding_share"] == pytest.approx(2 / 8)
    assert cost["shared_share"] == pytest.approx(1 - 6 / 12)  # 4 + 3 + 5 tokens unshared
    assert data.valid.tolist() == [True, False, True]
    assert data.rewards.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.exact("every packed action sees its own prefix and nothing else")
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    groups=st.integers(1, 5),
    size=st.integers(1, 5),
    tokens=st.sampled_from([16, 64, 256]),
    row_length=st.sampled_from([0, 16, 40]),
    multiple=st.sampled_from([1, 4]),
)
def test_every_action_sees_its_own_prefix_and_nothing_else(
    seed, groups, size, tokens, row_length, multiple
):
    data = batch(seed, groups, size)
    config = PackingConfig(micro_batch_tokens=tokens, bucket=8, row_length=row_length)
    packed, cost = pack(data, config, row_multiple=multiple)
    check_prefixes(data, packed)
    assert packed.tokens.shape[1] % multiple == 0
    assert 0 <= cost["padding_share"] < 1 and 0 <= cost["shared_share"] < 1
    used = np.asarray(packed.visible_until).any(axis=(1, 2))
    assert used.sum() == packed.micro_batches and used[: packed.micro_batches].all()


@pytest.mark.exact("packed turns with observations keep their own context")
def test_turns_with_observations_between_them_keep_their_context():
    """Tokens of tools lie between actions: seen, never predicted."""
    data = batch(3, groups=2, size=2, longest=9)
    mask = np.array(data.action_mask)
    for row in mask:
        row[np.flatnonzero(row)[1:3]] = False
    data = data.replace(action_mask=mask)
    check_prefixes(data, pack(data, SMALL)[0])


def branched(data: Trajectory, seed: int) -> Trajectory:
    """The same tokens, of which some continue an earlier one than the one before."""
    rng = np.random.default_rng(seed)
    width = data.tokens.shape[1]
    parent = np.tile(np.arange(-1, width - 1, dtype=np.int32), (len(data.tokens), 1))
    mask = np.array(data.action_mask)
    for n, row in enumerate(mask):
        for t in np.flatnonzero(row)[1:]:
            row[t] = rng.random() < 0.7
            if rng.random() < 0.4:
                parent[n, t] = rng.integers(0 if row[t] else -1, t)
    return data.replace(action_mask=mask, extra={"parent": parent})


@pytest.mark.exact("every action of an episode that branches sees its own context and nothing else")
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    tokens=st.sampled_from([32, 128]),
    row_length=st.sampled_from([0, 24]),
)
def test_every_action_of_a_trie_sees_its_own_path_and_nothing_else(seed, tokens, row_length):
    """Also where contexts part in the prompt, share nothing, or part again."""
    data = branched(batch(seed, 3, 3), seed)
    packed, cost = pack(data, PackingConfig(tokens, bucket=8, row_length=row_length))
    found, parent = prefixes(packed), data.extra["parent"]
    assert set(found) == set(zip(*np.nonzero(data.action_mask), strict=True))
    for (n, t), (seen, positions, target) in found.items():
        path = [int(parent[n, t])]
        while path[-1] >= 0:
            path.append(int(parent[n, path[-1]]))
        assert seen == data.tokens[n, path[-2::-1]].tolist()
        assert positions == list(range(len(seen)))
        assert target == data.tokens[n, t]
    assert cost["shared_share"] >= 0
    sequences = np.asarray(packed.sequence).reshape(-1, packed.target.shape[-1])
    rows = [set(row[row >= 0].tolist()) for row in sequences]
    assert sum(map(len, rows)) == len(set().union(*rows))  # a row has an episode whole


def contexts(count: int, lengths: Sequence[int], prompt: int = 4) -> Trajectory:
    """Episodes of contexts that share nothing but the prompt."""
    width = prompt + sum(lengths)
    parent = np.arange(-1, width - 1, dtype=np.int32)
    parent[prompt + np.cumsum([0, *lengths[:-1]])] = prompt - 1
    tokens = np.random.default_rng(0).integers(1, 30, (count, width), dtype=np.int32)
    mask = np.tile(np.arange(width) >= prompt, (count, 1))
    zeros = np.zeros(mask.shape, np.float32)
    return Trajectory(
        tokens, mask, zeros, zeros.astype(np.int32), np.ones(count, np.float32),
        np.ones(count, bool), np.arange(count, dtype=np.int32),
        extra={"parent": np.tile(parent, (count, 1))},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "lengths", "budget"),
    [(8, [100] * 3, 1024), (8, [1000] * 4, 8192), (4, [100] * 2, 128), (8, [50, 100], 512)],
)
def test_contexts_that_share_only_the_prompt_all_have_a_row(count, lengths, budget):
    """They may need more rows than there are episodes, and part an episode."""
    data = contexts(count, lengths)
    packed, _ = pack(data, PackingConfig(budget))
    sequences = np.asarray(packed.sequence)
    assert np.count_nonzero(sequences >= 0) == np.count_nonzero(data.action_mask)
    parts = [set(each[each >= 0].tolist()) for each in sequences]
    assert packed.cut == (sum(map(len, parts)) > len(set().union(*parts)))
    assert sum(map(bool, parts)) == packed.micro_batches > 1


def test_the_room_for_rows_does_not_change_with_what_is_computed():
    data, shapes = contexts(20, [100]), set()
    for kept in (20, 17, 16, 12):
        packed, _ = pack(data, PackingConfig(512, row_length=128), keep=np.arange(20) < kept)
        shapes.add(packed.tokens.shape)
    assert len(shapes) == 1


def test_contexts_of_an_episode_are_computed_once():
    """Two turns, a summary of them after half the prompt, and a turn after each of both."""
    tokens = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9]], np.int32)
    mask = np.array([[0, 0, 0, 0, 1, 1, 0, 1, 1]], bool)
    parent = np.array([[-1, 0, 1, 2, 3, 4, 1, 6, 5]], np.int32)
    zeros = np.zeros(mask.shape, np.float32)
    data = Trajectory(
        tokens, mask, zeros, zeros.astype(np.int32), np.ones(1, np.float32), np.ones(1, bool),
        np.zeros(1, np.int32), extra={"parent": parent},
    )  # fmt: skip
    packed, cost = pack(data, PackingConfig(micro_batch_tokens=8, row_length=8))
    assert packed.tokens[0, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert packed.positions[0, 0].tolist() == [0, 1, 2, 3, 4, 5, 2, 0]
    assert packed.visible_until[0, 0].tolist() == [7, 7, 6, 6, 6, 6, 7, 0]
    assert packed.target[0, 0, :4].tolist() == [5, 6, 9, 8]
    assert packed.predictor[0, 0, :4].tolist() == [3, 4, 5, 6]
    assert cost["shared_share"] == pytest.approx(1 - 7 / (6 + 3))
    wrong = data.replace(extra={"parent": np.where(parent == 6, 8, parent)})
    with pytest.raises(ValueError, match="token 7 continues token 8"):
        pack(wrong, SMALL)


def test_few_shapes_come_of_many_draws_of_lengths():
    """Another draw of the same batch seldom compiles the update anew."""
    config = dataclasses.replace(SMALL, row_length=32)
    made = [pack(batch(seed), config)[0] for seed in range(40)]
    assert len({(len(p.computed), p.length) for p in made}) == 1
    rows = {p.tokens.shape[1] for p in made}
    assert rows <= {1, 2, 3, 4} and {p.target.shape[-1] for p in made} <= set(range(4, 65, 4))
    assert {p.tokens.shape[0] for p in made} <= {1} | {-(-len(made[0].computed) // r) for r in rows}


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 60), most=st.integers(1, 20), multiple=st.sampled_from([1, 2, 3, 4]))
def test_micro_batches_are_even(count, most, multiple):
    """Rows are spread over the micro-batches that are needed, a third more at most."""
    request = Request(0, (1,), 8)
    ones = np.ones(8, np.float32)
    long = Completion(
        request, np.arange(8, dtype=np.int32), ones, ones, ones.astype(np.int32), True
    )
    data = trajectory([long] * count, [1.0] * count, [0] * count, length=9)
    config = PackingConfig(micro_batch_tokens=8 * most, row_length=9)
    packed, cost = pack(data, dataclasses.replace(config, micro_batch_tokens=9 * most),
                        row_multiple=multiple)  # fmt: skip
    micro, rows, _ = packed.tokens.shape
    used = int(packed.micro_batches)
    assert used <= micro and used * rows >= count > (used - 1) * rows
    assert rows <= max(most + -most % multiple, multiple)
    needed = -(-count // used)
    assert rows <= -(-max(needed, needed * 3 // 2) // multiple) * multiple
    assert 0 <= cost["padding_share"] < 1


def test_a_sequence_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="row_length=8 is shorter than a sequence of"):
        pack(batch(0), PackingConfig(row_length=8))


def test_an_action_without_a_prefix_is_refused():
    data = batch(0)
    mask = np.array(data.action_mask)
    mask[1, 0] = True
    with pytest.raises(ValueError, match="sequence 1 begins with an action"):
        pack(data.replace(action_mask=mask), SMALL)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.integers(1, 6),
    group=st.integers(1, 5),
    added=st.lists(st.integers(1, 2), max_size=2),
    updates=st.integers(1, 6),
)
def test_shares_are_whole_groups_numbered_from_zero(prompts, group, added, updates):
    """Of each share, groups are the prompts that it has of the step, then of each addition."""
    counts = [prompts, *added]
    data = batch(0, groups=sum(counts) * updates, size=group)
    kinds = np.repeat(np.arange(len(counts)), np.array(counts) * updates * group)
    data = data.replace(extra={"addition": kinds})
    found = list(shares(data, updates))
    assert len(found) == updates
    for part in found:
        assert part.group_ids.tolist() == np.repeat(np.arange(sum(counts)), group).tolist()
        kinds = np.repeat(np.arange(len(counts)), np.array(counts) * group)
        np.testing.assert_array_equal(part.extra["addition"], kinds)
        pack(part, SMALL)  # takes no id that is beyond the share
    for kind in range(len(counts)):
        rows = [part.tokens[part.extra["addition"] == kind] for part in found]
        of_kind = data.tokens[data.extra["addition"] == kind]
        np.testing.assert_array_equal(np.concatenate(rows), of_kind)


def test_shares_of_several_seeds_are_those_of_each():
    kinds = np.repeat([0, 1], [16, 8])
    batches = [batch(seed, groups=6, size=4).replace(extra={"addition": kinds}) for seed in (0, 1)]
    stacked = list(shares(jax.tree.map(lambda *a: np.stack(a), *batches), 2))
    assert len(stacked) == 2
    for i, one in enumerate(batches):
        for part, own in zip(stacked, shares(one, 2), strict=True):
            jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), part, own)


def test_a_group_number_beyond_the_batch_is_refused():
    data = batch(0, groups=2, size=2)
    for wrong in (4, -1):
        with pytest.raises(ValueError, match=f"group_ids hold {wrong}, but the batch has 4"):
            pack(data.replace(group_ids=np.array([0, 0, wrong, wrong])), SMALL)


def long(lengths: list[int], prompt: int = 100, size: int = 1) -> Trajectory:
    """Responses of these lengths, each `size` of them to a prompt of their own."""
    width = prompt + max(lengths)
    mask = np.zeros((len(lengths), width), bool)
    tokens = np.ones((len(lengths), width), np.int32)
    for n, length in enumerate(lengths):
        tokens[n, 0] = 2 + n // size
        mask[n, prompt : prompt + length] = True
    zeros, one = np.zeros(mask.shape, np.float32), np.zeros(len(lengths), np.float32)
    ids = (np.arange(len(lengths)) // size).astype(np.int32)
    return Trajectory(tokens, mask, zeros, zeros.astype(np.int32), one, one == 0, ids)


def test_rows_of_long_sequences_cost_no_more_than_an_eighth():
    """20k tokens in rows of 20k, or of 40k where the budget allows and a prompt is shared."""
    packed, cost = pack(long([19_900] * 4, size=4), PackingConfig(micro_batch_tokens=24_576))
    assert packed.tokens.shape[1:] == (1, 20_480)
    assert cost["padding_share"] < 0.03
    packed, _ = pack(long([19_900] * 4, size=4), PackingConfig(micro_batch_tokens=65_536))
    assert packed.tokens.shape[1:] == (1, 40_960)
    packed, _ = pack(long([19_900] * 4), PackingConfig(micro_batch_tokens=65_536))
    assert packed.tokens.shape[1:] == (2, 20_480)


def test_a_prompt_is_shared_as_far_as_the_budget_allows():
    """Rows of 3584 tokens would hold the prompt and one response, those of 5632 five."""
    packed, _ = pack(long([500] * 8, prompt=3000, size=8), PackingConfig(micro_batch_tokens=6000))
    assert packed.tokens.shape[1:] == (1, 5632) and packed.micro_batches == 2


def test_a_row_is_no_longer_than_the_longest_tree():
    packed, cost = pack(long([60] * 8, prompt=900, size=4), PackingConfig(micro_batch_tokens=8192))
    assert packed.tokens.shape == (1, 2, 1152)  # 900 + 4 * 59 = 1136 tokens; 2 * 960 holds more
    assert cost["padding_share"] < 0.02


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    size=st.integers(1, 3),
    budget=st.sampled_from([1, 500, 1000, 4096, 100_000]),
    multiple=st.sampled_from([1, 2, 8]),
    chunk=st.sampled_from([0, 64]),
)
@pytest.mark.filterwarnings("ignore:packing.micro_batch_tokens")
def test_rows_keep_to_the_budget_where_sequences_do(lengths, size, budget, multiple, chunk):
    data = long(lengths, size=size)
    config = PackingConfig(micro_batch_tokens=budget)
    packed, _ = pack(data, config, row_multiple=multiple, chunks=Chunks(chunk, 0))
    _, rows, row = packed.tokens.shape
    context = 100 + min(max(lengths), chunk or max(lengths))
    assert context <= row <= round_to_eighth(2 * context, 64)
    if multiple * round_to_eighth(context, 64) <= budget:
        assert rows * row <= budget
    assert rows % multiple == 0 and row % 64 == 0


def test_row_lengths_are_few():
    found = {round_to_eighth(n, 64) for n in range(1, 65_537)}
    assert len(found) == 16 + 6 * 8
    for n in (1, 64, 65, 1024, 1025, 20_000, 65_536):
        assert n <= round_to_eighth(n, 64) < max(n + 64, 1.13 * n)
        assert round_to_eighth(n, 64, down=True) <= n
        assert round_to_eighth(n, 64, down=True) in found | {0}


def test_a_budget_that_a_row_exceeds_is_reported():
    with pytest.warns(UserWarning, match=r"micro_batch_tokens=512 is exceeded.* set it to 4096"):
        pack(long([400]), PackingConfig(micro_batch_tokens=512), row_multiple=8)


def lines_run(call: Callable[[], object]) -> int:
    """The number of lines of Python that a call runs."""
    count = 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("chunks", [Chunks(), Chunks(1024, 128)])
def test_packing_runs_no_loop_over_tokens(chunks):
    """Lines of Python for each sequence or chunk of it, and none for each of its tokens."""
    data = long([16_384] * 32)
    config = PackingConfig(micro_batch_tokens=32_768)
    pieces = 32 * 16_384 // (chunks.size or 16_384)
    assert lines_run(lambda: pack(data, config, chunks=chunks)) < 512 * pieces


def test_buckets_are_powers_of_two_times_the_bucket():
    assert [round_up(n, 64) for n in (1, 64, 65, 300)] == [64, 64, 128, 512]


def test_a_micro_batch_has_no_more_rows_than_the_batch_can_fill():
    packed, _ = pack(batch(0, groups=2, size=2), PackingConfig(row_length=16))
    assert packed.tokens.shape == (1, 2, 16)


def test_parts_of_rewards_stand_in_the_order_of_their_names():
    made = reward_parts([{"form": 1.0, "answer": 0.5}, None, {"answer": 0.0, "form": 0.25}])
    assert made.tolist() == [[0.5, 1.0], [0.0, 0.0], [0.0, 0.25]]
    assert reward_parts([{"form": 1.0}, {"answer": 1.0}]) is None
    assert reward_parts([{}, None]) is None
