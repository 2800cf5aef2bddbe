"""Tic-tac-toe against an opponent that moves at random, who begins in half of the matches."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.data.environments.games.game_arrays import OTHER, OWN, lines

_LINES = lines(3, 3, 3)


def make() -> Environment:
    """The game of the task `board_game`, with the same rewards.

    An action is a cell, 0 to 8. A win earns 1, a draw 0.5, a loss nothing; neither does a cell that
    is not free, which ends the match. Seen are the cells with an own mark and those with the
    other's, [18].
    """

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        coin, move = jax.random.split(key)
        cells = jnp.zeros(9, jnp.int32)
        cells = jnp.where(jax.random.bernoulli(coin), answered(move, cells), cells)
        return cells, observed(cells)

    def step(key: jax.Array, cells: jax.Array, action: jax.Array) -> Step:
        legal = cells[action] == 0
        moved = cells.at[action].set(OWN)
        won = has_won(moved, OWN)
        after = jnp.where(won | jnp.all(moved > 0), moved, answered(key, moved))
        lost = has_won(after, OTHER)
        over = won | lost | jnp.all(after > 0)
        earned = jnp.where(won, 1.0, jnp.where(lost | ~over, 0.0, 0.5))
        cells = jnp.where(legal, after, cells)
        return Step(cells, observed(cells), jnp.where(legal, earned, 0.0), over | ~legal)

    return Environment("tic_tac_toe", Space(18, 9, discrete=True), 5, reset, step)


def answered(key: jax.Array, cells: jax.Array) -> jax.Array:
    """The cells [9] after a move of the opponent; one of them has to be free."""
    chosen = jax.random.categorical(key, jnp.where(cells == 0, 0.0, -jnp.inf))
    return cells.at[chosen].set(OTHER)


def has_won(cells: jax.Array, mark: int) -> jax.Array:
    """Bool: whether a player has three in a row."""
    return jnp.any(jnp.all(cells[_LINES] == mark, axis=1))


def observed(cells: jax.Array) -> jax.Array:
    """What is seen, [18] float32."""
    return jnp.concatenate([cells == OWN, cells == OTHER]).astype(jnp.float32)
