"""From a log of one's own to a policy in use: `cd docs/control/own_data && python run.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import rig

from jaxrl import control

DATA, RUN = Path("rig.hdf5"), Path("runs/rig")


def controller(observation: dict, noise: float, rng: np.random.Generator) -> np.ndarray:
    """What ran on the rig so far: pump energy, then hold, with as much noise as was left in."""
    (cos, sin), (speed,) = observation["angle"], observation["speed"]
    energy = 0.5 * speed**2 + 15.0 * (cos - 1.0)
    hold = -(10.0 * np.arctan2(sin, cos) + 2.0 * speed)
    torque = hold if cos > 0.9 else np.sign(speed) * (2.0 if energy < 0 else -2.0)
    return np.clip([torque + noise * rng.normal()], -2.0, 2.0).astype(np.float32)


def record(episodes: int = 60) -> None:
    """Write the log: one array for each column, episode after episode."""
    rng, env = np.random.default_rng(0), rig.make()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    rows: dict[str, list] = {name: [] for name in names}
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over, noise = False, rng.choice([0.5, 1.5, 4.0])
        while not over:
            action = controller(observation, noise, rng)
            after, reward, terminal, timeout, _ = env.step(action)
            flat = np.concatenate([observation["angle"], observation["speed"]])
            step = (flat, action, reward, terminal, timeout)
            for name, value in zip(names, step, strict=True):
                rows[name].append(value)
            observation, over = after, terminal or timeout
    with h5py.File(DATA, "w") as file:
        for name, values in rows.items():
            file[name] = np.array(values)


def jaxrl(*words: str) -> str:
    """What `jaxrl control` prints."""
    command = [sys.executable, "-m", "jaxrl.launch.cli", "control", *words]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def judge(episodes: int = 10) -> list[float]:
    """Returns of the trained policy on the rig, with neither jaxrl's commands nor its data."""
    policy, env = control.load(RUN), rig.make()
    returns = []
    for episode in range(episodes):
        (observation, _), total, over = env.reset(seed=1000 + episode), 0.0, False
        while not over:
            observation, reward, terminal, timeout, _ = env.step(policy(observation))
            total, over = total + reward, terminal or timeout
        returns.append(total)
    return returns


if __name__ == "__main__":
    record()
    print(jaxrl("data", str(DATA)))
    train = ["iql", "--env", "rig:make", "--data", str(DATA), "--seeds", "3", "--points", "4"]
    train += ["--algorithm.steps", "6000", "--algorithm.temperature", "0.1"]
    print(jaxrl(*train, "--run-dir", str(RUN)))
    print(jaxrl("play", str(RUN), "--episodes", "10"))
    print(jaxrl("export", str(RUN), "runs/exported"))
    print(json.dumps({"returns": judge()}))
