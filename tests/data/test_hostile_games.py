"""Games of other packages against turns that no player writes: replies stay finite and bounded."""

import math
import time

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import play
from jaxrl.data.environments.bridges import text_arena

TURNS = (
    "", " ", "\n" * 1000, "\x00", "\x1b]0;x\x07\x1b[2J", "\u202e\u2066[1]", "[" * 20_000, "]" * 9,
    "[" + "9" * 5000 + "]", "[-1]", "[1e308]", "[nan]", "[0 99999999999]", "[None]", "[1 1 1 1 1]",
    "[__import__('os').system('touch /tmp/x')]", "{0.__class__}", "%s%n" * 100, "[\ud800]",
    "[a]" * 5000, "\u0660\u0661[\u0663]", "[0]\r\n[1]", "x" * 60_000, "[[0]]", "[0;1]", "[A1]",
    "quit", "save", "restore", "script", "/quit", " quit", "QUIT", "quit. look", "look. quit",
    "look\nquit", "\u201cquit\u201d", "say \"quit\"", "undo", "again", "g", "oops quit", "verbose",
    "take all. drop all. take all", "go north " * 4000, "examine " + "a" * 5000, "debug", "trace 5",
    "purloin key", "gonear player", "abstract key to player", "rules all", "showme", "test me",
)  # fmt: skip
SECONDS = 20.0


def faults_of(task, turns):
    """What is wrong with episodes of one odd turn each, and one of all of them."""
    player = play.Player(task)
    problem = task.problem("train", 0, 0)
    for number, each in enumerate([(turn,) for turn in turns] + [tuple(turns[:12])]):
        started, name = time.monotonic(), f"{task.name} {each[0][:40]!r}"
        seen, answers = [], [player.answer(play.Turn(number, problem, 0))]
        for action in each:
            if answers[-1].error or getattr(answers[-1], "done", False):
                break
            seen.append(action)
            turn = play.Turn(number, problem, 0, tuple(seen), tuple(answers))
            answers.append(player.answer(turn))
        if answers[0].error:
            yield f"{name}: no opening: {answers[0].error}"
        for answer in answers[1:]:
            if answer.error:
                yield f"{name}: {answer.error[:200]}"
            if answer.reward is not None and not math.isfinite(answer.reward):
                yield f"{name}: reward {answer.reward}"
            if (answer.reward or 0.0) > 0:
                yield f"{name}: reward {answer.reward}"
        if time.monotonic() - started > SECONDS:
            yield f"{name}: {time.monotonic() - started:.0f} s"
    player.close()


@pytest.mark.extra
def test_games_of_text_arena_take_any_turn():
    pytest.importorskip("textarena")
    faults = []
    for game in text_arena.GAMES:
        faults += faults_of(tasks.get("text_arena", game=game), TURNS)
    assert not faults, "\n".join(faults)


@pytest.mark.extra
def test_games_of_text_world_take_any_turn():
    pytest.importorskip("textworld")
    faults = list(faults_of(tasks.get("text_world", rooms=1, objects=1, length=1), TURNS))
    assert not faults, "\n".join(faults)
