"""A user's environment and data, from a file to a policy that plays without jaxrl's commands."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection

import jax
import numpy as np
import pytest
from PIL import Image

from jaxrl import control
from jaxrl.control import algorithms, environments, host, numpy_policy, spaces, train
from jaxrl.control.algorithms.offline_to_online import serl
from jaxrl.control.algorithms.online import ppo
from jaxrl.control.environments import point_mass
from jaxrl.data.offline import readers
from jaxrl.launch import cli
from jaxrl.launch.control import actor
from jaxrl.record import metrics
from jaxrl.rollout.generators import Gone, Handle

gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.extra
FEW = ["--seeds", "2", "--points", "1", "--episodes", "1"]
FEW += ["--algorithm.steps", "6", "--algorithm.hidden", "8"]


def collected(name, steps=60):
    """Columns of a random policy in an environment, as a user would write them down."""
    env = gymnasium.make(name, max_episode_steps=25)
    env.action_space.seed(0)
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    columns = {column: [] for column in names}
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        action = env.action_space.sample()
        after, reward, terminal, cut, _ = env.step(action)
        for column, x in zip(columns, (observation, action, reward, terminal, cut), strict=True):
            columns[column].append(x)
        observation = env.reset()[0] if terminal or cut else after
    return {column: np.array(values) for column, values in columns.items()}


def own_environment(size=3):
    """A user's function: walk to the right by two switches; observations are a dict."""

    class Walk(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict(
            {
                "place": gymnasium.spaces.Box(-9.0, 9.0, (size,)),
                "door": gymnasium.spaces.Discrete(2),
            }
        )
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place = np.zeros(size, np.float32)
            return self.seen(), {}

        def seen(self):
            return {"place": self.place, "door": int(self.place[0] > 1)}

        def step(self, action):
            assert self.action_space.contains(action)
            self.place = np.clip(self.place + float(action[0]) - 0.5, -9.0, 9.0).astype(np.float32)
            return self.seen(), float(action[1]), bool(self.place[0] > 2), False, {}

    return Walk()


def run(argv, capsys):
    """The exit status of a command and what it printed."""
    status = cli.main(["control", *map(str, argv)])
    said = capsys.readouterr()
    return status, said.out, " ".join(said.err.split())


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_ones_own_data_in_gymnasium_from_file_to_exported_policy(kind, tmp_path, capsys):
    """Pendulum's actions reach 2, which the environment's bounds scale; nothing is done by hand."""
    columns, path, out = collected("Pendulum-v1"), tmp_path / f"data.{kind}", tmp_path / "run"
    if kind == "npz":
        np.savez(path, **columns)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, values in columns.items():
                file[name] = values
    env = ["--env", "gym/Pendulum-v1", "--env-args.max_episode_steps", "25"]
    status, said, _ = run(["data", path, "--json"], capsys)
    facts = json.loads(said)
    # a trajectory's last observation is not in the file, so the row that was cut off is left out
    assert status == 0 and facts["episodes"] == 3 and facts["cut off"] == 3
    assert facts["steps"] == 60 - 3 and "-1.98" in facts["actions"]
    given = ["iql", *env, "--data", path, *FEW, "--algorithm.batch-size", "8", "--run-dir", out]
    assert run(given, capsys)[0] == 0
    status, said, _ = run(["play", out, "--episodes", "3", "--json"], capsys)
    returns = json.loads(said)["returns"]
    assert status == 0 and len(returns) == 3 and all(-600 < r < 0 for r in returns)
    policy = control.load(out, seed=1)
    observations = columns["observations"].astype(np.float32)
    actions = policy(observations)
    assert actions.shape == (60, 1) and np.abs(actions).max() <= 2.0
    np.testing.assert_allclose(policy(observations[0]), actions[0], atol=1e-6)
    assert run(["export", out, tmp_path / "out", "--seed", "1"], capsys)[0] == 0
    exported = module_at(tmp_path / "out" / "policy.py")
    alone = np.stack([exported.policy(x) for x in observations])
    np.testing.assert_allclose(alone, actions, atol=2e-6)


def module_at(path):
    spec = importlib.util.spec_from_file_location("exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sample(3)  # the same path through the files
@pytest.mark.parametrize("name", ["bc", "iql", "xql", "f_dvl", "weighted", "cql", "dqn"])
def test_choices_are_learned_from_data(name, tmp_path, capsys):
    columns, path = collected("CartPole-v1"), tmp_path / "data.npz"
    columns["actions"] = columns["actions"][:, None]  # [N, 1] whole numbers are choices
    np.savez(path, **columns)
    out = tmp_path / "run"
    given = [name, "--env", "gym/CartPole-v1", "--data", path, *FEW, "--run-dir", out]
    given += ["--algorithm.batch-size", "8"]
    given += ["--algorithm.offline-steps", "6"] if name == "dqn" else []
    assert run(given, capsys)[0] == 0
    actions = control.load(out)(columns["observations"])
    assert set(np.unique(actions)) <= {0, 1} and actions.dtype.kind == "i"
    assert json.loads(run(["play", out, "--episodes", "2", "--json"], capsys)[1])["returns"]


def test_ones_own_environment_of_parts_and_switches(tmp_path, capsys):
    """Online in Gymnasium, by module:function, loaded where jaxrl.launch cannot be imported."""
    out, where = tmp_path / "run", f"{__name__}:own_environment"
    given = ["dqn", "--env", where, *FEW, "--algorithm.warmup", "8", "--env-args.horizon", "6"]
    status, _, said = run([*given, "--algorithm.batch-size", "8", "--run-dir", out], capsys)
    assert status == 0, said
    env = own_environment()
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(control.load(out)(observation))
    status, shown, _ = run(["play", out, "--episodes", "2", "--json"], capsys)
    assert status == 0 and len(json.loads(shown)["returns"]) == 2
    assert run(["export", out, tmp_path / "out"], capsys)[0] == 0
    exported = module_at(tmp_path / "out" / "policy.py")
    np.testing.assert_array_equal(exported.policy(observation), control.load(out)(observation))
    script = f"""
import sys
sys.modules["jaxrl.launch"] = None
from jaxrl import control
print(control.load({str(out)!r})({{"place": [0.0, 0.0, 0.0], "door": 1}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Gusts(gymnasium.Env):
    """A walk whose steps and starts are random: by its own generator, or by one of the process."""

    observation_space = gymnasium.spaces.Box(-99.0, 99.0, (2,))
    action_space = gymnasium.spaces.Box(-3.0, 1.0, (1,))
    steps = 0
    """Of all copies in the process."""

    def __init__(self, shared=False, dies=0):
        self.shared, self.dies = shared, dies

    def draw(self):
        return np.random.normal(size=2) if self.shared else self.np_random.normal(size=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.clock = self.draw().astype(np.float32), 0
        return self.place, {}

    def render(self):
        return np.full((4, 6, 3), 20 * self.clock, np.uint8)

    def step(self, action):
        Gusts.steps += 1
        if Gusts.steps == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.clock += 1
        self.place += (0.1 * self.draw() + 0.1 * action).astype(np.float32)  # the same array
        return self.place, float(-np.square(self.place).sum()), bool(self.place[0] > 2), False, {}


def gusts(shared=False, render_mode=None):
    return Gusts(shared)


def flags_of(name, env, out, *more):
    """Two seeds, four points of it, episodes that no point divides."""
    out_flags = ["--seeds", "2", "--points", "4", "--episodes", "1", "--run-dir", out]
    flags = [name, "--env", env, *out_flags, "--algorithm.hidden", "8", "--algorithm.steps", "44"]
    if name.startswith("ppo"):
        flags[0], memory = "ppo", "gru" if name.endswith("memory") else "none"
        flags += ["--algorithm.worlds", "2", "--algorithm.segment", "6"]
        flags += ["--algorithm.recurrent", memory]
        flags += ["--algorithm.minibatches", "2", "--algorithm.epochs", "1"]
    else:
        flags += ["--algorithm.warmup", "16", "--algorithm.batch-size", "8"]
    return [*flags, *more]


def cut(run, points):
    """Remove what a run has saved of its last points."""
    for late in sorted((run / "checkpoints").iterdir())[-points:]:
        shutil.rmtree(late)
    for name in ("summary.json", "policy.json", "policy.npz"):
        (run / name).unlink()


def same_runs(first, second):
    rows = [metrics.read(run) for run in (first, second)]
    assert rows[0] == rows[1] and len(rows[0]) == 5
    with np.load(first / "policy.npz") as a, np.load(second / "policy.npz") as b:
        assert a.files == b.files
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.exact("a control run in Gymnasium that is stopped continues exactly")
@pytest.mark.parametrize(
    "name,env", [
        ("sac", f"{__name__}:gusts"),
        pytest.param("ppo", f"{__name__}:gusts", marks=pytest.mark.broad),
        pytest.param("ppo", "gym/Blackjack-v1", marks=pytest.mark.broad),
        pytest.param("ppo with a memory", f"{__name__}:gusts", marks=pytest.mark.broad),
        pytest.param("sac", "gym/InvertedPendulum-v5", marks=pytest.mark.broad),
    ],
)  # fmt: skip
def test_a_run_in_gymnasium_continues_exactly(name, env, tmp_path, capsys):
    """In the middle of episodes, with starts, steps and ends that are drawn."""
    if env.endswith("v5"):
        pytest.importorskip("mujoco")
        pytest.importorskip("imageio")  # which Gymnasium needs for it
    whole, other = tmp_path / "whole", tmp_path / "other"
    limit = ["--env-args.horizon", "15"]
    for out in (whole, other):
        assert run(flags_of(name, env, out, *limit), capsys)[0] == 0
    cut(other, 1)
    status, said, error = run(flags_of(name, env, other, *limit), capsys)
    assert status == 0 and "continuing" in said and "fresh episodes" not in error, error
    same_runs(whole, other)


@pytest.mark.broad
def test_an_environment_that_does_not_repeat_itself_begins_anew_and_says_so(tmp_path, capsys):
    out, shared = tmp_path / "run", ["--env-args.horizon", "15", "--env-args.shared", "true"]
    given = flags_of("sac", f"{__name__}:gusts", out, *shared)
    assert run(given, capsys)[0] == 0
    cut(out, 1)
    status, _, error = run(given, capsys)
    assert status == 0 and "fresh episodes" in error and "not as it would" in error, error
    assert len(metrics.read(out)) == 5


@pytest.mark.broad
def test_what_was_remembered_of_lost_episodes_is_forgotten():
    env = environments.get(f"{__name__}:gusts", shared=True, horizon=15)
    small = {"steps": 24, "worlds": 2, "segment": 6, "minibatches": 2, "hidden": (8,)}
    programs = ppo.programs(env, ppo.Config(recurrent="gru", **small))
    play = functools.partial(train.train, programs, env, seeds=[0, 1], points=2, episodes=1)
    _, point, _ = play()
    said = []
    *_, last = play(after=point, note=said.append)
    assert np.all(np.any(np.array(point.carry.memory) != 0, -1)) and "fresh episodes" in said[0]
    first, *_ = np.split(last.carry.replay.data.extra["memory"], 6, axis=1)
    assert first.shape == (2, 2, 8) and not np.any(first)


def test_a_policy_that_remembers_is_played_loaded_and_exported(tmp_path, capsys):
    out = tmp_path / "run"
    given = flags_of("ppo with a memory", f"{__name__}:gusts", out, "--env-args.horizon", "9")
    assert run(given, capsys)[0] == 0
    policy = control.load(out, seed=1)
    with pytest.raises(ValueError, match=r"policy.init\(\)"):
        policy(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=r"policy.init\(3\)"):
        policy.step(np.zeros((3, 2), np.float32), policy.init())
    assert run(["export", out, tmp_path / "out", "--seed", "1"], capsys)[0] == 0
    exported = module_at(tmp_path / "out" / "policy.py")
    status, said, error = run(["play", out, "--episodes", "2", "--seed", "1", "--json"], capsys)
    assert status == 0, error
    algorithm, histories = policy.algorithm, []
    for i in range(2):
        env = gymnasium.wrappers.TimeLimit(Gusts(), 9)
        observation, over, total = env.reset(seed=host.hash_seed(0, i))[0].copy(), False, 0.0
        state, alone, of_run = policy.init(), exported.init(), algorithm.memory
        histories.append([])
        while not over:
            histories[-1].append(observation)
            action, state = policy.step(observation, state)
            of_numpy, alone = exported.step(observation, alone)
            best, of_run = algorithm.best(None, policy.params, observation, of_run)
            np.testing.assert_allclose(of_numpy, action, atol=2e-6)
            np.testing.assert_allclose(action, 2.0 * best - 1.0, atol=2e-6)  # Box(-3, 1)
            observation, reward, terminal, cut_off, _ = env.step(action)
            observation, over, total = observation.copy(), terminal or cut_off, total + reward
        assert json.loads(said)["returns"][i] == pytest.approx(total, abs=1e-4)
        np.testing.assert_allclose(alone, state, atol=1e-5)
    assert np.any(state)
    batch, states = np.stack([history[0] for history in histories]), policy.init(2)
    actions, _ = policy.step(batch, states)
    np.testing.assert_allclose(actions[1], policy.step(batch[1], policy.init())[0], atol=1e-6)


KILLED = """
import os, signal, sys
import jax
from jaxrl.launch import cli
from tests.launch import test_control_front_door as door

where, count = sys.argv[1], int(sys.argv[2])
compiled, calls = jax.jit, [0]

def watched(function, **options):
    call = compiled(function, **options)
    if getattr(function, "__name__", "") != "learn":
        return call
    def learn(*arguments):
        out = call(*arguments)
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return out
    return learn

if where == "learn":
    jax.jit = watched
else:
    gusts = door.Gusts
    door.gusts = lambda: gusts(dies=count)
cli.main(["control", *sys.argv[3:]])
"""


@pytest.mark.broad
@pytest.mark.parametrize("where,count", [("collect", 130), ("learn", 30)])
def test_a_run_that_is_killed_where_it_plays_or_learns_continues_exactly(
    where, count, tmp_path, capsys
):
    limit = ["--env-args.horizon", "15"]
    whole, other = (
        flags_of("sac", f"{__name__}:gusts", tmp_path / name, *limit) for name in ("whole", "other")
    )
    assert run(whole, capsys)[0] == 0
    command = [sys.executable, "-c", KILLED, where, str(count), *map(str, other)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "other" / "summary.json").exists()
    status, said, error = run(other, capsys)
    assert status == 0 and "continuing" in said and "fresh episodes" not in error, error
    same_runs(tmp_path / "whole", tmp_path / "other")


def test_a_seed_plays_the_same_episodes_alone_and_beside_others():
    env = environments.get("gym/Pendulum-v1", max_episode_steps=5)
    act = lambda t, seen: np.zeros((*seen.shape[:-1], 1), np.float32)  # noqa: E731
    both = host.play(env, act, [host.hash_seed(s, 0) for s in (0, 1)], (2, 1))
    alone = host.play(env, act, [host.hash_seed(1, 0)], (1, 1))
    np.testing.assert_allclose(both[:, 1], alone[:, 0])


def test_gymnasiums_cart_pole_is_ours():
    theirs, ours = environments.get("gym/CartPole-v1"), environments.get("cartpole")
    assert (theirs.space, theirs.horizon) == (ours.space, ours.horizon)
    vector = theirs.host([3])
    state, rng = vector.observations[0], np.random.default_rng(0)
    for _ in range(40):
        action = rng.integers(0, 2, 1)
        steps, _ = vector.step(action)
        step = ours.step(jax.random.PRNGKey(0), state, action[0])
        np.testing.assert_allclose(steps.next_observations[0], step.observation, atol=1e-4)
        assert bool(steps.terminals[0]) == bool(step.terminal)
        state = vector.observations[0]


@pytest.mark.parametrize("tops", [[3, 1], pytest.param([2, 2, 5, 1, 4], marks=pytest.mark.broad)])
def test_the_best_point_is_the_first_of_highest_mean_return(tops, tmp_path, monkeypatch, capsys):
    """Whose parameters are those that were evaluated, though the run goes on, is cut and continues.

    With the last and the best, `play`, `export` and `load` differ by the point alone.
    """
    out, params = tmp_path / "run", {}
    points = len(tops) - 1
    given = ["sac", "--seeds", 2, "--points", points, "--episodes", 1, "--run-dir", out]
    given += ["--algorithm.steps", 2 * points, "--algorithm.hidden", 8]
    given += ["--algorithm.warmup", 8, "--algorithm.batch-size", 8]
    evaluation = train._evaluation

    def scripted(*arguments):
        measure = evaluation(*arguments)

        def measure_as_scripted(learner, keys, step):
            params[step] = jax.device_get(learner)
            returns, costs = measure(learner, keys, step)
            return returns * 0 + tops[step // 2] + np.array([-1.0, 1.0]), costs

        return measure_as_scripted

    monkeypatch.setattr(train, "_evaluation", scripted)
    assert run(given, capsys)[0] == 0
    top = 2 * int(np.argmax(tops))
    for again in range(2):
        for point, step in (("best", top), ("last", 2 * points)):
            loaded = control.load(out, seed=1, point=point)
            assert loaded.description["step"] == step
            assert loaded.description["returns"] == [tops[step // 2] - 1, tops[step // 2] + 1]
            expected = jax.tree.map(lambda x: x[1], params[step])
            jax.tree.map(np.testing.assert_array_equal, loaded.params, expected)
        if not again:
            cut(out, 1)
            assert run(given, capsys)[0] == 0
    played = [
        run(["play", out, "--episodes", "2", "--json", *more], capsys)[1]
        for more in ([], ["--point", "last"], ["--point", "best"])
    ]
    assert played[0] == played[1] and (played[2] != played[0]) == (top != 2 * points)
    for point in ("last", "best"):
        assert run(["export", out, tmp_path / point, "--point", point], capsys)[0] == 0
        exported, seen = module_at(tmp_path / point / "policy.py"), np.full(4, 0.3, np.float32)
        expected = control.load(out, point=point)(seen)
        np.testing.assert_allclose(exported.policy(seen), expected, atol=2e-6)
    assert control.load(out)(seen).shape == (point_mass.make().space.action,)
    with pytest.raises(ValueError, match="numbers"):
        control.load(out)(np.zeros(5))
    with pytest.raises(ValueError, match="seeds"):
        control.load(out, seed=2)
    with pytest.raises(ValueError, match="choose one of last, best"):
        control.load(out, point="first")
    summary = json.loads((out / "summary.json").read_text())
    assert run(given, capsys)[0] == 0  # nothing is left to do, nor changed
    assert json.loads((out / "summary.json").read_text())["return"] == summary["return"]
    assert summary["return"] == [tops[-1] - 1, tops[-1] + 1]
    assert control.load(out, point="best").description["step"] == top
    for name in ("policy.npz", "policy.json", "best.npz", "best.json"):  # as killed before these
        (out / name).unlink()
    assert run(given, capsys)[0] == 0
    for point in ("best", "last"):
        assert control.load(out, point=point).description["step"] == 2 * points
    for returns in ([], None, ["x"], [float("nan")]):
        (out / "best.json").write_text(json.dumps({"returns": returns}))
        status, _, error = run(given, capsys)
        assert status == 2 and "best.json is damaged" in error, (returns, error)


class Lights(gymnasium.Env):
    """A picture of a light on the left or on the right, whose side is the right action."""

    def __init__(self, first=False, gaps=False, continuous=False, render_mode=None):
        self.first, self.gaps = first, gaps
        box = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = box if continuous else gymnasium.spaces.Discrete(2)
        shape = (2, 5, 6) if first else (5, 6, 2)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 60, (5, 6, 2)).astype(np.uint8)
        row, column = self.np_random.integers(5), self.np_random.integers(3)
        picture[row, column + 3 * self.side, 1] = 255
        if self.gaps:
            picture = np.repeat(picture, 4, axis=-1)[..., ::4]
        return (np.moveaxis(picture, -1, 0) if self.first else picture), {}

    def step(self, action):
        reward = float(int(np.sum(action) > 0) == self.side)
        return self.reset()[0], reward, True, False, {}


def lights_log(path, kind, count=400, continuous=False):
    """Random actions under the lights; each episode is one step."""
    env, rng = Lights(), np.random.default_rng(0)
    pictures, actions, rewards = [], rng.integers(0, 2, count), []
    if continuous:
        actions = rng.uniform(-1.0, 1.0, (count, 1)).astype(np.float32)
    for i, action in enumerate(actions):
        pictures.append(env.reset(seed=i)[0])
        rewards.append(env.step(action)[1])
    columns = {"observations": np.array(pictures), "actions": actions, "rewards": np.array(rewards)}
    columns |= {"terminals": np.ones(count, bool), "timeouts": np.zeros(count, bool)}
    if kind == "npz":
        np.savez(path, **columns)
        return
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values


LIGHTS = [f"--env={__name__}:Lights", "--seeds", "1", "--points", "1", "--episodes", "40"]


@pytest.mark.parametrize(
    "name,flags",
    [
        ("dqn", ["steps=40", "warmup=8", "batch-size=8"]),
        pytest.param("dqn", ["offline-steps=30", "DATA.npz"], marks=pytest.mark.broad),
        pytest.param("dqn", ["offline-steps=30", "DATA.hdf5"], marks=pytest.mark.broad),
        pytest.param(
            "iql", ["steps=20", "shift=1", "latent=8", "DATA.npz"], marks=pytest.mark.slow
        ),
        ("sac", ["steps=40", "warmup=8", "batch-size=8", "shift=1", "latent=8"]),
        pytest.param(
            "rlpd", ["steps=20", "warmup=8", "latent=8", "DATA.npz"], marks=pytest.mark.slow
        ),
        pytest.param("c51", ["steps=40", "warmup=8", "batch-size=8"], marks=pytest.mark.broad),
        pytest.param(
            "ppo", ["steps=64", "worlds=4", "segment=8", "minibatches=2", "epochs=1",
                    "no-normalise-observations"], marks=pytest.mark.broad,
        ),
    ],
)  # fmt: skip
def test_pictures_stay_bytes_from_the_environment_to_the_exported_policy(
    name, flags, tmp_path, capsys
):
    out = tmp_path / "run"
    given = [name, *LIGHTS, "--run-dir", out, "--algorithm.hidden", "8"]
    given += ["--env-args.first", "true"] if name == "ppo" else []
    continuous = name in ("sac", "rlpd")
    given += ["--env-args.continuous", "true"] if continuous else []
    for flag in flags:
        if flag.startswith("DATA"):
            lights_log(tmp_path / flag, flag.split(".")[1], continuous=continuous)
            given += ["--data", tmp_path / flag]
        else:
            given.append(f"--algorithm.{flag}")
    status, _, error = run(given, capsys)
    assert status == 0, error
    first = name == "ppo"
    env, policy = Lights(first), control.load(out)
    assert policy.description["space"]["shape"] == [5, 6, 2]
    pictures = np.stack([env.reset(seed=i)[0] for i in range(20)])
    actions = policy(pictures)
    assert actions.shape == ((20, 1) if continuous else (20,))
    np.testing.assert_allclose(policy(pictures[3]), actions[3], rtol=0, atol=1e-6 * continuous)
    assert len(json.loads(run(["play", out, "--episodes", "3", "--json"], capsys)[1])["returns"])
    assert run(["export", out, tmp_path / "out"], capsys)[0] == 0
    exported = module_at(tmp_path / "out" / "policy.py")
    found = np.array([exported.policy(picture) for picture in pictures])
    np.testing.assert_allclose(found, actions, atol=1e-5 if continuous else 0)
    status, said, error = run(given, capsys)  # what is saved is restored as bytes
    assert status == 0 and "continuing" in said, error
    if "DATA" not in str(flags) and name == "dqn":
        module, env = algorithms.load(name), environments.get(f"{__name__}:Lights")
        shapes = train.shapes(module.programs(env, module.config()), seeds=[0])
        kept = shapes.replay.data
        assert kept.observations.dtype == kept.next_observations.dtype == np.uint8
        assert kept.observations.shape[-1] == 60


def test_a_picture_in_a_view_with_gaps_is_played():
    env, plain = (environments.get(f"{__name__}:Lights", gaps=gaps).host([3]) for gaps in (1, 0))
    for vector in (env, plain):
        vector.step(np.array([1]))
    np.testing.assert_array_equal(env.observations, plain.observations)
    np.testing.assert_array_equal(env.trail.checksum, plain.trail.checksum)


def test_pictures_are_refused_where_nothing_reads_them(tmp_path, capsys):
    lights_log(tmp_path / "data.npz", "npz", 8)
    data = ["--data", tmp_path / "data.npz"]
    for given, said in (
        (["xql", *LIGHTS, *data], "choose c51, dqn, droq, hl_gauss, iql, ppo"),
        (["ppo", *LIGHTS], "--algorithm.no-normalise-observations"),
        (["dqn", "--env", "cartpole", *data, "--algorithm.offline-steps", "2"], "the data have 60"),
    ):
        status, _, error = run([*given, "--run-dir", tmp_path / "run"], capsys)
        assert status == 2 and said in error, error


@pytest.mark.broad
@pytest.mark.optimized
@pytest.mark.parametrize(
    "name",
    ["dqn", "ppo", "offline", *(pytest.param(n, marks=pytest.mark.slow) for n in ("iql", "sac"))],
)
def test_a_policy_learns_from_pictures(name, tmp_path, capsys):
    out, flags = tmp_path / "run", {
        "dqn": ["steps=600", "warmup=100", "batch-size=64", "learning-rate=2e-3",
                "epsilon-updates=100", "discount=0.5"],
        "ppo": ["steps=4096", "worlds=16", "segment=16", "minibatches=2", "epochs=4",
                "learning-rate=3e-3", "no-normalise-observations"],
        "offline": ["offline-steps=400", "batch-size=64", "learning-rate=2e-3", "discount=0.5"],
        "iql": ["steps=600", "batch-size=64", "learning-rate=2e-3", "discount=0.5"],
        "sac": ["steps=1200", "warmup=200", "batch-size=64", "learning-rate=2e-3", "discount=0.5",
                "temperature=0.1"],
    }[name]  # fmt: skip
    given = ["dqn" if name == "offline" else name, *LIGHTS, "--run-dir", out]
    given += ["--env-args.continuous", "true"] if name == "sac" else []
    given += [f"--algorithm.{flag}" for flag in flags]
    if name in ("offline", "iql"):
        lights_log(tmp_path / "data.npz", "npz")
        given += ["--data", tmp_path / "data.npz"]
    assert run(given, capsys)[0] == 0
    assert np.mean(json.loads((out / "summary.json").read_text())["return"]) >= 0.9


S = gymnasium.spaces
BOX = S.Box(-1.0, 2.0, (2, 2))


@pytest.mark.parametrize(
    "space", [
        BOX, S.Discrete(4, start=2), S.MultiDiscrete([2, 3]), S.MultiBinary(3),
        S.Dict({"b": BOX, "a": S.Discrete(3)}), S.Tuple((S.Discrete(2), S.Dict({"z": BOX}))),
    ],
)  # fmt: skip
def test_observations_are_flattened_as_gymnasium_does(space):
    form = json.loads(json.dumps(spaces.layout(space, "it")))
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    batch = gymnasium.vector.utils.concatenate(
        space, samples, gymnasium.vector.utils.create_empty_array(space, 5)
    )
    expected = np.stack([S.flatten(space, x) for x in samples]).astype(np.float32)
    np.testing.assert_allclose(spaces.flatten(form, batch), expected)
    assert spaces.size(form) == S.flatdim(space)


@pytest.mark.parametrize(
    "space", [S.Box(-1.0, 3.0, (2, 2)), S.Discrete(4, start=2), S.MultiDiscrete([2, 3, 4])]
)
def test_actions_come_back_as_they_were(space):
    form = spaces.layout(space, "it")
    space.seed(1)
    actions = np.stack([space.sample() for _ in range(20)])
    policys = spaces.from_environment(form, actions)
    np.testing.assert_allclose(spaces.to_environment(form, policys), actions, atol=1e-6)


@pytest.mark.parametrize(
    "observation,action,said",
    [
        (S.Text(3), S.Discrete(2), "Text"),
        (S.Sequence(S.Discrete(2)), S.Discrete(2), "Sequence"),
        (S.Graph(S.Discrete(2), None), S.Discrete(2), "Graph"),
        (S.Box(0, 255, (4, 8, 8, 3), np.uint8), S.Discrete(2), "more than three axes"),
        (S.Dict({"a": S.Box(0, 255, (8, 8, 3), np.uint8)}), S.Discrete(2), "beside other parts"),
        (S.Box(0, 1, (8, 8, 3), np.uint8), S.Discrete(2), "pictures of 0 to 1, and"),
        (S.Discrete(2), S.Box(-np.inf, np.inf, (2,)), "without bounds"),
        (S.Discrete(2), S.MultiDiscrete([40, 40]), "1600 combinations"),
        (S.Discrete(2), S.Dict({"a": S.Discrete(2)}), "dict"),
    ],
)
def test_spaces_that_no_policy_plays_are_refused_by_name(observation, action, said):
    with pytest.raises(ValueError, match=said):
        forms = spaces.layout(observation, "them"), spaces.layout(action, "them")
        spaces.space_of(*forms, "it")


@pytest.mark.parametrize(
    "given,said",
    [
        (["sac", "--env", "gym/Pendulumm-v1"], "did you mean"),
        (["sac", "--env", "no_such_module:make"], "can be imported"),
        (["sac", "--env", "json:dumps"], "--env-args.NAME"),
        (["sac", "--env", "json:JSONDecoder"], "give a gymnasium.Env"),
        (["dt", "--env", "gym/Pendulum-v1", "--data", "DATA"], "history"),
        (["play", "NOWHERE"], "policy.json"),
        (["export", "NOWHERE", "OUT"], "policy.json"),
        (["data", "nothing.hdf5"], "no such file"),
    ],
)
def test_what_cannot_be_is_refused(given, said, tmp_path, capsys):
    np.savez(tmp_path / "DATA.npz", **collected("Pendulum-v1"))
    words = {"DATA": tmp_path / "DATA.npz", "NOWHERE": tmp_path, "OUT": tmp_path / "out"}
    more = ["--run-dir", tmp_path / "run"] if given[0] in ("sac", "dt") else []
    status, _, error = run([*(words.get(word, word) for word in given), *more], capsys)
    assert status == 2 and said in error, error


@pytest.mark.parametrize(
    "change,flags,said",
    [
        ({"actions": lambda x: x * 1.5}, [], "the environment has -2 to 2"),
        ({"timeouts": None}, [], "one of steps holds"),
        ({"rewards": None}, [], "are missing"),
        ({"rewards": lambda x: np.full(len(x), np.nan)}, [], "rewards holds values that are not"),
        ({"observations": lambda x: x * np.inf}, [], "observations holds values that are not"),
        ({"actions": lambda x: x[:-1]}, [], "cut them alike"),
        ({"observations": lambda x: x[:, :2]}, [], "the data have 2 observations"),
        ({"actions": lambda x: np.hstack([x, x])}, [], "2 numbers"),
        ({"actions": lambda x: (x > 0).astype(int)}, ["--env", "gym/CartPole-v1"], "the data have"),
        ({"actions": lambda x: (x > 0) + 5}, ["--env", "gym/CartPole-v1"], "0 to 1"),
        ({}, ["--env", "gym/CartPole-v1"], "environment"),
    ],
)
def test_data_that_are_not_of_the_environment_are_refused(change, flags, said, tmp_path, capsys):
    columns = collected("Pendulum-v1")
    for name, edit in change.items():
        column = columns.pop(name)
        if edit is not None:
            with np.errstate(invalid="ignore"):
                columns[name] = edit(column)
    np.savez(tmp_path / "data.npz", **columns)
    flags = flags or ["--env", "gym/Pendulum-v1"]
    given = ["iql", *flags, "--data", tmp_path / "data.npz", *FEW, "--run-dir", tmp_path / "run"]
    status, _, error = run(given, capsys)
    assert status == 2 and said in error and "Traceback" not in error, error
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_what_cannot_be_played_or_filmed_is_refused_before_it_is_played(tmp_path, capsys):
    out = tmp_path / "run"
    given = ["sac", "--env", f"{__name__}:gusts", "--env-args.horizon", "12", *FEW]
    given += ["--algorithm.batch-size", "8", "--algorithm.warmup", "8", "--run-dir", out]
    assert run(given, capsys)[0] == 0
    for more, said in (
        (["--episodes", "0"], "episodes=0"),
        (["--env", "gym/CartPole-v1"], "choose an environment of the same spaces"),
        (["--env", "point_mass"], "choose an environment of the same spaces"),
        (["--video", tmp_path / "film.txt"], "ends in .gif or .mp4"),
        (["--video", tmp_path / "nowhere" / "film.gif"], "no folder"),
        (["--seed", "2"], "seeds"),
    ):
        status, shown, error = run(["play", out, *more], capsys)
        assert status == 2 and said in error and not shown, (more, error)
    film = tmp_path / "film.gif"
    assert run(["play", out, "--episodes", "2", "--video", film], capsys)[0] == 0
    with Image.open(film) as pictures:
        assert pictures.n_frames == 12 and pictures.size == (6, 4)
        for i in range(12):
            pictures.seek(i)
            assert abs(int(np.asarray(pictures.convert("L"))[0, 0]) - 20 * i) < 4


def test_a_copied_run_needs_trust_for_a_function(tmp_path, capsys):
    out, where = tmp_path / "run", f"{__name__}:own_environment"
    given = ["dqn", "--env", where, *FEW, "--algorithm.warmup", "8", "--env-args.horizon", "6"]
    assert run([*given, "--algorithm.batch-size", "8", "--run-dir", out], capsys)[0] == 0
    (tmp_path / "run").rename(tmp_path / "other")
    status, _, error = run(["play", tmp_path / "other", "--episodes", "1"], capsys)
    assert status == 2 and "--trust" in error
    assert run(["play", tmp_path / "other", "--episodes", "1", "--trust"], capsys)[0] == 0


def test_terminals_inside_of_a_trajectory_do_not_end_it(tmp_path):
    """OGBench's data of one task: 4 trajectories of 6 states, the goal reached in each of them."""
    last = np.arange(24) % 6 == 5
    masks = np.where(np.arange(24) % 6 == 2, 0.0, 1.0)
    columns = {"observations": np.random.default_rng(0).normal(size=(24, 2)), "terminals": last}
    columns |= {"actions": np.zeros((24, 1)), "rewards": masks - 1.0, "masks": masks}
    np.savez(tmp_path / "task.npz", **columns)
    data = readers.read(str(tmp_path / "task.npz"))
    assert (
        data.ends.sum() == 4
        and data.terminals.sum() == 4
        and not (data.ends * data.terminals).any()
    )


@pytest.mark.slow
def test_the_script_of_the_docs_runs_as_written(tmp_path):
    """From a log of 60 episodes, most of which fall, to five policies that hold for 1000 steps."""
    folder = shutil.copytree("docs/control/own_data", tmp_path / "own_data")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), str(folder)])}
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    returns = json.loads(done.stdout.splitlines()[-1])["returns"]
    assert len(returns) == 5 and np.mean(returns) >= 950
    with Image.open(folder / "rig.gif") as film:
        assert film.n_frames > 100
    exported = module_at(folder / "runs" / "exported" / "policy.py")
    observation = {"cart": np.zeros(2, np.float32), "pole": np.full(2, 0.02, np.float32)}
    np.testing.assert_allclose(
        exported.policy(observation), control.load(folder / "runs" / "rig")(observation), atol=1e-5
    )


