"""Branches of episodes: how many rows begin anew, where others leave them, and what they share."""

import dataclasses
import math

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply
from jaxrl.data.environments.play import Player
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Problem, Task
from jaxrl.extensions import branching
from jaxrl.extensions.branching import BranchingConfig
from jaxrl.rollout import collect, episodes, programs
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Act, Fork, Sample
from jaxrl.types import Completion, Request, Source
from tests.jaxrl.batches import MODEL

TASK = tasks.get("keydoor", turns=4)
TOKENIZER = tokenizers.characters(TASK.alphabet)
ROLLOUT = RolloutConfig(group_size=6, max_prompt_tokens=32, max_new_tokens=66, turn_tokens=1)
EVEN = BranchingConfig(beta=2.0, probability=0.4, weight=0.5, penalty=0.25, tokens=2)


def test_the_entropy_of_a_turn_is_that_of_its_first_tokens():
    kinds = [Source.POLICY] * 3 + [Source.FORCED, Source.OBSERVATION] + [Source.POLICY]
    made = Completion(
        Request(0, (1,), 9), np.arange(6, dtype=np.int32), np.zeros(6, np.float32),
        np.array([1, 2, 30, 40, 50, 4], np.float32), np.zeros(6, np.int32), True,
        np.array(kinds, np.int8), turn=np.array([1, 1, 1, 2, 2, 2], np.int16),
    )  # fmt: skip
    assert branching.turn_entropies(made, 2) == [1.5, 4.0]
    assert branching.turn_entropies(made, 9) == [11.0, 4.0]
    replaced = dataclasses.replace(made, parent=np.arange(6, dtype=np.int32))
    assert branching.turn_entropies(replaced, 2) == []


@pytest.mark.parametrize(
    ("entropies", "fresh", "rows"),
    [
        ([0.5, 0.5, 0.5], None, 4),
        ([0.9, 0.1, 0.3], None, 6),  # 8 / (1 + exp(2 (0.2 - 0.9))) = 6.4
        ([0.1, 1.0, 0.8], None, 1),  # 8 / (1 + exp(2 (0.9 - 0.1))) = 1.3
        ([0.5], None, 8),
        ([0.9, 0.1], 0.25, 2),
        ([0.9, 0.1], 0.0, 1),
    ],
)
def test_rows_are_divided_by_the_entropies_of_the_first(entropies, fresh, rows):
    assert branching.fresh_rows(dataclasses.replace(EVEN, fresh=fresh), 8, entropies) == rows


def test_a_branch_is_likelier_where_entropy_rises_and_less_so_after_branches():
    found = [branching.probability(EVEN, 0.2, before) for before in range(6)]
    np.testing.assert_allclose(found, [0.5, 0.375, 0.25, 0.125, 0, 0], rtol=1e-12)
    assert branching.probability(EVEN, -0.8, 0) == 0 and branching.probability(EVEN, 9.0, 0) == 1
    rng, draws = np.random.default_rng(0), 4000
    counts = np.zeros(3)
    for _ in range(draws):
        paths = [branching.Path([0.2, 0.4, 0.4])]
        second, third = (branching.branches(EVEN, paths, turn, 9, rng) for turn in (2, 3))
        counts += [second == [0], third == [0], second == third == [0]]
    both = 0.5 * 0.375
    wanted = [0.5, both + 0.5 * 0.5, both]
    np.testing.assert_allclose(counts / draws, wanted, atol=4 * math.sqrt(0.25 / draws))
    sure = dataclasses.replace(EVEN, probability=1.0, penalty=0.0)
    paths = [branching.Path([0, 0, 0]), branching.Path([0, 0])]
    made = [branching.branches(sure, paths, turn, 2, rng) for turn in (2, 3)]
    assert made == [[0, 1], [0]]
    assert branching.branches(sure, paths, 2, 1, rng) == [0]  # no more than asked for


