"""Grids as features against the walks of the task `text_grid`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control.environments import text_grid
from jaxrl.data import tasks
from jaxrl.data.tasks.logic.maze import MOVES

PARAMS = {"size": 4, "walls": 5, "cost": 0.25}


def shown(seen):
    """Features as the text of the task."""
    wall, walker, goal = np.moveaxis(np.asarray(seen, bool).reshape(4, 4, 3), -1, 0)
    cells = np.select([wall, walker, goal], ["#", "@", "G"], ".")
    return "\n".join(map("".join, cells))


@pytest.mark.parametrize("split", ["train", "test"])
def test_walks_are_those_of_the_task(split):
    """Same views, rewards and ends, for moves at random and for solutions."""
    task = tasks.get("text_grid", **PARAMS)
    env = text_grid.make(split, seed=3, grids=12, **PARAMS)
    problems = {p.prompt: p for p in (task.problem(split, 3, i) for i in range(12))}
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    rng, met, ends = np.random.default_rng(0), set(), set()
    for n in range(40):
        state, seen = reset(jax.random.PRNGKey(n))
        problem = problems[shown(seen)]
        met.add(problem.id)
        walk, _ = task.turns.begin(problem, 0)
        way = iter(task.turns.gold(problem, 0) if n % 2 else ())
        while True:
            move = next(way, None) or str(rng.choice(list(MOVES)))
            reply = task.turns.step(walk, move)
            out = step(jax.random.PRNGKey(0), state, jnp.int32(list(MOVES).index(move)))
            assert (out.reward, out.terminal) == (reply.reward, reply.parts["reached"])
            if reply.done:
                assert out.terminal or reply.parts["moves"] == env.horizon
                ends.add(reply.reward)
                break
            state = out.state
            assert shown(out.observation) == reply.messages[0]["content"]
    assert len(met) > 6 and ends == {1.0, -0.25}


def test_grids_of_another_size_are_refused():
    with pytest.raises(ValueError, match="split='ood'"):
        text_grid.make("ood")
    with pytest.raises(ValueError, match="grids=0"):
        text_grid.make(grids=0)
