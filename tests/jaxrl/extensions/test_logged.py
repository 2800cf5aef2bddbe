"""Logged games: a fixed number of each problem, whose turns are the player's."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments.play import Player
from jaxrl.data.text import tokenizers
from jaxrl.extensions import logged
from jaxrl.extensions.logged import LoggedConfig
from jaxrl.launch.recipes.game_agents import lmrl_gym
from jaxrl.rollout import collect, demonstrations
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Act, Fork
from jaxrl.types import Source
from tests.jaxrl.batches import MODEL
from tests.models import byte_tokenizer

TASK = tasks.get("keydoor", turns=6)
ROLLOUT = RolloutConfig(group_size=12, max_prompt_tokens=32, max_new_tokens=66, turn_tokens=1)


def scripted(rng, word=0):
    """One letter, drawn at the start of a game, or the room's number as a letter of none."""
    letter = str(rng.choice(["l", "r"]))
    return (lambda shown: shown[1]) if word else (lambda shown: letter)


def symbols(text):
    """The pairs of a name and a number in a page or a request of the task html_form."""
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def filling(rng):
    """Fills in the form that it is shown first, by the page that it is shown last."""
    asked = []

    def play(shown):
        *first, page = shown.split("\n")
        asked.extend(each for line in first for each in symbols(line))
        return next((each for each in asked if each not in symbols(page)), "s0")

    return play


def played(settings, problem, first_id=0, task=TASK, rollout=ROLLOUT, tokenizer=None):
    """The rows of a group, whose environments are asked here."""
    actor = Policy(MODEL, {}, tokenizer or tokenizers.characters(task.alphabet))
    ctx = collect.context(rollout, 0, actor, task)
    program = logged.logged(settings).program(None)(ctx, problem, first_id)
    fork = next(program)
    assert isinstance(fork, Fork)
    rows = []
    for game in fork.programs:
        player, answer = Player(task), None
        try:
            while True:
                wanted = game.send(answer)
                assert isinstance(wanted, Act)  # the policy is asked for nothing
                answer = player.answer(wanted.turn)
        except StopIteration as ended:
            rows.append(ended.value)
    with pytest.raises(StopIteration) as ended:
        program.send(rows)
    return ended.value.value


def test_games_are_the_players_and_come_from_a_fixed_log():
    settings = LoggedConfig(f"{__name__}:scripted", games=3)
    problem = TASK.problem("train", 0, 0)
    groups = [played(settings, problem, first) for first in (0, 12, 24)]
    games = {tuple(row.completion.tokens.tolist()) for rows in groups for row in rows}
    assert len(games) <= 3  # of the problem, whichever group draws them
    alphabet = tokenizers.characters(TASK.alphabet)
    for row in groups[0]:
        own = row.completion.source == Source.EXPERT
        letters = alphabet.decode(row.completion.tokens[own].tolist())
        assert letters in ("l" * 6, "r" * 6)  # one token a turn, as the budget has it
        assert not row.completion.logp.any() and row.score.value == 0
    other = LoggedConfig(f"{__name__}:scripted", {"word": 1})
    read = played(other, problem)[0]  # the player is shown what the environment said last
    rooms = alphabet.decode(read.completion.tokens[read.completion.source == Source.EXPERT])
    assert set(rooms) == {problem.prompt[1]}


FORMS = RolloutConfig(group_size=2, max_prompt_tokens=64, max_new_tokens=400)


@pytest.mark.parametrize("compress", [True, False])
def test_a_player_is_shown_the_page_of_each_turn(compress):
    """Whether it follows in the conversation or takes its place."""
    task = tasks.get("html_form", compress=compress, symbols=True)
    for index in range(3):
        problem = task.problem("train", 0, index)
        rows = played(LoggedConfig(f"{__name__}:filling"), problem, task=task, rollout=FORMS)
        assert [row.score.value for row in rows] == [1.0, 1.0]
        assert (rows[0].completion.parent is not None) == compress