@pytest.mark.parametrize("name", algorithms.names())
def test_a_policy_in_numpy_is_the_policy(name):
    module = algorithms.load(name)
    kinds = {True: ["cartpole"], False: ["point_mass"], None: ["cartpole", "point_mass"]}
    for kind in kinds[getattr(module, "DISCRETE", False)]:
        env = environments.get(kind)
        config = module.config()
        if hasattr(config, "hidden"):
            config = dataclasses.replace(config, hidden=(8, 8))
        algorithm = module.programs(env, config)[-1].algorithm
        if algorithm.observe(env) is not env:
            pytest.skip("a policy that sees a history is not exported")
        params = algorithm.init(jax.random.PRNGKey(1)).params
        act = jax.jit(lambda x, a=algorithm, p=params: a.best(jax.random.PRNGKey(0), p, x))
        source, constants = numpy_policy.write(act, env.space.observation)
        held = {"np": np}
        exec(source, held)
        rows = np.random.default_rng(0).normal(size=(100, env.space.observation))
        for row in rows.astype(np.float32):
            np.testing.assert_allclose(held["act"](row, constants), act(row), atol=1e-5)


def test_an_operation_without_numpy_is_named():
    with pytest.raises(ValueError, match="cumsum"):
        numpy_policy.write(lambda x: x.cumsum(), 3)


