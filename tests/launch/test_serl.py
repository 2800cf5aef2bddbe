"""SERL in a small world of pictures: an actor that is killed, a classifier as reward, learning."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl import control
from jaxrl.launch import cli
from jaxrl.record import metrics

pytest.importorskip("gymnasium")

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
    write(tmp_path / "shown.npz", 60, 0.2)
    write(tmp_path / "labelled.npz", 400, 1.5)
    return tmp_path


def write(path, episodes, noise):
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


TINY = (
    "steps=120", "every=20", "warmup=40", "hidden=8", "latent=8", "members=2", "batch-size=16",
    "critic-updates=1", "updates=2", "shift=1", "classifier-steps=4", "classifier-batch=8",
)  # fmt: skip
SHORT = ("--seeds=1", "--points=2", "--episodes=2")


def run(dock, where, fields, *flags):
    given = ["control", "serl", "--env", "dock_world:Dock", "--data", str(dock / "shown.npz")]
    given += ["--run-dir", str(dock / where), *flags]
    return cli.main([*given, *[f"--algorithm.{field}" for field in fields]])


@pytest.mark.slow
def test_an_actor_that_is_killed_returns_and_changes_nothing(dock, capsys):
    """With as many updates a segment as are asked for, a run is what it is without the kill."""
    for name, mortal in (("whole", []), ("killed", [f"--env-args.mortal={dock}/first"])):
        assert run(dock, name, [*TINY, "most-updates=0"], *SHORT, *mortal) == 0
    assert "the actor is gone (signal 9)" in capsys.readouterr().err
    files = [np.load(dock / name / "policy.npz") for name in ("whole", "killed")]
    assert len(files[0].files) > 10
    assert metrics.read(dock / "killed")[-1]["updates_a_segment"] == 2
    for leaf in files[0].files:
        np.testing.assert_array_equal(files[0][leaf], files[1][leaf])


@pytest.mark.broad
def test_the_learner_goes_on_while_a_killed_actor_returns(dock, capsys):
    mortal = [f"--env-args.mortal={dock}/first", "--env-args.paid=false"]
    assert run(dock, "run", [*TINY, "most-updates=100000"], *SHORT, *mortal) == 0
    assert "the actor is gone (signal 9)" in capsys.readouterr().err
    rows = metrics.read(dock / "run")
    assert [row["env_steps"] for row in rows] == [0, 60, 120]
    assert rows[1]["updates_a_segment"] > 50  # 2, were it to wait
    assert control.load(dock / "run")(np.zeros((10, 10, 2), np.uint8)).shape == (2,)
