"""Environments that give an episode several contexts: notes instead of a history, and attempts."""

from __future__ import annotations

import json

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply, Token, Written
from jaxrl.data.environments.wrappers import with_attempts
from jaxrl.data.environments.wrappers import with_compression as compression
from jaxrl.data.types import Problem

QUESTION = Problem(id="q", prompt="Q", answer="")
INNER = {
    "hops": ("retrieval", {"hops": 3, "ood_hops": 4, "searches": 3}),
    "count": ("retrieval", {"regime": "count", "hops": 3, "ood_hops": 4}),
    "compare": ("retrieval", {"regime": "compare", "hops": 3, "ood_hops": 4}),
    "words": ("calculator", {}),
    "keydoor": ("keydoor", {}),
}


def wrapped(task, case, **params):
    name, args = INNER[case]
    symbols = case != "words"
    return tasks.get(task, name=name, args=json.dumps(args), symbols=symbols, **params)


def played(world, problem, actions, seed=0):
    """The replies to some actions; the state is closed once."""
    state, opening = world.begin(problem, seed)
    replies = [world.step(state, action) for action in actions]
    world.close(state)
    return opening, replies


def total(replies):
    return sum(each.reward or 0.0 for each in replies)


@pytest.mark.parametrize("characters", (1, 7, 10**6))
@pytest.mark.parametrize("case", INNER)
def test_compression_changes_what_is_read_and_nothing_else(case, characters):
    """The environment earns the same for the same acts, wherever notes come between them."""
    made, plain = wrapped("with_compression", case, characters=characters), tasks.get(
        INNER[case][0], **INNER[case][1]
    )  # fmt: skip
    for index in range(4):
        problem = made.problem("test", 0, index)
        assert problem.prompt == plain.problem("test", 0, index).prompt
        acts = plain.turns.gold(problem, 0)
        _, replies = played(made.turns, problem, made.turns.gold(problem, 0))
        _, alone = played(plain.turns, problem, acts)
        assert total(replies) == pytest.approx(total(alone))
        assert replies[-1].done and all(each.error is None for each in replies)
        notes = [each for each in replies if each.opening is not None]
        assert len(replies) == len(acts) + len(notes)
        assert characters == 7 or bool(notes) == (characters == 1)
        assert replies[-1].parts["compressions"] == len(notes)
        kept = {k: v for k, v in replies[-1].parts.items() if k not in ("compressions", "context")}
        assert kept == dict(alone[-1].parts)


def test_notes_take_the_place_of_the_history():
    made = wrapped("with_compression", "hops", characters=3)
    problem = made.problem("test", 0, 0)
    (first, second, third), answer = problem.metadata["chain"][:3], problem.metadata["chain"][3]
    state, opening = made.turns.begin(problem, 0)
    reply = made.turns.step(state, first)
    assert reply.messages[0]["content"] == f"{first}{second}" and reply.opening is None
    reply = made.turns.step(state, second)  # now there are six characters
    assert reply.messages[0]["content"] == f"{second}{third}?" and reply.stop == (";",)
    reply = made.turns.step(state, f"2 {second}{third};")
    assert reply.opening.messages[0]["content"] == f"{problem.prompt}\n2 {second}{third}"
    assert not reply.messages and reply.reward is None and not reply.done
    assert reply.opening.stop == opening.stop
    reply = made.turns.step(state, third)
    assert reply.messages[0]["content"] == f"{third}{answer}"
    reply = made.turns.step(state, answer)
    assert reply.done and reply.reward == 1.0
    assert reply.parts["compressions"] == 1.0 and reply.parts["context"] == 8.0


def test_notes_in_words_follow_the_problem():
    made = wrapped("with_compression", "words", characters=1)
    problem = made.problem("test", 0, 0)
    state, opening = made.turns.begin(problem, 0)
    reply = made.turns.step(state, made.turns.gold(problem, 0)[0])
    assert reply.messages[-1]["content"].endswith(compression.ASK) and not reply.stop
    reply = made.turns.step(state, "<think>What did I find?</think> Ann lives in Ulm. ")
    (said,) = reply.opening.messages
    assert said["content"] == f"{problem.prompt}{compression.KEPT}Ann lives in Ulm."
    assert reply.opening.tools == opening.tools


def counting(rewards=(0.0, 1.0), error=None, answer=None):
    """Two turns, whose texts are heard; the reward of the second is whether it is `right`."""
    heard: list[str] = []
    closed: list[int] = []

    def begin(problem: Problem, seed: int) -> tuple[list[str], Opening]:
        return [], Opening(({"role": "user", "content": "Q"},), stop=("!",))

    def step(state: list[str], action: str) -> Reply:
        state.append(action)
        if len(state) < 2:
            return Reply(({"role": "user", "content": "go on"},), reward=0.25, error=error, calls=1)
        return Reply(reward=float(action == "right"), parts={"own": 1.0}, done=True, answer=answer)

    def reads(state: list[str], written: Written) -> None:
        heard.append("".join(each.text for each in written.tokens))

    world = Environment(begin, step, close=lambda state: closed.append(len(state)), reads=reads)
    return world, heard, closed