DOCK = '''
import os, pathlib, signal
import gymnasium, numpy as np

class Dock(gymnasium.Env):
    """A block of two pixels is pushed onto a mark; a picture [10, 10, 2] shows both."""

    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 2), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, paid=True, mortal=""):
        self.paid, self.mortal, self.count = paid, mortal, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.block, self.mark = self.np_random.uniform(1.0, 8.0, (2, 2))
        self.clock = 0
        return self.seen(), {}

    def seen(self):
        picture = np.zeros((10, 10, 2), np.uint8)
        for channel, (row, column) in enumerate((self.block, self.mark)):
            i, j = int(round(row)), int(round(column))
            picture[i : i + 2, j : j + 2, channel] = 255
        return picture

    def step(self, action):
        self.count += 1
        file = pathlib.Path(self.mortal)
        if self.mortal and self.count == 70 and not file.exists():
            file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.block = np.clip(self.block + 1.5 * np.asarray(action), 0.0, 8.0)
        self.clock += 1
        there = bool(np.max(np.abs(np.round(self.block) - np.round(self.mark))) <= 1.0)
        return self.seen(), float(there and self.paid), there, self.clock >= 12, {}
'''


@pytest.fixture
def dock(tmp_path, monkeypatch):
    """The module of the world, its demonstrations and pictures labelled, as files."""
    (tmp_path / "dock_world.py").write_text(DOCK)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_docking(tmp_path / "shown.npz", 60, 0.2)
    write_docking(tmp_path / "labelled.npz", 400, 1.5)
    return tmp_path


