"""Environments against Gymnasium's and the task of games, wrappers and rollouts by what they
promise."""

from __future__ import annotations

import functools
import importlib
import random
import re
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control import environments, replay, rollout, wrappers
from jaxrl.control.environment import Step, begin, play, random_action
from jaxrl.control.environments import cartpole, maze, pendulum, point_mass, text_grid, tic_tac_toe
from jaxrl.data import tasks
from jaxrl.data.environments.games import board_game, rules
from jaxrl.data.offline import transitions
from jaxrl.data.tasks.logic.maze import MOVES

KEY = jax.random.PRNGKey(0)


@pytest.mark.extra
@pytest.mark.exact("dynamics of the classic environments equal Gymnasium's to 1e-3")
@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_dynamics_are_gymnasiums(name):
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make(name).unwrapped
    theirs.reset(seed=0)
    ours = pendulum.make() if name == "Pendulum-v1" else cartpole.make()
    state = jnp.array([2.0, -0.5]) if name == "Pendulum-v1" else jnp.array([0.1, 0.2, -0.05, 0.3])
    theirs.state = np.array(state)
    step = jax.jit(ours.step)
    for i in range(30):
        if ours.space.discrete:
            action = given = (i // 3) % 2
        else:
            action = np.array([np.sin(i)], np.float32)
            given = 2.0 * action
        expected = theirs.step(given)
        out = step(KEY, state, jnp.asarray(action))
        np.testing.assert_allclose(out.observation, expected[0], rtol=1e-3, atol=1e-3)
        assert float(out.reward) == pytest.approx(float(expected[1]), rel=1e-3, abs=1e-3)
        assert bool(out.terminal) == bool(expected[2])
        if expected[2]:
            break
        state = out.state


@pytest.mark.broad
def test_a_walk_never_enters_a_wall_and_the_compass_leads_to_the_goal():
    for layout, rows in maze.LAYOUTS.items():
        env = maze.make(layout)
        goal = next((r, row.index("G")) for r, row in enumerate(rows) if "G" in row)
        table = jnp.asarray(maze.compass(layout, goal))

        def follow(key, params, seen, table=table):
            cell = jnp.round((seen + 1) * (len(table) - 1) / 2).astype(int)
            return table[cell[0], cell[1]]

        out = jax.jit(lambda k, e=env, f=follow: rollout.evaluate(e, f, None, k, episodes=8))(KEY)
        np.testing.assert_array_equal(out.returns, 1.0)
        assert np.all(out.lengths < env.horizon)
        walk = lambda k, p, o: random_action(k, env.space)  # noqa: B023, E731
        seen = rollout.gather(env, walk, None, KEY, steps=320).observations
        cells = np.round((seen + 1) * (len(rows) - 1) / 2).astype(int)
        assert all(rows[r][c] != "#" for r, c in cells)


def test_an_episode_is_cut_off_at_the_horizon_and_the_next_begins():
    env = point_mass.make(horizon=4)
    walk = lambda k, p, o: random_action(k, env.space)  # noqa: E731
    data = rollout.gather(env, walk, None, KEY, steps=64, worlds=4)
    assert [e.stop - e.start for e in transitions.episodes(data)] == [4] * 16
    assert not data.terminals.any()
    for e in transitions.episodes(data):
        np.testing.assert_array_equal(data.next_observations[e][:-1], data.observations[e][1:])


def test_evaluation_counts_until_the_first_end():
    env = cartpole.make(horizon=100)
    left = lambda k, p, o: jnp.asarray(0)  # noqa: E731
    out = rollout.evaluate(env, left, None, KEY, episodes=4)
    assert np.all(out.lengths < 15)
    np.testing.assert_array_equal(out.returns, out.lengths)


def test_delay_holds_actions_back():
    env, late = point_mass.make(), wrappers.delay(point_mass.make(), 2)
    actions = jax.random.uniform(KEY, (6, 2), minval=-1, maxval=1)
    plain, _ = env.reset(KEY)
    held, _ = late.reset(KEY)
    shifted = jnp.concatenate([jnp.zeros((2, 2)), actions])
    for i in range(6):
        a, b = env.step(KEY, plain, shifted[i]), late.step(KEY, held, actions[i])
        np.testing.assert_allclose(a.observation, b.observation)
        plain, held = a.state, b.state


@pytest.mark.broad
def test_disturbance_noise_and_constraint():
    env = point_mass.make()
    windy = wrappers.disturbance(env, 0.3)
    state, _ = jax.vmap(windy.reset)(jax.random.split(KEY, 2000))
    blow = jax.jit(jax.vmap(windy.step))
    for i in range(3):
        keys = jax.random.split(jax.random.fold_in(KEY, i + 1), 2000)
        state = blow(keys, state, jnp.zeros((2000, 2))).state
    assert float(jnp.std(state[1])) == pytest.approx(0.3, rel=0.1)  # stationary

    noisy = wrappers.observation_noise(env, 0.1)
    (state, seen), (_, exact) = noisy.reset(KEY), env.reset(KEY)
    assert 0 < float(jnp.abs(seen - exact).max()) < 0.5
    np.testing.assert_array_equal(state, exact)

    outside = lambda seen, action: jnp.abs(seen[0]) > 0.5  # noqa: E731
    walk = lambda k, p, o: jnp.ones(2)  # noqa: E731
    free = rollout.evaluate(wrappers.constraint(env, outside), walk, None, KEY, episodes=8)
    assert np.all(free.lengths == 50) and np.all(free.costs > 5)
    fatal = wrappers.constraint(env, outside, fatal=True)
    short = rollout.evaluate(fatal, walk, None, KEY, episodes=8)
    np.testing.assert_array_equal(short.costs, 1.0)
    assert np.all(short.lengths < 50)


def test_history_shows_what_happened():
    env = point_mass.make()
    sees = wrappers.history(env, 3, target=10.0)
    world, rewards, seen = begin(sees, KEY), [], []
    for i in range(5):
        seen.append(world.observation.observations[-1])
        world, step = play(sees, jax.random.fold_in(KEY, i), world, jnp.full(2, 0.1 * i))
        rewards.append(float(step.rewards))
    now = world.observation
    np.testing.assert_array_equal(now.clock, [3, 4, 5])
    np.testing.assert_allclose(now.actions, [[0.3, 0.3], [0.4, 0.4], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(now.observations[:2], seen[3:])
    assert float(now.returns_to_go[-1]) == pytest.approx(10.0 - sum(rewards), rel=1e-5)


def test_the_ring_keeps_the_newest():
    env = point_mass.make()
    example = jax.eval_shape(lambda: play(env, KEY, begin(env, KEY), jnp.zeros(2))[1])
    ring = replay.empty(example, 6)
    for i in range(5):
        step = jax.tree.map(lambda x, i=i: jnp.full((2, *x.shape), i, x.dtype), example)
        ring = replay.add(ring, step)
    assert sorted(ring.data.rewards.tolist()) == [2, 2, 3, 3, 4, 4]
    drawn = replay.sample(KEY, ring, 64).rewards
    assert set(np.unique(drawn)) == {2, 3, 4}
    with pytest.raises(ValueError, match="multiple of 4"):
        replay.add(ring, jax.tree.map(lambda x: jnp.zeros((4, *x.shape), x.dtype), example))


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gymnax/CartPole-v1", "gymnax/Pendulum-v1", "brax/fast"])
def test_environments_of_others(name):
    pytest.importorskip(name.split("/")[0])
    env = environments.get(name)
    walk = lambda k, p, o: random_action(k, env.space)  # noqa: E731
    data = rollout.gather(env, walk, None, KEY, steps=256, worlds=4)
    assert data.observations.shape == (256, env.space.observation)
    if name == "gymnax/CartPole-v1":
        assert env.horizon == 500 and data.terminals.sum() > 0


ADAPTED = {
    "playground/CartpoleBalance": 5,
    "xminigrid/MiniGrid-DoorKey-5x5": 7 * 7 * (13 + 12),
}


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ADAPTED))
def test_an_adapter_gives_what_the_package_steps(name):
    """The package's own reset and step, with the same keys and actions, for 50 steps."""
    package, _, inner = name.partition("/")
    module = pytest.importorskip({"playground": "mujoco_playground"}.get(package, package))
    ours = environments.get(name)
    assert ours.space.observation == ADAPTED[name]
    if package == "playground":
        registry = importlib.import_module("mujoco_playground.registry")
        theirs = registry.load(inner, config_overrides={"impl": "jax"})
        reset, step = theirs.reset, theirs.step
        read = lambda s: (s.obs, s.reward, s.done)  # noqa: E731
    else:
        theirs, parameters = module.make(inner)
        assert ours.horizon == parameters.max_steps
        reset = functools.partial(theirs.reset, parameters)
        step = functools.partial(theirs.step, parameters)

        def read(moment):
            tiles = np.asarray(moment.observation)
            seen = np.concatenate([np.eye(13)[tiles[..., 0]], np.eye(12)[tiles[..., 1]]], -1)
            return seen.ravel(), moment.reward, moment.discount == 0

    state, observation = jax.jit(ours.reset)(KEY)
    other = jax.jit(reset)(KEY)
    np.testing.assert_array_equal(observation, read(other)[0])
    ours_step, their_step = jax.jit(ours.step), jax.jit(step)
    for i in range(50):
        action = random_action(jax.random.fold_in(KEY, i), ours.space)
        out = ours_step(KEY, state, action)
        other = their_step(other, action)
        for a, b in zip((out.observation, out.reward, out.terminal), read(other), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
        state = out.state
    walk = lambda k, p, o: random_action(k, ours.space)  # noqa: E731
    data = rollout.gather(ours, walk, None, KEY, steps=64, worlds=2)
    assert data.observations.shape == (64, ADAPTED[name])
    with pytest.raises(ValueError, match="did you mean"):
        environments.get(name[:-1])


@pytest.mark.parametrize(
    "name,module,package",
    [
        ("playground/CartpoleBalance", "mujoco_playground", "playground"),
        ("xminigrid/MiniGrid-Empty-5x5", "xminigrid", "xminigrid"),
        ("brax/fast", "brax", "'jaxrl[control]'"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_remedy(
    name, module, package, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"pip install {package}")):
        environments.get(name)


def test_a_parameter_that_playground_does_not_have_is_named(monkeypatch):
    def load(name, config, config_overrides):
        raise KeyError('Key "spede" does not exist and cannot be set')

    registry = types.SimpleNamespace(
        ALL_ENVS=("Reach",), get_default_config=lambda name: {"speed": 1}, load=load
    )
    package = types.SimpleNamespace(registry=registry)
    monkeypatch.setitem(sys.modules, "mujoco_playground", package)
    with pytest.raises(ValueError, match=r'Reach with .*"spede".*choose.*speed'):
        environments.get("playground/Reach", spede=2)


class _Limits(NamedTuple):
    """Parameters as gymnax has them."""

    max_steps_in_episode: int = 4


class _Walk:
    """An environment as gymnax has them: over at 3, and its time limit is seen alone."""

    def __init__(self):
        self.calls = 0

    def action_space(self, parameters):
        return types.SimpleNamespace(n=2)

    def _seen(self, state, parameters):
        position, time = state
        return jnp.array([position, time / parameters.max_steps_in_episode])

    def reset_env(self, key, parameters):
        state = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        return self._seen(state, parameters), state

    def step_env(self, key, state, action, parameters):
        self.calls += 1
        state = state[0] + action, state[1] + 1
        return self._seen(state, parameters), state, 1.0, state[0] >= 3, {}


@pytest.fixture
def walk(monkeypatch):
    """The environment that `gymnax/Walk` wraps."""
    made = _Walk()
    fake = types.SimpleNamespace(make=lambda name: (made, _Limits()), registered_envs=["Walk"])
    monkeypatch.setitem(sys.modules, "gymnax", fake)
    return made


def test_the_time_limit_of_gymnax_is_the_horizon_and_no_terminal(walk):
    env = environments.get("gymnax/Walk")
    assert env.horizon == 4
    for action, length, terminal in ((0, 4, 0.0), (1, 3, 1.0)):
        same = lambda k, p, o, action=action: jnp.asarray(action)  # noqa: E731
        data = rollout.gather(env, same, None, KEY, steps=24, worlds=2)
        assert {e.stop - e.start for e in transitions.episodes(data)} == {length}
        np.testing.assert_array_equal(data.terminals, data.ends * terminal)
        np.testing.assert_allclose(data.observations[:length, 1], np.arange(length) / 4)


def test_a_step_of_gymnax_is_computed_once(walk):
    env = environments.get("gymnax/Walk")
    env.step(KEY, env.reset(KEY)[0], jnp.asarray(1))
    assert walk.calls == 1


@pytest.mark.extra
def test_pictures_of_gymnax_are_its_numbers_in_bytes():
    pytest.importorskip("gymnax")
    numbers, pictures = (
        environments.get("gymnax/Breakout-MinAtar", pictures=kind) for kind in (False, True)
    )
    assert (numbers.space.shape, pictures.space.shape) == ((), (10, 10, 4))
    (state, as_numbers), (_, as_bytes) = (env.reset(KEY) for env in (numbers, pictures))
    after = [env.step(KEY, state, 1).observation for env in (numbers, pictures)]
    for row, picture in ((as_numbers, as_bytes), after):
        assert picture.dtype == np.uint8 and picture.shape == (400,) and np.any(picture)
        np.testing.assert_array_equal(picture, 255 * row)
    with pytest.raises(ValueError, match=r"env_args.pictures=True.*leave pictures out"):
        environments.get("gymnax/CartPole-v1", pictures=True)


@pytest.mark.sample(2)
@pytest.mark.extra
@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "MountainCarContinuous-v0", "Catch-bsuite", "DiscountingChain-bsuite"],
)
def test_episodes_of_gymnax_are_those_without_its_time_limit(name):
    """Against a second step whose parameters have no limit, which tells the terminals apart."""
    gymnax = pytest.importorskip("gymnax")
    theirs, parameters = gymnax.make(name)
    endless = parameters.replace(max_steps_in_episode=2**30)
    ours = environments.get(f"gymnax/{name}")

    def twice(key, state, action):
        seen, after, reward, *_ = theirs.step_env(key, state, action, parameters)
        terminal = theirs.step_env(key, state, action, endless)[3]
        return Step(after, jnp.ravel(seen).astype(jnp.float32), jnp.float32(reward), terminal)

    walk = lambda k, p, o: random_action(k, ours.space)  # noqa: E731
    got, wanted = (
        rollout.gather(e, walk, None, KEY, steps=4 * (ours.horizon + 8), worlds=4)
        for e in (ours, ours._replace(step=twice))
    )
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    assert got.ends.sum() > 4


@pytest.mark.extra
@pytest.mark.slow
def test_a_full_episode_of_gymnax_ends_without_a_terminal():
    pytest.importorskip("gymnax")
    env = environments.get("gymnax/Pendulum-v1")
    walk = lambda k, p, o: random_action(k, env.space)  # noqa: E731
    data = rollout.gather(env, walk, None, KEY, steps=2 * env.horizon, worlds=1)
    assert len(transitions.episodes(data)) == 2 and not data.terminals.any()


@pytest.mark.extra
@pytest.mark.slow
def test_gymnasium_on_the_host():
    pytest.importorskip("gymnasium")
    from jaxrl.control import train
    from jaxrl.control.algorithms.online import sac

    env = environments.get("gym/Pendulum-v1")
    assert (env.space, env.horizon) == (pendulum.make().space, 200)
    config = sac.Config(hidden=(8,), batch_size=16, steps=400, warmup=40, worlds=2)
    points = list(train.train(sac.programs(env, config), env, seeds=[0, 1], points=2, episodes=2))
    assert [p.env_steps for p in points] == [0, 200, 400]
    ring = points[-1].carry.replay
    assert np.asarray(ring.count).tolist() == [440, 440]
    # each of two worlds has met its time limit once, in each seed, and none is a terminal
    assert np.asarray(ring.data.ends).sum() == 4 and not np.asarray(ring.data.terminals).any()
    assert all(-2000 < r < 0 for p in points for r in p.returns)


def test_steps_to_the_goal_fall_by_one_along_the_compass():
    layout = maze.LAYOUTS["medium"]
    goal = next((r, row.index("G")) for r, row in enumerate(layout) if "G" in row)
    steps, compass = maze.steps_to_goal("medium"), maze.compass("medium", goal)
    assert steps[goal] == 0
    for cell in set(maze.free_cells("medium")) - {goal}:
        ahead = tuple((np.array(cell) + compass[cell]).astype(int))
        assert steps[ahead] == steps[cell] - 1
    walls = [(r, c) for r, row in enumerate(layout) for c, x in enumerate(row) if x == "#"]
    assert all(steps[w] > steps[f] for w in walls for f in maze.free_cells("medium"))


def test_a_hidden_goal_changes_only_what_is_seen():
    shown, hidden = (environments.get("point_goals", shown=s) for s in (True, False))
    (state, wide), (same, narrow) = shown.reset(KEY), hidden.reset(KEY)
    np.testing.assert_array_equal(state, same)
    np.testing.assert_array_equal(wide[:4], narrow)
    assert narrow.shape == (4,) and float(jnp.linalg.norm(wide[4:])) == pytest.approx(0.8, rel=1e-5)
    at_goal = state.at[:2].set(state[4:])
    assert float(hidden.step(KEY, at_goal, jnp.zeros(2)).reward) == pytest.approx(1.0)


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


GRIDS = {"size": 4, "walls": 5, "cost": 0.25}


def grid_text(seen):
    """Features as the text of the task."""
    wall, walker, goal = np.moveaxis(np.asarray(seen, bool).reshape(4, 4, 3), -1, 0)
    cells = np.select([wall, walker, goal], ["#", "@", "G"], ".")
    return "\n".join(map("".join, cells))


@pytest.mark.parametrize("split", ["train", "test"])
def test_walks_are_those_of_the_task(split):
    """Same views, rewards and ends, for moves at random and for solutions."""
    task = tasks.get("text_grid", **GRIDS)
    env = text_grid.make(split, seed=3, grids=12, **GRIDS)
    problems = {p.prompt: p for p in (task.problem(split, 3, i) for i in range(12))}
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    rng, met, ends = np.random.default_rng(0), set(), set()
    for n in range(40):
        state, seen = reset(jax.random.PRNGKey(n))
        problem = problems[grid_text(seen)]
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
            assert grid_text(out.observation) == reply.messages[0]["content"]
    assert len(met) > 6 and ends == {1.0, -0.25}


def test_grids_of_another_size_are_refused():
    with pytest.raises(ValueError, match="split='ood'"):
        text_grid.make("ood")
    with pytest.raises(ValueError, match="grids=0"):
        text_grid.make(grids=0)
