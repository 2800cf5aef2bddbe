"""Tic-tac-toe in arrays against the game of the task `board_game`, whose text is its own."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control.environments import tic_tac_toe
from jaxrl.data import tasks
from jaxrl.data.environments.games import board_game, rules


def test_matches_are_those_of_the_task():
    """Same legality, winners and ends, for matches at random; the opponent moves as it may."""
    env = tic_tac_toe.make()
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    stream, ends, begun = random.Random(0), set(), set()
    for n in range(40):
        cells, seen = reset(jax.random.PRNGKey(n))
        own = "ox"[not np.any(cells)]  # who begins has x
        begun.add(own)
        board = rules.TIC_TAC_TOE.start(stream)
        for turn in range(5):
            other = np.flatnonzero(np.asarray(cells) == tic_tac_toe.OTHER)
            shown = np.concatenate([np.asarray(cells) == 1, np.asarray(cells) == 2])
            np.testing.assert_array_equal(seen, shown)
            text = "".join(" xo"[m if own == "x" else (0, 2, 1)[m]] for m in np.asarray(cells))
            board = board._replace(cells=text)
            assert len(other) == turn + (own == "o")
            action = stream.randrange(9)
            legal = str(action + 1) in rules.TIC_TAC_TOE.moves(board)
            out = step(jax.random.PRNGKey(100 * n + turn), cells, jnp.int32(action))
            if not legal:
                assert out.terminal and out.reward == 0
                ends.add("illegal")
                break
            after = board._replace(
                cells="".join(
                    " xo"[m if own == "x" else (0, 2, 1)[m]] for m in np.asarray(out.state)
                )
            )
            moved = rules.TIC_TAC_TOE.play(board, str(action + 1))
            changed = sum(a != b for a, b in zip(after.cells, moved.cells, strict=True))
            assert changed == bool(rules.TIC_TAC_TOE.moves(moved))  # one more, if it may
            over = not rules.TIC_TAC_TOE.moves(after)
            assert bool(out.terminal) == over
            payoff = rules.TIC_TAC_TOE.payoff(after) * (1 if own == "x" else -1)
            assert out.reward == ((1 + payoff) / 2 if over else 0)
            if over:
                ends.add(payoff)
                break
            cells, seen = out.state, out.observation
    assert begun == {"x", "o"} and {"illegal", 1.0, -1.0} <= ends


def test_in_symbols_the_policy_always_has_crosses():
    task = tasks.get("board_game", instructions=False, symbols=True, mistakes=0)
    seats = set()
    for n in range(20):
        problem = task.problem("train", 0, n)
        match, opening = task.turns.begin(problem, 0)
        said = opening.messages[-1]["content"]
        assert len(opening.messages) == 1 and said == problem.prompt
        assert said.count("x") == 0 and said.count("o") == match.seat and len(said) == 9
        seats.add(match.seat)
        at = said.index(".")
        reply = board_game.step(match, str(at + 1))
        seen = reply.messages[-1]["content"]
        assert seen[at] == "x" and seen.count("o") == match.seat + 1
        assert board_game.step(match, str(at + 1)).done  # no mistake is allowed
        assert set(seen) <= set(task.alphabet)
    assert seats == {0, 1}
    with pytest.raises(ValueError, match="symbols=True and instructions=True"):
        tasks.get("board_game", symbols=True)