def write_docking(path, episodes, noise):
    """Episodes of a hand-written policy that errs."""
    import dock_world

    env, rng = dock_world.Dock(), np.random.default_rng(len(path.name))
    rows = []
    for episode in range(episodes):
        seen, over = env.reset(seed=1000 + episode)[0], False
        while not over:
            aim = (env.mark - env.block) / 1.5 + noise * rng.normal(size=2)
            action = np.clip(aim, -1.0, 1.0).astype(np.float32)
            after, reward, there, cut, _ = env.step(action)
            over = there or cut
            rows.append((seen, action, reward, after, there, over and not there))
            seen = after
    names = "observations", "actions", "rewards", "next_observations", "terminals", "timeouts"
    np.savez(path, **{n: np.array(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)})


DOCKING = (
    "steps=120", "every=20", "warmup=40", "hidden=8", "latent=8", "members=2", "batch-size=16",
    "critic-updates=1", "updates=2", "shift=1", "classifier-steps=4", "classifier-batch=8",
)  # fmt: skip
SHORT = ("--seeds=1", "--points=2", "--episodes=2")


def train_dock(dock, where, fields, *flags):
    given = ["control", "serl", "--env", "dock_world:Dock", "--data", str(dock / "shown.npz")]
    given += ["--run-dir", str(dock / where), *flags]
    return cli.main([*given, *[f"--algorithm.{field}" for field in fields]])


