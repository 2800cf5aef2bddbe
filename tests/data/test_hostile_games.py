"""Games of other packages against turns that no player writes: replies stay finite and bounded."""

import importlib.machinery
import math
import string
import sys
import time
from types import ModuleType, SimpleNamespace

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
    "\\help", "\\o\\m\\d", "look \\x", "F[=S7 Cgr6D9+wg1*4.r+Wl{<$4MpIcq,]T.o\"d\\NB#", "t\u00e9ke",
    "take \x7f key", "go\tnorth", "rules all", "showme", "test me",
    "purloin key", "gonear player", "abstract key to player",
)  # fmt: skip
SECONDS = 20.0


def faults_of(task, turns, size=1):
    """What is wrong with episodes of `size` odd turns each, and one of twelve."""
    player = play.Player(task)
    problem = task.problem("train", 0, 0)
    parts = [turns[i : i + size] for i in range(0, len(turns), size)]
    for number, each in enumerate([*parts, turns[:12]]):
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
    faults = list(faults_of(tasks.get("text_world", rooms=1, objects=1, length=1), TURNS, size=4))
    assert not faults, "\n".join(faults)


LETTERS = {*string.ascii_letters, *string.digits, *" ,.;:!?'\"-"}
"""What a command may have. The program that runs the games is native code: a NUL made it hang, a
backslash and two letters ended it by a bus error."""


class FakeGame:
    """A game of TextWorld as the bridge uses it, which gives any fields."""

    def __init__(self, first, later):
        self.first, self.later, self.closed, self.commands = first, later, 0, []

    @staticmethod
    def _state(fields):
        if isinstance(fields, Exception):
            raise fields
        plain = {
            "feedback": "A room.",
            "objective": "Win.",
            "score": 0,
            "max_score": 3,
            "won": False,
        }
        return SimpleNamespace(
            **plain | {"admissible_commands": [], "policy_commands": []} | fields
        )

    def reset(self):
        return self._state(self.first)

    def step(self, command):
        self.commands.append(command)
        state = self._state(self.later)
        return state, state.score, self.later.get("over", False)

    def close(self):
        self.closed += 1


@pytest.fixture
def text_world(monkeypatch):
    """`(first, later) -> task, games`: fields of the states of its games, and those that began."""

    def task_of(first=None, later=None):
        games = []

        def start(path, infos):
            games.append(FakeGame(first or {}, later or {}))
            return games[-1]

        package, generator = ModuleType("textworld"), ModuleType("textworld.generator")
        package.__spec__ = importlib.machinery.ModuleSpec("textworld", None)
        package.GameOptions = lambda: SimpleNamespace(chaining=SimpleNamespace())
        package.EnvInfos = SimpleNamespace
        package.start = start
        generator.make_game = lambda options: None
        generator.compile_game = lambda game, options: options.path
        monkeypatch.setitem(sys.modules, "textworld", package)
        monkeypatch.setitem(sys.modules, "textworld.generator", generator)
        return tasks.get("text_world", turns=3, commands=True), games

    return task_of


def test_turns_reach_a_game_of_text_world_short_and_without_commands_to_its_program(text_world):
    task, games = text_world()
    assert not list(faults_of(task, TURNS))
    commands = [command for game in games for command in game.commands]
    assert all(set(c) <= LETTERS and 0 < len(c) < 198 for c in commands)
    assert {"oops quit", "test me", "again"} <= set(commands)
    assert not {"quit", "save", "restore", "script", "undo"} & {c.split()[0] for c in commands}
    assert all(game.closed == 1 for game in games)


ODD_NUMBERS = (math.nan, math.inf, -math.inf, 10**400, -1, 4, 1e308, None, "9", [], object())
ODD_FIELDS = (
    [{"score": n} for n in ODD_NUMBERS if n is not None]
    + [{"score": None}, {"feedback": None}, {"feedback": b"A room."}, {"won": None}]
    + [{"feedback": text * 100_000} for text in ("x", "\x1b[2J", "\u202e", "\x00", "\n>", "\n")]
    + [{"admissible_commands": c} for c in (None, 5, [None, 1], ["x" * 10**6], ["go"] * 10**5)]
    + [
        RuntimeError("x" * 10**6),
        SystemExit(3),
        RecursionError(),
        MemoryError(),
        OSError(32, "pipe"),
    ]
)
"""Of a state, or what the game raises."""


@pytest.mark.parametrize("fields", ODD_FIELDS, ids=range(len(ODD_FIELDS)))
def test_odd_states_of_text_world_void_an_episode_or_are_cut(text_world, fields):
    """At first or later: no reward beyond the quest's, no long text, and the game is closed."""
    for at in ({"later": fields}, {"first": fields}):
        task, games = text_world(**at)
        player, problem = play.Player(task), task.problem("train", 0, 0)
        answers = [player.answer(play.Turn(0, problem, 0))]
        while not (answers[-1].error or getattr(answers[-1], "done", False)):
            turn = play.Turn(0, problem, 0, ("look",) * len(answers), tuple(answers))
            answers.append(player.answer(turn))
        player.close()
        assert len(answers) <= 4
        assert all(0.0 <= (a.reward or 0.0) <= 1.0 for a in answers[1:] if a.reward is not None)
        texts = [m["content"] for a in answers for m in a.messages]
        assert all(len(text) <= 1 << 14 for text in texts)
        assert all(len(a.error or "") < 10_000 for a in answers)
        assert [game.closed for game in games] == [1]


@pytest.mark.parametrize("best", [0, -1, math.nan, None, "3"])
def test_a_game_of_text_world_without_a_score_is_no_episode(text_world, best):
    task, games = text_world(first={"max_score": best})
    answer = play.Player(task).answer(play.Turn(0, task.problem("train", 0, 0), 0))
    assert answer.error and [game.closed for game in games] == [1]