@pytest.mark.parametrize("compress", [True, False])
def test_budgets_are_kept(compress):
    """That of all contexts together, and that of each turn."""
    task = tasks.get("html_form", compress=compress, symbols=True)
    problem, settings = task.problem("train", 0, 0), LoggedConfig(f"{__name__}:filling")
    whole = len(played(settings, problem, task=task, rollout=FORMS)[0].completion.tokens)
    for most, turn in itertools.product(range(1, whole + 2), (0, 2)):
        rollout = dataclasses.replace(FORMS, max_new_tokens=most, turn_tokens=turn)
        for row in played(settings, problem, task=task, rollout=rollout):
            own = row.completion
            assert len(own.tokens) <= most
            turns = np.bincount(own.turn[own.source == Source.EXPERT])[1:]
            assert turns.max() <= (turn or 3)  # two symbols, and what ends the turn
            assert turn or row.score.value == (most >= whole - 1)  # less what ends the last turn


GAME = tasks.get("game24")


def solving(rng):
    """The task's own solution of its first problem."""
    steps = iter(GAME.turns.gold(GAME.problem("train", 0, 0), 0))
    return lambda shown: next(steps)


def test_turns_are_written_as_demonstrations_are(tmp_path):
    """A thought that the template begins is ended."""
    byte_tokenizer.write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(byte_tokenizer.THINKING)
    tokenizer, problem = tokenizers.load(tmp_path), GAME.problem("train", 0, 0)
    rollout = RolloutConfig(1, 1, max_prompt_tokens=4000, max_new_tokens=4000, chat=True)
    row = played(LoggedConfig(f"{__name__}:solving"), problem, 0, GAME, rollout, tokenizer)[0]
    policy, config = Policy(MODEL, {}, tokenizer), Config(task="game24", rollout=rollout)
    batch = demonstrations.demonstrations(policy, config, GAME, [problem])
    start = len(row.completion.request.prompt)
    own = slice(start, start + len(row.completion.tokens))
    assert row.score.value == 1 and "</think>6 * 4" in row.text
    np.testing.assert_array_equal(row.completion.tokens, batch.tokens[0, own])
    np.testing.assert_array_equal(row.completion.actions, batch.action_mask[0, own])


def test_the_recipes_players_find_out_or_stroll():
    """Answers are those of the third disease, W: finding a, and neither b nor c."""
    answers = {"a": "+", "b": "-", "c": "-"}

    def game(share, seed):
        play, said, acts = lmrl_gym.player(np.random.default_rng(seed), share), "h+", ""
        for _ in range(4):
            acts += play(said)
            said = answers.get(acts[-1], "?")
        return acts

    wise, idle = ([game(share, seed) for seed in range(400)] for share in (1.0, 0.0))
    assert np.mean([acts[0] == "a" for acts in wise]) == pytest.approx(0.9 + 0.1 / 8, abs=0.05)
    assert np.mean([acts in ("abcW", "acbW") for acts in wise]) == pytest.approx(0.66, abs=0.08)
    assert np.mean([acts[:3] == "fgh" for acts in idle]) == pytest.approx(0.91**3, abs=0.08)
    assert {acts[3] for acts in idle} == set("UVWXYZ")


@pytest.mark.parametrize(
    ("settings", "changes", "match"),
    [
        ({"player": ""}, {}, "player is empty"),
        ({"games": 0}, {}, "games=0"),
        ({}, {"task": "arithmetic"}, "one turn"),
        ({}, {"rollout": dataclasses.replace(ROLLOUT, on_device=True)}, "on_device"),
    ],
)
def test_what_has_no_log_is_refused(settings, changes, match):
    made = LoggedConfig(**{"player": f"{__name__}:scripted", **settings})
    with pytest.raises(ValueError, match=match):
        logged.logged(made).check(Config(**{"task": "keydoor", **changes}))