@pytest.mark.slow
def test_an_actor_that_is_killed_returns_and_changes_nothing(dock, capsys):
    """With as many updates a segment as are asked for, a run is what it is without the kill."""
    for name, mortal in (("whole", []), ("killed", [f"--env-args.mortal={dock}/first"])):
        assert train_dock(dock, name, [*DOCKING, "most-updates=0"], *SHORT, *mortal) == 0
    assert "the actor is gone (signal 9)" in capsys.readouterr().err
    files = [np.load(dock / name / "policy.npz") for name in ("whole", "killed")]
    assert len(files[0].files) > 10
    assert metrics.read(dock / "killed")[-1]["updates_a_segment"] == 2
    for leaf in files[0].files:
        np.testing.assert_array_equal(files[0][leaf], files[1][leaf])
    cut(dock / "killed", 1)
    assert train_dock(dock, "killed", [*DOCKING, "most-updates=0"], *SHORT, *mortal) == 0
    said = capsys.readouterr()
    assert "continuing" in said.out and "fresh episodes" not in said.err
    with np.load(dock / "killed" / "policy.npz") as again:
        for leaf in files[0].files:
            np.testing.assert_array_equal(files[0][leaf], again[leaf])


@pytest.mark.broad
def test_the_learner_goes_on_while_a_killed_actor_returns(dock, capsys):
    mortal = [f"--env-args.mortal={dock}/first", "--env-args.paid=false"]
    assert train_dock(dock, "run", [*DOCKING, "most-updates=100000"], *SHORT, *mortal) == 0
    assert "the actor is gone (signal 9)" in capsys.readouterr().err
    rows = metrics.read(dock / "run")
    assert [row["env_steps"] for row in rows] == [0, 60, 120]
    assert rows[1]["updates_a_segment"] > 50  # 2, were it to wait
    assert control.load(dock / "run")(np.zeros((10, 10, 2), np.uint8)).shape == (2,)


