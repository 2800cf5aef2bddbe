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

DATA, RUN, SEEDS = Path("rig.hdf5"), Path("runs/rig"), 5


def controller(observation: dict, noise: float, rng: np.random.Generator) -> np.ndarray:
    """What ran on the rig so far: a hand-tuned rule, with as much noise as was left in."""
    (place, speed), (angle, rate) = observation["cart"], observation["pole"]
    force = 0.6 * place + 1.0 * speed + 12.0 * angle + 2.2 * rate
    return np.clip([force + noise * rng.normal()], -3.0, 3.0).astype(np.float32)


def record(episodes: int = 60) -> None:
    """Write the log: one array for each column, episode after episode."""
    rng, env = np.random.default_rng(0), rig.make()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    rows: dict[str, list] = {name: [] for name in names}
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over, noise = False, rng.choice([2.0, 3.0, 6.0])
        while not over:
            action = controller(observation, noise, rng)
            after, reward, terminal, timeout, _ = env.step(action)
            flat = np.concatenate([observation["cart"], observation["pole"]])
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


def judge(episodes: int = 5) -> list[float]:
    """Mean return of each seed's policy on the rig, with neither jaxrl's commands nor its data."""
    means = []
    for seed in range(SEEDS):
        policy, env, returns = control.load(RUN, seed=seed), rig.make(), []
        for episode in range(episodes):
            (observation, _), total, over = env.reset(seed=1000 + episode), 0.0, False
            while not over:
                observation, reward, terminal, timeout, _ = env.step(policy(observation))
                total, over = total + reward, terminal or timeout
            returns.append(total)
        means.append(float(np.mean(returns)))
    return means


if __name__ == "__main__":
    record()
    print(jaxrl("data", str(DATA)))
    train = ["iql", "--env", "rig:make", "--data", str(DATA), "--seeds", str(SEEDS)]
    train += ["--points", "3", "--episodes", "4", "--algorithm.steps", "3000"]
    print(jaxrl(*train, "--run-dir", str(RUN)))
    print(jaxrl("play", str(RUN), "--episodes", "5", "--point", "best", "--video", "rig.gif"))
    print(jaxrl("export", str(RUN), "runs/exported"))
    print(json.dumps({"returns": judge()}))
