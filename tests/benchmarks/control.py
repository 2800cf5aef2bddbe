"""Control against stable-baselines3 and sbx: return after the same steps, and seconds for them.

    python -m tests.benchmarks.control --tasks sac td3 dqn ppo --peer-seeds 1

The same environment (Gymnasium's Pendulum-v1 or CartPole-v1, ours being the same dynamics), steps
with the warm-up among them, network sizes, batch sizes, learning rates, updates a step, target
rates and exploration. Ours trains all seeds in one program, from an empty compilation cache and
then again from a filled one; the others train one seed after the other. A task's systems follow
one another, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from typing import Any

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
        {
            **OFF_POLICY, "learning_starts": 500, "train_freq": 1, "gradient_steps": 1,
            "noise": 0.1,
        },
    ),
    "dqn": Task(
        "dqn", "cartpole", "CartPole-v1", 20_000, {},
        {
            **OFF_POLICY, "learning_rate": 5e-4, "tau": 0.01, "learning_starts": 1000,
            "train_freq": 2, "gradient_steps": 1, "target_update_interval": 2,
            "exploration_fraction": 0.2,
        },
    ),
    "ppo": Task(
        "ppo", "pendulum", "Pendulum-v1", 102_400, {"discount": 0.9},
        {
            "learning_rate": 1e-3, "n_steps": 64, "batch_size": 128, "n_epochs": 8, "gamma": 0.9,
            **SIZES,
        },
    ),
}  # fmt: skip


def ours(task: Task, seeds: int) -> tuple[list[float], float]:
    """Final returns of all seeds, trained side by side, and the seconds that took."""
    from jaxrl.control import algorithms, environments, train

    start = time.perf_counter()
    module, env = algorithms.load(task.ours), environments.get(task.env)
    config = dataclasses.replace(module.config(), **task.config)
    steps = task.steps - getattr(config, "warmup", 0)
    config = dataclasses.replace(config, steps=steps)
    *_, point = train.train(module.programs(env, config), env, seeds=range(seeds), points=1)
    return [float(r) for r in point.returns], time.perf_counter() - start


def theirs(package: str, name: str, task: Task, seeds: int) -> tuple[list[float], float]:
    """The same of stable-baselines3 or sbx, one seed after the other."""
    import importlib

    import gymnasium
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    kind = getattr(importlib.import_module(package), name.upper())
    settings = dict(task.theirs)
    noise = settings.pop("noise", None)
    if noise is not None:
        settings["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, noise))
    returns, seconds = [], 0.0
    for seed in range(seeds):
        start = time.perf_counter()
        env = make_vec_env(task.gym, n_envs=16 if name == "ppo" else 1, seed=seed)
        more = {"device": "cpu"} if package == "stable_baselines3" else {}
        model = kind("MlpPolicy", env, seed=seed, **settings, **more)
        model.learn(task.steps)
        seconds += time.perf_counter() - start
        evaluated = evaluate_policy(model, gymnasium.make(task.gym), n_eval_episodes=16, warn=False)
        returns.append(float(evaluated[0]))
    return returns, seconds


def main(
    tasks: tuple[str, ...] = tuple(TASKS),
    systems: tuple[str, ...] = ("ours", "sb3", "sbx"),
    seeds: int = 5,
    peer_seeds: int = 5,
) -> None:
    """Print a JSON line for each task and system; `for_5` are the seconds at five seeds."""
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    for task in tasks:
        with tempfile.TemporaryDirectory() as empty:
            jax.config.update("jax_compilation_cache_dir", empty)
            for system in (s for s in systems for _ in range(2 if s == "ours" else 1)):
                if system == "ours":
                    count, (returns, seconds) = seeds, ours(TASKS[task], seeds)
                else:
                    package = {"sb3": "stable_baselines3", "sbx": "sbx"}[system]
                    count = peer_seeds
                    returns, seconds = theirs(package, task, TASKS[task], peer_seeds)
                scaled = seconds if system == "ours" else seconds * 5 / count
                row = {"task": task, "system": system, "seeds": count, "for_5": round(scaled, 1)}
                row |= {"return": round(float(np.mean(returns)), 1)}
                print(json.dumps(row | {"each": np.round(returns, 1).tolist()}), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