def test_what_a_classifier_calls_success_pays_and_ends_the_episode(dock):
    vector = environments.get("dock_world:Dock").host([3])
    vector.judge = lambda copy, seen: bool(seen.dtype == np.uint8) and vector.clock[0] == 2
    steps = [vector.step(np.zeros((1, 2), np.float32))[0] for _ in range(4)]
    assert [float(step.rewards[0]) for step in steps] == [0, 1, 0, 1]
    assert [float(step.ends[0]) for step in steps] == [0, 1, 0, 1]
    assert [float(step.terminals[0]) for step in steps] == [0, 1, 0, 1]
    data = readers.read(str(dock / "labelled.npz"))
    env = environments.get("dock_world:Dock")
    config = dataclasses.replace(serl.config(), classifier_steps=1)
    for rewards in (data.rewards * 0, data.rewards * 0 + 1):
        with pytest.raises(ValueError, match="needs both kinds"):
            serl.make(env, config).prepare(data._replace(rewards=rewards))
    with pytest.raises(ValueError, match="next_observations"):
        serl.make(env, config).prepare(data._replace(next_observations=data.observations))
    with np.load(dock / "labelled.npz") as columns:
        np.savez(dock / "few.npz", **{**columns, "actions": columns["actions"][:, 0].astype(int)})
        far = {n: np.zeros((len(data.rewards), 3)) for n in ("observations", "next_observations")}
        np.savez(dock / "far.npz", **{**columns, **far})
    for name, text in (
        ("shown", "data: none"),
        ("few", "algorithm.labels="),
        ("far", "algorithm.labels="),
    ):
        labelled = dataclasses.replace(config, labels=str(dock / f"{name}.npz"))
        with pytest.raises(ValueError, match=text):
            serl.make(env, labelled).prepare(data._replace(rewards=data.rewards * 0))
    parts = serl.make(env, config).prepare(data)
    assert len(parts["good"]) + len(parts["bad"]) == len(data.rewards)
    np.testing.assert_array_equal(parts["demonstrations"].terminals, data.rewards > 0)


