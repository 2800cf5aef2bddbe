"""Tic-tac-toe, Connect Four or Kuhn poker, one move a turn, against an opponent or oneself."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.data.environments import Arrays, Environment, Message, Opening, Reply, unscored
from jaxrl.data.environments.games import game_arrays, rules
from jaxrl.data.environments.games.rules import Game, State
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_OPPONENTS = ("random", "strong", "self")
_MOST_MOVES = 21
"""Of a player in a match of any of the games."""
_ALPHABETS = {
    "tic_tac_toe": "xo.123456789\n",
    "connect_four": "xo.1234567\n",
    "kuhn_poker": "JQKpb.\n",
}
_Ask = Callable[[str, tuple[str, ...]], str]


@dataclasses.dataclass
class _Match:
    game: Game
    state: State
    seat: int
    """The policy's."""
    name: str
    opponent: str | _Ask
    stream: random.Random
    draws: list[int]
    """What decides the moves of an opponent that moves at random, first the next."""
    left: int
    """Illegal moves that are left."""
    symbols: bool = False
    said: dict[int, list[Message]] = dataclasses.field(default_factory=dict)
    """Of a match against oneself: the conversation of each player so far."""


def task(
    game: str = "tic_tac_toe", opponent: str = "random", ood_opponent: str = "strong",
    mistakes: int = 1, instructions: bool = True, symbols: bool = False, think: bool = False,
) -> Task:  # fmt: skip
    """A match for each problem; in half of them the opponent moves first.

    The reward is 1 for a win, 0.5 for a draw and 0 for a loss, and between in poker by what was
    won. The opponent's chances come from the problem, and are the same for all of a group.

    Against itself the policy plays both players, agents 0 and 1 in the order of their first moves,
    each in a conversation of its own and with the reward of its own side (self-play, Silver et al.
    2017; of language models, Liu et al. 2025, "SPIRAL"). The advantage `agent_advantages` compares
    each with the same player of the group's other matches.

    Args:
      game: tic_tac_toe, connect_four or kuhn_poker.
      opponent: of train and test: random, or strong, which plays perfectly but for Connect Four,
        where it wins or stops a win where it can; or self, which is the policy in train, and
        random in test.
      ood_opponent: of the ood split.
      mistakes: illegal moves that an episode may have; one more loses.
      instructions: begin with a message that says what to do.
      symbols: for a small model from nothing: what is seen are the cells, such as `.x..o....` for
        tic-tac-toe, where x is the policy's own mark, or in poker the card and what was said, such
        as `Kpb.`; a move is one character. Against a random opponent such a match can be played
        within the decode loop.
      think: solutions, which only tic-tac-toe has, have a thought before each move, see `thought`.
        They are perfect play, which wins or draws.
    """
    if game not in rules.GAMES:
        raise ValueError(f"game={game!r}: choose one of {', '.join(rules.GAMES)}")
    for opponent_name in (opponent, ood_opponent):
        if opponent_name not in _OPPONENTS:
            raise ValueError(f"opponent={opponent_name!r}: choose one of {', '.join(_OPPONENTS)}")
    if mistakes < 0:
        raise ValueError(f"mistakes={mistakes} must be 0 or more")
    if symbols and instructions:
        raise ValueError(
            "symbols=True and instructions=True: a game in symbols has no words; turn one off"
        )
    if ood_opponent == "self":
        raise ValueError("ood_opponent='self': held-out matches need another; choose strong")
    if think and game != "tic_tac_toe":
        raise ValueError(f"think=True with game={game!r}: only tic_tac_toe has solutions")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("board_game", split, seed, index)
        number = generate.draw(
            lambda stream: stream.randrange(1 << 30), key=str, stream=stream, split=split
        )
        against = ood_opponent if split == "ood" else opponent
        against = "random" if (split, against) == ("test", "self") else against
        match = _begun(game, against, number, mistakes, symbols)
        prompt = _seen(match) if symbols else match.game.seen(match.state, match.seat)
        return generate.user_problem(
            "board_game", f"{game}/{number}", prompt, number, opponent=against
        )

    def begin(problem: Problem, seed: int) -> tuple[_Match, Opening]:
        opponent = problem.metadata["opponent"]
        return open_match(_begun(game, opponent, problem.answer, mistakes, symbols))

    def open_match(match: _Match) -> tuple[_Match, Opening]:
        lead = {"role": "system", "content": f"{match.game.rules} Answer with your move."}
        message = {"role": "user", "content": _seen(match)}
        first = [lead] if instructions else []
        if match.opponent == "self":
            match.said = {0: [*first, message], 1: first}
        return match, Opening((*first, message))

    def against(seat: int, ask: _Ask) -> Environment:
        def begin_with(problem: Problem, seed: int) -> tuple[_Match, Opening]:
            return open_match(_begun(game, ask, problem.answer, mistakes, symbols, seat=2 - seat))

        return Environment(begin_with, step)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        match, _ = begin(problem, seed)
        actions = []
        while match.game.moves(match.state):
            why, move = thought(match.state)
            actions.append(why * think + move)
            match.state = match.game.play(match.state, move)
            if match.opponent == "self":
                match.seat = match.game.player(match.state)
            else:
                _answered(match)
        return tuple(actions)

    task = Task(
        name="board_game",
        problem=problem,
        reward=unscored,
        alphabet=_ALPHABETS[game] + "wb-" * think if symbols else generate.ASCII,
        description=__doc__,
        pure=True,
        turns=Environment(
            begin,
            step,
            gold=gold if game == "tic_tac_toe" else None,
            arrays=_in_arrays(game, mistakes) if symbols else None,
            agents=2 if opponent == "self" else 1,
            against=against,
        ),
    )
    return task