@pytest.mark.parametrize("share", (0.0, 0.5, 0.75))
def test_the_last_attempt_reads_the_answers(share):
    inner, _, closed = counting()
    world = with_attempts.environment(inner, 3, share)
    acts = ["a", "wrong", "b", "right", "c", "right", "d", "right"]
    state, opening = world.begin(QUESTION, 5)
    replies = [world.step(state, act) for act in acts]
    assert closed == [2, 2, 2]
    world.close(state)
    assert closed == [2, 2, 2, 2]
    given = [share / 3 * r for r in (0.25, 0, 0.25, 1, 0.25, 1)] + [(1 - share) * 0.25, 1 - share]
    assert [each.reward for each in replies] == pytest.approx(given)
    openings = [each.opening for each in replies if each.opening is not None]
    assert openings[:2] == [opening] * 2
    (said,) = openings[2].messages
    assert said["content"] == f"Q{with_attempts.HEADING}1. wrong\n2. right\n3. right"
    assert openings[2].stop == ("!",)
    assert [each.done for each in replies] == [False] * 7 + [True]
    parts = {"own": 1.0, "attempts": 0.25 + 2 / 3, "best": 1.25, "vote": 1.25, "last": 1.25}
    assert replies[-1].parts == pytest.approx(parts)
    assert sum(each.calls for each in replies) == 4


def test_the_first_answer_wins_a_tied_vote():
    inner, _, _ = counting()
    world = with_attempts.environment(inner, 2, symbols=True)
    _, replies = played(world, QUESTION, ["a", "wrong", "b", "right", "c", "x"])
    assert replies[-1].parts["vote"] == 0.25 and replies[-1].parts["best"] == 1.25
    assert replies[3].opening.messages[0]["content"] == "Q\ngt"


@pytest.mark.parametrize("case", INNER)
def test_the_demonstrations_of_attempts_earn_the_full_reward(case):
    made = wrapped("with_attempts", case, attempts=2)
    plain = tasks.get(INNER[case][0], **INNER[case][1])
    problem = made.problem("test", 0, 1)
    _, replies = played(made.turns, problem, made.turns.gold(problem, 0))
    _, alone = played(plain.turns, problem, plain.turns.gold(problem, 0))
    assert total(replies) == pytest.approx(total(alone))
    figures = [replies[-1].parts[k] for k in ("attempts", "best", "vote", "last")]
    assert figures == pytest.approx([total(alone)] * 4)


def test_an_error_in_an_attempt_voids_the_episode():
    inner, _, _ = counting(error="broken: no")
    _, (reply,) = played(with_attempts.environment(inner, 2), QUESTION, ["a"])
    assert reply.error == "broken: no"
    inner, _, _ = counting(answer="42")
    _, replies = played(with_attempts.environment(inner, 2), QUESTION, ["a", "b"])
    assert "judged outside" in replies[-1].error


def test_the_environment_hears_its_own_turns_alone():
    inner, heard, _ = counting()
    world = compression.environment(inner, 1)
    state, _ = world.begin(QUESTION, 0)
    for text in ("a", "notes", "right"):
        world.reads(state, Written((Token(1, text, 0.0),), 0))
        world.step(state, text)
    assert heard == ["a", "right"]


@pytest.mark.parametrize(
    ("task", "params", "why"),
    [
        ("with_compression", {"name": "arithmetic"}, "that has an environment"),
        ("with_attempts", {"name": "arithmetic"}, "that has an environment"),
        ("with_compression", {"characters": 0}, "characters=0"),
        ("with_attempts", {"attempts": 0}, "attempts=0"),
        ("with_attempts", {"share": 1.0}, "share=1.0"),
        ("with_compression", {"name": "calculator", "symbols": True}, "alphabet"),
    ],
)
def test_what_cannot_be_is_refused(task, params, why):
    with pytest.raises(ValueError, match=why):
        tasks.get(task, **params)


@pytest.mark.parametrize("args", ['{"digits": 3}', {"digits": 3}])
def test_a_task_within_a_task_has_its_parameters_as_json_or_as_a_recipe_writes_them(args):
    assert tasks.within("arithmetic", args).params == {"digits": 3}


@pytest.mark.parametrize(
    ("args", "why"),
    [("{digits: 3}", "is no JSON"), ("[3]", "as a JSON object"), ("3", "as a JSON object")],
)
def test_parameters_that_are_none_are_refused(args, why):
    with pytest.raises(ValueError, match=why):
        tasks.within("arithmetic", args)


def test_the_answers_stay_where_the_environment_replaces_the_last_context():
    inner, _, _ = counting()
    world = with_attempts.environment(compression.environment(inner, 1), 2)
    state, _ = world.begin(QUESTION, 0)
    acts = ["a", "notes", "left", "b", "notes", "right", "c"]
    for act in acts:
        world.step(state, act)
    reply = world.step(state, "my notes")
    (said,) = reply.opening.messages
    assert said["content"].startswith("Q") and "my notes" in said["content"]
    assert said["content"].endswith(f"{with_attempts.HEADING}1. left\n2. right")
    reply = world.step(state, "right")
    assert reply.done and reply.parts["last"] == 1.25


def test_an_opening_of_a_later_attempt_may_fail():
    inner, _, closed = counting()
    begun = []

    def begin(problem, seed):
        begun.append(seed)
        state, opening = inner.begin(problem, seed)
        return state, opening._replace(error="server: it is down") if begun[1:] else opening

    world = with_attempts.environment(inner._replace(begin=begin), 2)
    state, _ = world.begin(QUESTION, 0)
    world.step(state, "a")
    reply = world.step(state, "right")
    assert reply.error == "server: it is down" and reply.opening is None
    world.close(state)
    assert closed == [2, 0]


def test_the_end_of_an_attempt_may_take_as_long_as_an_opening_too():
    inner, _, _ = counting()
    limits = inner._replace(seconds=lambda problem, action: 10.0 if action else 60.0)
    world = with_attempts.environment(limits, 2)
    assert world.seconds(QUESTION, "a") == 70 and world.seconds(QUESTION, "") == 60
    assert with_attempts.environment(inner, 2).seconds is None


@pytest.mark.parametrize("task", ("with_attempts", "with_compression"))
def test_words_are_refused_where_the_policy_knows_symbols_alone(task):
    with pytest.raises(ValueError, match="'retrieval' knows no words"):
        tasks.get(task, name="retrieval")
