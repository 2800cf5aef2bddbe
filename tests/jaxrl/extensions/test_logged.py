"""Logged games: a fixed number of each problem, whose turns are the player's."""

import dataclasses

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks, tokenizers
from jaxrl.data.environments.play import Player
from jaxrl.extensions import logged
from jaxrl.extensions.logged import LoggedConfig
from jaxrl.launch.recipes import lmrl_gym
from jaxrl.rollout import collect
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Act, Fork
from jaxrl.types import Source
from tests.jaxrl.batches import MODEL

TASK = tasks.get("keydoor", turns=6)
ROLLOUT = RolloutConfig(group_size=12, max_prompt_tokens=32, max_new_tokens=66, turn_tokens=1)


def scripted(rng, word=0):
    """One letter, drawn at the start of a game, or the room's number as a letter of none."""
    letter = str(rng.choice(["l", "r"]))
    return (lambda shown: shown[1]) if word else (lambda shown: letter)


def played(settings, problem, first_id=0):
    """The rows of a group, whose environments are asked here."""
    actor = Policy(MODEL, {}, tokenizers.characters(TASK.alphabet))
    ctx = collect.context(ROLLOUT, 0, actor, TASK)
    program = logged.logged(settings).program(None)(ctx, problem, first_id)
    fork = next(program)
    assert isinstance(fork, Fork)
    rows = []
    for game in fork.programs:
        player, answer = Player(TASK), None
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