def _begun(
    name: str, opponent: str | _Ask, number: int, mistakes: int, symbols: bool, seat: int = -1
) -> _Match:
    """A match in which it is the policy's turn; its seat is drawn where it is not 0 or 1."""
    game, stream = rules.GAMES[name], generate.rng("board_game", number)
    random_seat = stream.randrange(2)
    seat = random_seat if seat < 0 else seat
    seat = 0 if opponent == "self" else seat
    start = game.start(stream)
    draws = [stream.getrandbits(game_arrays.BITS) for _ in range(_MOST_MOVES)]
    match = _Match(game, start, seat, name, opponent, stream, draws, mistakes, symbols)
    if opponent != "self":
        _answered(match)
    return match


@functools.cache
def _in_arrays(name: str, mistakes: int) -> Callable[..., Arrays]:
    """The matches in symbols for the decode loop; the same function for the same arguments."""

    def begin(problem: Problem) -> dict[str, np.ndarray]:
        if (against := problem.metadata["opponent"]) != "random":
            raise ValueError(
                f"opponent={against!r}: the decode loop has one that moves at random; choose "
                "random, or rollout.on_device=False"
            )
        match = _begun(name, against, problem.answer, mistakes, True)
        seat, state = match.seat, match.state
        if name == "kuhn_poker":
            history = [1 + "pb".index(move) for move in state.history]
            position = {
                "cards": [state.cards[seat], state.cards[1 - seat]],
                "history": history + [0] * (3 - len(history)),
                "seat": seat,
            }
        else:
            position = {"cells": [(" xo", " ox")[seat].index(c) for c in state.cells]}
        draws = [*match.draws, *[0] * (_MOST_MOVES - len(match.draws))]
        zeros = dict.fromkeys(("illegal", "over", "won"), 0)
        state = {**position, "draws": draws, "left": mistakes, **zeros}
        return {key: np.array(value, np.int32) for key, value in state.items()}

    def make(xp: Any, encode: Callable[[str], Any]) -> Arrays:
        if name == "kuhn_poker":
            return game_arrays.kuhn_poker(xp, encode, begin)
        sizes = (3, 3, 3) if name == "tic_tac_toe" else (6, 7, 4)
        return game_arrays.board(xp, encode, begin, *sizes)

    return make


def _seen(match: _Match) -> str:
    if match.symbols and match.name == "kuhn_poker":
        return "JQK"[match.state.cards[match.seat]] + match.state.history.ljust(3, ".")
    if match.symbols:
        marks = ("xo", "ox")[match.seat]
        return match.state.cells.translate(str.maketrans(f"{marks} ", "xo."))
    moves = ", ".join(match.game.moves(match.state))
    return f"{match.game.seen(match.state, match.seat)}\nmoves: {moves}"