def test_the_seed_draws_what_the_classifier_learns_from(dock):
    env, data = environments.get("dock_world:Dock"), readers.read(str(dock / "labelled.npz"))
    small = {"hidden": (8,), "latent": 8, "members": 2, "shift": 1, "classifier_batch": 4}
    algorithm = serl.make(env, dataclasses.replace(serl.config(), classifier_steps=1, **small))
    parts, begin = algorithm.prepare(data), jax.jit(algorithm.begin)
    state, other = (algorithm.init(jax.random.PRNGKey(seed)) for seed in (0, 1))
    after = [
        begin(s, parts) for s in (state, state, state.replace(opt_state=other.opt_state))
    ]  # the last is of the first's networks and the other's draws
    assert after[0].opt_state.keys() == state.params.keys() - {"classifier", "target"}
    first, same, last = (jax.flatten_util.ravel_pytree(s.params["classifier"])[0] for s in after)
    assert np.array_equal(first, same) and not np.array_equal(first, last)


def test_an_actor_that_dies_is_started_five_times_in_a_row_and_one_that_cannot_start_says_so(
    monkeypatch,
):
    starts, said = [], []

    def start(role):
        starts.append(role)
        if role == "lost" and len(starts) == 2:
            raise OSError("no more processes")
        answer = Future()
        answer.set_exception(Gone("signal 9"))
        return Handle(lambda method, *arguments: answer, lambda: None)

    monkeypatch.setattr(actor, "start", start)
    with actor.ActorProcess("dying", said.append) as process:
        error = process.ask(None).exception(5)
    assert isinstance(error, RuntimeError)
    assert "died 6 times in a row" in str(error) and "signal 9" in str(error)
    assert len(starts) == 6 and len(said) == 5
    with pytest.raises(RuntimeError, match="over"):
        process.ask(None)
    starts.clear()
    with pytest.raises(OSError, match="no more processes"):
        actor.ActorProcess("lost", said.append).ask(None).result(5)