def sampled(request):
    """A turn of one letter that depends on the request and on how far its episode has come."""
    prefix = request.prefix or programs.EMPTY
    letter = TOKENIZER.encode("lr")[(request.id + len(prefix.tokens) // 9) % 2]
    own = programs.Prefix(
        np.array([letter], np.int32), np.array([-0.5 - request.id], np.float32),
        np.array([0.1 * (1 + request.id)], np.float32), np.array([3], np.int32),
        np.array([Source.POLICY], np.int8),
    )  # fmt: skip
    done = programs.join([prefix, own])
    return Completion(request, *done[:4], False, done.source)


def group(settings):
    """A group's rows, and the requests that each round of it has sampled, by the row's place."""
    ctx = collect.context(ROLLOUT, 0, Policy(MODEL, {}, TOKENIZER), TASK)
    problem = TASK.problem("train", 0, 0)
    program = branching.branching(settings).program(None)(ctx, problem, 40)
    rounds, answer = [], None
    try:
        while True:
            fork = program.send(answer)
            assert isinstance(fork, Fork) and fork.programs
            answer = []
            for play in fork.programs:
                player, given, asked = Player(TASK), None, []
                try:
                    while True:
                        wanted = play.send(given)
                        if isinstance(wanted, Act):
                            given = player.answer(wanted.turn)
                            continue
                        assert isinstance(wanted, Sample)
                        asked.append(wanted.request)
                        given = sampled(wanted.request)
                except StopIteration as ended:
                    answer.append(ended.value)
                rounds.append(asked)
    except StopIteration as ended:
        return ended.value, rounds


def test_branches_share_what_came_before_and_sample_the_rest():
    sure = BranchingConfig(fresh=0.5, probability=1.0, weight=0.0, penalty=0.0)
    rows, asked = group(sure)
    assert len(rows) == 6 and [len(each) for each in asked] == [4, 4, 4, 3, 3, 3]
    for n in range(3):  # the branches at the second turn, one of each fresh row
        first, other = rows[n].completion, rows[3 + n].completion
        shared = len(asked[3 + n][0].prefix.tokens)
        assert {request.id for request in asked[3 + n]} == {43 + n}
        for name in ("tokens", "logp", "entropy", "version", "source", "turn"):
            mine, its = getattr(other, name), getattr(first, name)
            assert mine[:shared].tolist() == its[:shared].tolist()
        own = other.source[shared:] == Source.POLICY
        assert set(other.logp[shared:][own].tolist()) == {-43.5 - n}
        assert set(first.logp[first.source == Source.POLICY].tolist()) == {-40.5 - n}


def test_a_branch_may_have_branches():
    """All rows of a turn first: after row 0 branched at its second turn, both do at the third."""
    rows, asked = group(BranchingConfig(fresh=0.0, probability=1.0, weight=0.0, penalty=0.0))
    assert [len(each) for each in asked] == [4, 3, 2, 2, 1, 1]
    assert [from_row(rows, n) for n in range(1, 6)] == [0, 0, 1, 0, 1]


def from_row(rows, n):
    """The row that row n shares most with."""
    own = rows[n].completion.logp.tolist()
    alike = [
        sum(1 for a, b in zip(own, row.completion.logp.tolist(), strict=False) if a == b and a)
        for row in rows[:n]
    ]
    return int(np.argmax(alike))


def test_a_branch_comes_less_soon_after_the_one_that_it_began_with():
    sure = BranchingConfig(fresh=0.0, probability=1.0, weight=0.0, penalty=1.0)
    rows, asked = group(sure)  # none at the third turn, for the branch and for what it left
    assert [len(each) for each in asked] == [4, 3, 1, 1, 4, 4] and len(rows) == 6


def test_rows_that_no_branch_takes_begin_anew():
    rows, asked = group(BranchingConfig(fresh=0.5, probability=0.0, weight=0.0))
    assert len(rows) == 6 and [len(each) for each in asked] == [4] * 6
    assert all(each[0].prefix is None for each in asked)
    assert len(group(BranchingConfig(fresh=1.0))[0]) == 6


@pytest.mark.parametrize(
    ("settings", "changes", "match"),
    [
        ({"fresh": 1.5}, {}, r"fresh=1\.5"),
        ({"penalty": -1.0}, {}, r"penalty=-1\.0"),
        ({"tokens": 0}, {}, "tokens=0"),
        ({}, {"task": "arithmetic"}, "one turn"),
        ({}, {"rollout": dataclasses.replace(ROLLOUT, on_device=True)}, "on_device"),
    ],
)
def test_what_cannot_branch_is_refused(settings, changes, match):
    with pytest.raises(ValueError, match=match):
        branching.branching(BranchingConfig(**settings)).check(
            Config(**{"task": "keydoor", **changes})
        )


SAID = ("0", "11", "22", "33", "")  # the opening, replies to three turns, and the end
OTHERWISE = {"same": None, "other": "55", "longer": "1122", "shorter": "1", "end": ""}


def answering(said):
    """A task whose environment gives these texts, and ends at an empty one."""

    def begin(problem, seed):
        return iter(said[1:]), Opening(({"role": "user", "content": said[0]},))

    def step(state, action):
        content = next(state)
        shown = ({"role": "user", "content": content},) if content else ()
        return Reply(shown, None if content else 1.0, done=not content)

    return Task("own", lambda *_: None, lambda *_: None, turns=Environment(begin, step))


@pytest.mark.parametrize("text", OTHERWISE.values(), ids=OTHERWISE)
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("turn", [2, 3, 4])
def test_a_branch_whose_environment_answers_otherwise_before_it_is_void(text, at, turn):
    """So that no answer becomes an action. What follows the branch may be other."""
    other = SAID if text is None else (*SAID[:at], text, *SAID[at + 1 :])

    def row(said, n, earlier=None):
        task = answering(said)
        ctx = collect.context(ROLLOUT, 0, Policy(MODEL, {}, TOKENIZER), task)
        player, given, request = Player(task), None, Request(n, (), ROLLOUT.max_new_tokens)
        play = episodes.episode(ctx, Problem("q", "a", None), request, 3)
        play = play if earlier is None else branching.after(ctx, play, earlier, turn)
        try:
            while True:
                wanted = play.send(given)
                acts = isinstance(wanted, Act)
                given = player.answer(wanted.turn) if acts else sampled(wanted.request)
        except StopIteration as ended:
            return ended.value

    first = row(SAID, 0)
    branch = row(other, 1, first)
    made = branch.completion
    assert first.score.value == 1.0 and made.request.id == 1
    if text is not None and at < turn:
        assert branch.score.value is None and f"turn {at + 1}" in branch.score.error
        assert made.turn.max(initial=0) == len(made.turn_rewards) <= at
    else:
        assert branch.score.value == 1.0
    assert np.isin(made.tokens[made.actions], TOKENIZER.encode("lr")).all()
