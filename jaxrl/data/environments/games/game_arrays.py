"""The games of `games` against an opponent that moves at random, as pure functions of arrays.

They are for the decode loop, in the symbols of the task `board_game`, and play its matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.data.environments import Arrays
from jaxrl.data.types import Problem

OWN, OTHER = 1, 2
"""Marks in a cell; 0 is a free one."""
BITS = 16
"""Of a draw, a whole number that decides between n moves: `draw * n >> BITS`."""
State = Any
Encode = Callable[[str], Sequence[int]]


def lines(rows: int, columns: int, length: int) -> np.ndarray:
    """Cells of all lines of a board that win, [L, length] int, row by row from 0."""
    steps = ((0, 1), (1, 0), (1, 1), (1, -1))
    line_cells = [
        [(r + i * down) * columns + c + i * right for i in range(length)]
        for down, right in steps
        for r in range(rows)
        for c in range(columns)
        if r + (length - 1) * down < rows and 0 <= c + (length - 1) * right < columns
    ]
    return np.array(line_cells)


def board(
    xp: Any, encode: Encode, begin: Callable[[Problem], State], rows: int, columns: int, length: int
) -> Arrays:
    """Tic-tac-toe, whose moves are cells, or Connect Four, whose moves are columns.

    Args:
      xp: the array namespace.
      encode: of a tokenizer of characters.
      begin: problem -> state: `cells` [rows * columns], `draws` of the opponent [D], `left`, the
        illegal moves that are left; int32.
      rows, columns: of the board; one that is not square is Connect Four's.
      length: of a line that wins.
    """
    wins, falls = lines(rows, columns, length), rows != columns
    digits = xp.asarray([encode(c)[0] for c in "123456789"[: columns if falls else None]])
    marks = xp.asarray([encode(c)[0] for c in ".xo"])
    line = xp.asarray([encode("\n")[0]])

    def legal(cells: Any) -> Any:
        return (cells[:columns] if falls else cells) == 0

    def put(cells: Any, move: Any, mark: int) -> Any:
        if falls:
            column = xp.arange(columns) == move
            free = xp.sum((cells.reshape(rows, columns) == 0) & column)
            move = (free - 1) * columns + move
        return xp.where(xp.arange(rows * columns) == move, mark, cells)

    def won(cells: Any, mark: int) -> Any:
        return xp.any(xp.all(cells[wins] == mark, axis=1))

    def step(state: Mapping[str, Any], tokens: Any, count: Any) -> tuple[Any, ...]:
        cells = state["cells"]
        move, is_legal = _named(xp, tokens, count, digits, digits, legal(cells))
        mine = put(cells, move, OWN)
        first, full = won(mine, OWN), xp.all(mine > 0)
        open_ = legal(mine)
        index = state["draws"][0] * xp.sum(open_) >> BITS
        answer = xp.argmax(xp.cumsum(open_) == index + 1)
        both = xp.where(first | full, mine, put(mine, answer, OTHER))
        second = won(both, OTHER)
        ended = first | second | xp.all(both > 0)
        earned = xp.where(first, 1.0, xp.where(second, 0.0, 0.5))
        new = {
            "cells": xp.where(is_legal, both, cells),
            "draws": xp.where(is_legal, _next(xp, state["draws"]), state["draws"]),
        }
        observation = xp.concatenate([line, marks[new["cells"]], line])
        return _after(xp, state, new, observation, is_legal, ended, earned)

    return Arrays(begin, step, _parts)


def kuhn_poker(xp: Any, encode: Encode, begin: Callable[[Problem], State]) -> Arrays:
    """Kuhn poker.

    Args:
      xp: the array namespace.
      encode: of a tokenizer of characters.
      begin: problem -> state: `cards` [2], 0 to 2, the policy's first; `history` [3], 0, or 1 for
        a pass and 2 for a bet; `seat` of the policy; `draws` and `left` as of `board`; int32.
    """
    cards, marks = (xp.asarray([encode(c)[0] for c in characters]) for characters in ("JQK", ".pb"))
    letters = xp.concatenate([cards, marks[1:]])
    line = xp.asarray([encode("\n")[0]])

    def ended(history: Any) -> Any:
        passed = (history[0] == 1) & (history[1] == 1)
        return passed | (history[0] == 2) & (history[1] > 0) | (history[2] > 0)

    def add_move(history: Any, move: Any) -> Any:
        return xp.where(xp.arange(3) == xp.sum(history > 0), move + 1, history)

    def step(state: Mapping[str, Any], tokens: Any, count: Any) -> tuple[Any, ...]:
        before = state["history"]
        move, is_legal = _named(xp, tokens, count, letters, marks[1:], xp.asarray([True, True]))
        mine = add_move(before, move)
        both = xp.where(ended(mine), mine, add_move(mine, state["draws"][0] * 2 >> BITS))
        last = xp.sum(both > 0) - 1
        bet, folds = xp.any(both == 2), both[xp.clip(last, 0, 2)] == 1
        folder = (last + state["seat"]) % 2  # 0: the policy
        higher = xp.where(state["cards"][0] > state["cards"][1], 1.0, -1.0)
        folded = xp.where(folder == 0, -0.5, 0.5)
        payoff = xp.where(bet & folds, folded, xp.where(bet, higher, higher / 2))
        new = {
            "history": xp.where(is_legal, both, before),
            "draws": xp.where(is_legal, _next(xp, state["draws"]), state["draws"]),
        }
        observation = xp.concatenate([line, cards[state["cards"][:1]], marks[new["history"]], line])
        return _after(xp, state, new, observation, is_legal, ended(both), (1 + payoff) / 2)

    return Arrays(begin, step, _parts)


def _named(xp: Any, tokens: Any, count: Any, kin: Any, moves: Any, legal: Any) -> tuple[Any, Any]:
    """The last legal move that a turn names by a character which has none of its `kin` beside it.

    Args:
      xp: the array namespace.
      tokens: [A]
      count: of them that are the turn.
      kin: [C] characters that would make a longer word or number.
      moves: [M] characters of the moves.
      legal: [M] bool.

    Returns:
      Its index, and whether there is one.
    """
    places = xp.arange(tokens.shape[0])
    spelled = (places < count) & xp.any(tokens[:, None] == kin, axis=1)
    beside = xp.concatenate([xp.zeros(1, bool), spelled, xp.zeros(1, bool)])
    alone = spelled & ~beside[:-2] & ~beside[2:]
    matches = alone[:, None] & (tokens[:, None] == moves) & legal
    last = xp.argmax(xp.where(xp.any(matches, axis=1), places + 1, 0))
    return xp.argmax(matches[last]), xp.any(matches)


def _next(xp: Any, draws: Any) -> Any:
    return xp.concatenate([draws[1:], draws[:1]])


def _after(
    xp: Any, state: Mapping[str, Any], new: Mapping[str, Any], observation: Any, is_legal: Any,
    ended: Any, earned: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """What a step gives; an illegal turn leaves the match as it was, or loses it."""
    left = state["left"] - ~is_legal
    over = xp.where(is_legal, ended, left < 0)
    reward = xp.where(is_legal & ended, earned, 0.0)
    marks = {"illegal": (state["illegal"] == 1) | ~is_legal, "over": over, "won": reward > 0.5}
    flags = {name: xp.asarray(value, dtype="int32") for name, value in marks.items()}
    after = {**state, **new, "left": left, **flags}
    return after, xp.asarray(observation, dtype="int32"), observation.shape[0], reward, over


def _parts(state: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an episode so far, as its replies have given them."""
    won = {"won": float(state["won"])} if state["over"] else {}
    return won | ({"illegal": 1.0} if state["illegal"] else {})