OTHER_END = """#!{python} -SE
import os, re, sys
from multiprocessing.connection import Connection
connection = Connection(int(re.search(r"serve.(\\d+)", sys.argv[2])[1]))
try:
    while True:
        connection.recv_bytes()
        connection.send_bytes({answer})
except EOFError:
    open({file!r}, "w").write(str(os.getsid(0) == os.getpid()))
"""


@pytest.mark.parametrize("readable", [True, False])
def test_an_actor_has_a_session_of_its_own_and_ends_by_itself(readable, tmp_path, monkeypatch):
    """Ctrl-C does not reach it; an answer that cannot be read ends it as well."""
    answer = pickle.dumps((True, 5)) if readable else b"cnothing_here\nvalue\n."
    script = tmp_path / "python"
    text = {"python": sys.executable, "answer": answer, "file": str(tmp_path / "over")}
    script.write_text(OTHER_END.format(**text))
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    handle = actor.start("role")
    if readable:
        assert handle.call("play", "segment").result(20) == 5
        handle.kill()
    with pytest.raises(Gone, match="exit status 0"):
        handle.call("play", "segment").result(20)
    assert (tmp_path / "over").read_text() == "True"


def test_an_actor_prints_where_it_failed_and_closes_its_worlds(monkeypatch, capsys):
    closed = []

    class Worlds:
        def __init__(self, role):
            self.close = lambda: closed.append(role)

        def play(self, segment):
            raise KeyError("gripper")

    monkeypatch.setattr(actor, "_Worlds", Worlds)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=actor.serve, args=(theirs.detach(),))
    thread.start()
    with Connection(ours.detach()) as connection:
        role = actor.Role("serl", None, "dock", {}, 1)
        connection.send(role)
        assert connection.recv() == (True, os.getpid())
        connection.send("segment")
        assert connection.recv() == (False, "KeyError: 'gripper'")
    thread.join(10)
    assert closed == [role] and "in play" in capsys.readouterr().err


@pytest.mark.slow
def test_serl_learns_from_a_classifier_and_demonstrations(dock):
    """The environment's own reward, which the actor does not read, says how often it arrives."""
    fields = ["steps=900", "warmup=300", "updates=30", "most-updates=0", "batch-size=64", "shift=1"]
    fields += [f"labels={dock}/labelled.npz", "classifier-steps=600", "classifier-rate=1e-3"]
    flags = ["--seeds=1", "--points=1", "--episodes=40"]
    assert train_dock(dock, "run", [*fields, "classifier-batch=64"], *flags) == 0
    first, last = (row["return"] for row in metrics.read(dock / "run"))
    assert first <= 0.4 and last >= 0.9
