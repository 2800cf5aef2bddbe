"""Games of TextArena (Guertler et al. 2025) for one player, or for two against a random opponent.

Only games that need no download, no key and no other model are known. They are named as
`--task text_arena --task-args.game TicTacToe-v0` and need the extra `textarena`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxrl.data.environments import Environment, Opening, Reply
from jaxrl.data.environments.bridges import adapters
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Task

Moves = Callable[[Any], Sequence[str]]
"""The raw game -> moves of the opponent, legal or nearly so; a refused one is drawn again."""


def _free_cells(env: Any) -> Sequence[str]:
    cells = [cell for row in env.state.game_state["board"] for cell in row]
    return [f"[{i}]" for i, cell in enumerate(cells) if not cell]


def _columns(env: Any) -> Sequence[str]:
    top = env.state.game_state["board"][0]
    return [f"[{i}]" for i, cell in enumerate(top) if cell == "."]


def _bets(env: Any) -> Sequence[str]:
    return ("[check]", "[bet]", "[call]", "[fold]")


def _piles(env: Any) -> Sequence[str]:
    piles = env.state.game_state["piles"]
    return [f"[{i} {n + 1}]" for i, pile in enumerate(piles) for n in range(pile)]


GAMES: dict[str, Moves | None] = {
    "Bandit-v0": None,
    "FifteenPuzzle-v0": None,
    "FrozenLake-v0": None,
    "GuessTheNumber-v0": None,
    "LightsOut-v0": None,
    "Mastermind-v0": None,
    "Minesweeper-v0": None,
    "Sokoban-v0": None,
    "TowerOfHanoi-v0": None,
    "ConnectFour-v0": _columns,
    "KuhnPoker-v0": _bets,
    "Nim-v0": _piles,
    "TicTacToe-v0": _free_cells,
}
"""Games that are known, and how the opponent of a game for two moves."""
_LONGEST = 1000
"""Characters of a turn that a game reads."""
_MOST_MOVES = 100
"""Of the opponent in a row, refused ones included."""


@dataclasses.dataclass
class _Match:
    env: Any
    moves: Moves | None
    seat: int
    """The policy's."""
    left: int
    chances: tuple[Any, Any]
    """States of Python's `random` and of NumPy's between two calls of the game, which draws from
    them."""
    stream: random.Random = dataclasses.field(default_factory=random.Random)
    """The opponent's."""


def task(game: str, turns: int = 50) -> Task:
    """A game; its problems differ in their seed.

    The reward is TextArena's: 1 for a win, 0 for a draw, -1 for a loss, and for one player the
    share of the puzzle that was solved. A match that is cut off after `turns` earns 0.

    Args:
      game: one of `GAMES`.
      turns: the most that an episode may have.

    Raises:
      ValueError: the game is not known, or `turns` is not positive.
      ImportError: `textarena` is not installed.
    """
    if game not in GAMES:
        raise ValueError(f"game={game!r}: choose one of {', '.join(GAMES)}")
    if turns < 1:
        raise ValueError(f"turns={turns} must be 1 or more")
    if importlib.util.find_spec("textarena") is None:
        raise ImportError("the task text_arena needs textarena; pip install 'jaxrl[textarena]'")
    package = importlib.import_module("textarena")
    moves = GAMES[game]

    def begin(problem: Problem, seed: int) -> tuple[_Match, Opening]:
        chances = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        seat = seed % 2 if moves else 0
        match = _Match(package.make(f"{game}-raw"), moves, seat, turns, chances)
        match.stream.seed(f"opponent {seed}")
        with _own_chances(match):
            match.env.reset(num_players=2 if moves else 1, seed=seed)
            _answered(match)
        return match, Opening(({"role": "user", "content": _seen(match)},))

    return adapters.seeded("text_arena", game, Environment(begin, step))


def step(match: _Match, action: str) -> Reply:
    """A move in brackets, as the games want it; one without any is put into them.

    Of a long turn, the end is read: a game's patterns take the square of its length, and a number
    of thousands of digits would be an error, which voids the episode.
    """
    move = extract.spoken(action).strip()[-_LONGEST:].strip()
    match.left -= 1
    with _own_chances(match):
        over, _ = match.env.step(move if "[" in move else f"[{move}]")
        over = over or _answered(match)
    if over:
        rewards, _ = match.env.close()
        earned = float((rewards or {}).get(match.seat, 0.0))
        return Reply(reward=earned, parts={"won": float(earned > 0)}, done=True)
    message = {"role": "user", "content": _seen(match)}
    return Reply((message,), done=False) if match.left else Reply(reward=0.0, done=True)


def _answered(match: _Match) -> bool:
    """Let the opponent move until it is the policy's turn; whether the match is over."""
    for _ in range(_MOST_MOVES):
        if match.moves is None or match.env.state.current_player_id == match.seat:
            return False
        over, _ = match.env.step(match.stream.choice(match.moves(match.env)))
        if over:
            return True
    raise RuntimeError(f"the opponent found no move in {_MOST_MOVES}")


def _seen(match: _Match) -> str:
    """What the policy has not read yet, without its own words."""
    messages = match.env.state.observations[match.seat]
    match.env.state.observations[match.seat] = []
    return "\n".join(str(text) for who, text, *_ in messages if who != match.seat).strip()


@contextlib.contextmanager
def _own_chances(match: _Match) -> Iterator[None]:
    """The game's own states of what it draws from, which it shares with all else in the process."""
    process_states = random.getstate(), np.random.get_state()
    _restore(match.chances)
    try:
        yield
    finally:
        match.chances = random.getstate(), np.random.get_state()
        _restore(process_states)


def _restore(chances: tuple[Any, Any]) -> None:
    random.setstate(chances[0])
    np.random.set_state(chances[1])
