"""Control against stable-baselines3 and sbx: return after the same steps, and seconds for them.

    python -m tests.benchmarks.control sac ours sb3 sbx

The same environment (Gymnasium's Pendulum-v1 or CartPole-v1, ours being the same dynamics), steps,
network sizes, batch sizes, learning rates and updates a step. Ours trains all seeds in one program;
the others train one seed after the other. Compilation is counted; empty JAX's cache for a cold one.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, Literal

import numpy as np
import tyro

SIZES = {"policy_kwargs": {"net_arch": [64, 64]}}
OFF_POLICY = {"learning_rate": 1e-3, "batch_size": 128, "gamma": 0.99, "tau": 0.005, **SIZES}


@dataclasses.dataclass(frozen=True)
class Task:
    """What is compared."""

    ours: str
    env: str
    gym: str
    steps: int
    config: dict[str, Any]
    theirs: dict[str, Any]


TASKS = {
    "sac": Task(
        "sac", "pendulum", "Pendulum-v1", 5000, {"warmup": 500},
        {**OFF_POLICY, "learning_starts": 500, "train_freq": 1, "gradient_steps": 1},
    ),
    "td3": Task(
        "td3", "pendulum", "Pendulum-v1", 5000, {"warmup": 500},
        {**OFF_POLICY, "learning_starts": 500, "train_freq": 1, "gradient_steps": 1},
    ),
    "ppo": Task(
        "ppo", "pendulum", "Pendulum-v1", 102_400, {},
        {"learning_rate": 1e-3, "n_steps": 64, "batch_size": 128, "n_epochs": 8, **SIZES},
    ),
    "dqn": Task(
        "dqn", "cartpole", "CartPole-v1", 20_000, {},
        {
            **OFF_POLICY, "tau": 0.05, "learning_starts": 1000, "train_freq": 2,
            "gradient_steps": 1, "target_update_interval": 1, "exploration_fraction": 0.2,
        },
    ),
}  # fmt: skip


def ours(task: Task, seeds: int) -> tuple[list[float], float]:
    """Final returns of all seeds, trained side by side, and the seconds that took."""
    from jaxrl.control import environments, train
    from launch import control

    start = time.perf_counter()
    module, env = control.load(task.ours), environments.get(task.env)
    config = dataclasses.replace(module.config(), steps=task.steps, **task.config)
    *_, point = train.train(module.programs(env, config), env, seeds=range(seeds), points=1)
    return [float(r) for r in point.returns], time.perf_counter() - start


def theirs(package: str, name: str, task: Task, seeds: int) -> tuple[list[float], float]:
    """The same of stable-baselines3 or sbx, one seed after the other."""
    import importlib

    import gymnasium
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    kind = getattr(importlib.import_module(package), name.upper())
    returns, seconds = [], 0.0
    for seed in range(seeds):
        start = time.perf_counter()
        env = make_vec_env(task.gym, n_envs=16 if name == "ppo" else 1, seed=seed)
        more = {"device": "cpu"} if package == "stable_baselines3" else {}
        model = kind("MlpPolicy", env, seed=seed, **task.theirs, **more)
        model.learn(task.steps)
        seconds += time.perf_counter() - start
        judged = evaluate_policy(model, gymnasium.make(task.gym), n_eval_episodes=16, warn=False)
        returns.append(float(judged[0]))
    return returns, seconds


def main(
    task: Literal["sac", "td3", "ppo", "dqn"],
    systems: tuple[Literal["ours", "sb3", "sbx"], ...] = ("ours", "sb3", "sbx"),
    /,
    seeds: int = 5,
) -> None:
    """Print a JSON line a system."""
    for system in systems:
        if system == "ours":
            returns, seconds = ours(TASKS[task], seeds)
        else:
            package = {"sb3": "stable_baselines3", "sbx": "sbx"}[system]
            returns, seconds = theirs(package, task, TASKS[task], seeds)
        row = {"task": task, "system": system, "seeds": seeds, "seconds": round(seconds, 1)}
        row |= {"return": round(float(np.mean(returns)), 1), "each": np.round(returns, 1).tolist()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