def _answered(match: _Match) -> None:
    """Let the opponent move until it is the policy's turn or the game is over."""
    game = match.game
    while (moves := game.moves(match.state)) and game.player(match.state) != match.seat:
        if not isinstance(match.opponent, str):
            move = _asked(match, match.opponent, moves)
        elif match.opponent == "strong" and match.name == "kuhn_poker":
            chances = rules.equilibrium(match.state)
            (move,) = match.stream.choices(list(chances), list(chances.values()))
        elif match.opponent == "strong":
            best = rules.perfect if match.name == "tic_tac_toe" else rules.ahead
            move = match.stream.choice(best(match.state))
        else:
            move = moves[match.draws.pop(0) * len(moves) >> game_arrays.BITS]
        match.state = game.play(match.state, move)


def _asked(match: _Match, ask: _Ask, moves: tuple[str, ...]) -> str:
    """The move of the other player, who is asked until it is one; empty without moves."""
    view = match.game.seen(match.state, 1 - match.seat)
    while True:
        named_moves = _named(match, ask(view, moves), moves)
        if named_moves or not moves:
            return named_moves[-1] if named_moves else ""


def _named(match: _Match, text: str, moves: tuple[str, ...]) -> list[str]:
    """The moves among the words of a text, in symbols by their first characters."""
    moves_by_word = {move[0] if match.symbols else move: move for move in moves}
    words = re.findall(r"[a-z]+|[0-9]+", text.lower())
    return [moves_by_word[word] for word in words if word in moves_by_word]


def thought(board: rules.Board) -> tuple[str, str]:
    """What is at stake in tic-tac-toe, and a best move for it.

    The thought is `w` where the move wins, `b` where it stops the other from winning next, else
    `-`.
    """
    best = rules.perfect(board)
    wins = [move for move in best if rules.winner(rules.TIC_TAC_TOE.play(board, move))]
    if wins:
        return "w", wins[0]
    return "b" if rules.threatened(board) else "-", best[0]


def step(match: _Match, action: str) -> Reply:
    """A move: the last word of the turn that is one."""
    return _of_both(match, action) if match.opponent == "self" else _of_one(match, action)


def _of_both(match: _Match, action: str) -> Reply:
    """A move of a match against oneself; the next turn is then the other player's."""
    seat, conversation = match.seat, match.said[match.seat]
    conversation.append({"role": "assistant", "content": action})
    named_moves = _named(match, extract.spoken(action), match.game.moves(match.state))
    if not named_moves:
        match.left -= 1
        if match.left < 0:
            moved = any(message["role"] == "assistant" for message in match.said[1 - seat])
            won = {1 - seat: 1.0} if moved else {}
            return Reply(reward=0.0, parts={"illegal": 1.0}, done=True, others=won)
        reply = _refused(match)
        conversation += reply.messages
        return reply
    match.state = match.game.play(match.state, named_moves[-1])
    if not match.game.moves(match.state):
        share = (1 + match.game.payoff(match.state) * (1 if seat == 0 else -1)) / 2
        return Reply(reward=share, done=True, others={1 - seat: 1 - share})
    match.seat = match.game.player(match.state)
    other_conversation = match.said[match.seat]
    other_conversation.append({"role": "user", "content": _seen(match)})
    return Reply(opening=Opening(tuple(other_conversation), agent=match.seat))


def _of_one(match: _Match, action: str) -> Reply:
    named_moves = _named(match, extract.spoken(action), match.game.moves(match.state))
    if not named_moves:
        match.left -= 1
        if match.left < 0:
            _ended(match)
            return Reply(reward=0.0, parts={"won": 0.0, "illegal": 1.0}, done=True)
        return _refused(match)
    match.state = match.game.play(match.state, named_moves[-1])
    _answered(match)
    if match.game.moves(match.state):
        return Reply(({"role": "user", "content": _seen(match)},))
    _ended(match)
    payoff = match.game.payoff(match.state) * (1 if match.seat == 0 else -1)
    return Reply(reward=(1 + payoff) / 2, parts={"won": float(payoff > 0)}, done=True)


def _refused(match: _Match) -> Reply:
    """The reply to what is no legal move: the player is asked again."""
    error = "" if match.symbols else "that is no legal move\n"
    return Reply(({"role": "user", "content": f"{error}{_seen(match)}"},), parts={"illegal": 1.0})


def _ended(match: _Match) -> None:
    """Show the end to a player who is no program."""
    if not isinstance(match.opponent, str):
        _asked(match, match.opponent, ())
