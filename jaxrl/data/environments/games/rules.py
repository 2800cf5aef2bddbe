"""Board and card games as pure functions: states are tuples, and a move gives a new one."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

State = Any


class Game(NamedTuple):
    """A game of two players, 0 and 1, who take turns."""

    start: Callable[[random.Random], State]
    player: Callable[[State], int]
    """Whose turn it is."""
    moves: Callable[[State], tuple[str, ...]]
    """Legal ones, in a fixed order; empty where the game is over."""
    play: Callable[[State, str], State]
    """After a legal move."""
    payoff: Callable[[State], float]
    """Of player 0, from -1 to 1, where the game is over."""
    seen: Callable[[State, int], str]
    """What a player may see."""
    rules: str


class Board(NamedTuple):
    """A position; a cell is ` `, `x` (player 0) or `o`."""

    cells: str
    columns: int
    row: int
    """How many in a row win."""


def _lines(board: Board) -> list[str]:
    """Contents of all rows, columns and diagonals."""
    rows = len(board.cells) // board.columns
    grid = [board.cells[r * board.columns : (r + 1) * board.columns] for r in range(rows)]
    lines = [*grid, *("".join(column) for column in zip(*grid, strict=True))]
    for d in range(-rows, board.columns):
        lines.append("".join(grid[r][r + d] for r in range(rows) if 0 <= r + d < board.columns))
        back = ((r, board.columns - 1 - r - d) for r in range(rows))
        lines.append("".join(grid[r][c] for r, c in back if 0 <= c < board.columns))
    return lines


def winner(board: Board) -> str:
    """`x`, `o`, or empty before a player has won."""
    return next((p for p in "xo" if any(p * board.row in line for line in _lines(board))), "")


def _board_player(board: Board) -> int:
    return (len(board.cells) - board.cells.count(" ")) % 2


def _board_payoff(board: Board) -> float:
    return {"x": 1.0, "o": -1.0, "": 0.0}[winner(board)]


def _shown(board: Board) -> str:
    rows = [board.cells[i : i + board.columns] for i in range(0, len(board.cells), board.columns)]
    return "\n".join(rows).replace(" ", ".")


def _put(board: Board, at: int, mark: str = "") -> Board:
    mark = mark or "xo"[_board_player(board)]
    return board._replace(cells=board.cells[:at] + mark + board.cells[at + 1 :])


def _free(board: Board) -> tuple[str, ...]:
    if winner(board):
        return ()
    return tuple(str(i + 1) for i, cell in enumerate(board.cells) if cell == " ")


def _open_columns(board: Board) -> tuple[str, ...]:
    if winner(board):
        return ()
    return tuple(str(c + 1) for c in range(board.columns) if board.cells[c] == " ")


def _drop(board: Board, move: str, mark: str = "") -> Board:
    column = range(int(move) - 1, len(board.cells), board.columns)
    return _put(board, max(at for at in column if board.cells[at] == " "), mark)


def _board_seen(board: Board, player: int) -> str:
    return f"you are {'xo'[player]}\n{_shown(board)}"


TIC_TAC_TOE = Game(
    lambda stream: Board(" " * 9, 3, 3),
    _board_player,
    _free,
    lambda board, move: _put(board, int(move) - 1),
    _board_payoff,
    _board_seen,
    "Tic-tac-toe: three in a row win. Cells are numbered 1 to 9, row by row.",
)

CONNECT_FOUR = Game(
    lambda stream: Board(" " * 42, 7, 4),
    _board_player,
    _open_columns,
    _drop,
    _board_payoff,
    _board_seen,
    "Connect Four: four in a row win. Columns are numbered 1 to 7; a piece falls down.",
)


class Hands(NamedTuple):
    """A game of Kuhn poker."""

    cards: tuple[int, int]
    """0 to 2, of each player."""
    history: str = ""
    """`p` for pass and `b` for bet."""


def _kuhn_moves(hands: Hands) -> tuple[str, ...]:
    return ("pass", "bet") if hands.history in ("", "p", "b", "pb") else ()


def _kuhn_payoff(hands: Hands) -> float:
    """In units of the largest stake, 2."""
    won = 1.0 if hands.cards[0] > hands.cards[1] else -1.0
    if hands.history in ("bp", "pbp"):  # a player folded
        return 0.5 if hands.history == "bp" else -0.5
    return won if hands.history.endswith("bb") else won / 2


def _kuhn_seen(hands: Hands, player: int) -> str:
    history = ", ".join({"p": "pass", "b": "bet"}[move] for move in hands.history) or "nothing"
    return f"your card is {'JQK'[hands.cards[player]]}; so far: {history}"


KUHN_POKER = Game(
    lambda stream: Hands(tuple(stream.sample(range(3), 2))),
    lambda hands: len(hands.history) % 2,
    _kuhn_moves,
    lambda hands, move: hands._replace(history=hands.history + move[0]),
    _kuhn_payoff,
    _kuhn_seen,
    "Kuhn poker: cards J, Q and K, one each, and a stake of 1 each. Pass or bet 1 more; who passes "
    "on a bet gives up, else the higher card wins.",
)

GAMES = {"tic_tac_toe": TIC_TAC_TOE, "connect_four": CONNECT_FOUR, "kuhn_poker": KUHN_POKER}


@functools.cache
def _value(cells: str, columns: int, row: int) -> float:
    """Of player 0 under best play of both, for boards small enough to search whole."""
    board = Board(cells, columns, row)
    moves = _free(board)
    if not moves:
        return _board_payoff(board)
    values = [_value(*_put(board, int(move) - 1)) for move in moves]
    return max(values) if _board_player(board) == 0 else min(values)


def perfect(state: Board) -> tuple[str, ...]:
    """The best moves of tic-tac-toe."""
    moves, sign = _free(state), 1 if _board_player(state) == 0 else -1
    values = [sign * _value(*_put(state, int(move) - 1)) for move in moves]
    return tuple(m for m, v in zip(moves, values, strict=True) if v == max(values))


def threatened(state: Board) -> bool:
    """Whether the player whose turn it is not could win tic-tac-toe with a move."""
    mark = "xo"[1 - _board_player(state)]
    return any(winner(_put(state, int(move) - 1, mark)) for move in _free(state))


def equilibrium(hands: Hands) -> dict[str, float]:
    """Chance of each move in the equilibrium of Kuhn poker in which player 0 never bets first
    (Kuhn 1950). Player 0 loses 1/18 of a stake on average.
    """
    card = hands.cards[len(hands.history) % 2]
    chance = {
        "": (0.0, 0.0, 0.0),
        "p": (1 / 3, 0.0, 1.0),
        "b": (0.0, 1 / 3, 1.0),
        "pb": (0.0, 1 / 3, 1.0),
    }[hands.history][card]
    return {"pass": 1 - chance, "bet": chance}


def ahead(state: Board) -> tuple[str, ...]:
    """Moves of Connect Four that win at once, else those that stop a win, else all."""
    moves = _open_columns(state)
    wins = [move for move in moves if winner(_drop(state, move))]
    mark = "xo"[1 - _board_player(state)]
    stops = [move for move in moves if winner(_drop(state, move, mark))]
    return tuple(wins or stops or moves)
