"""Fine-tuning by jaxrl on given rows: `python -m tests.benchmarks.peers.ours_fine_tuning JOB`."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.launch import cli
from jaxrl.launch.settings import configs
from jaxrl.rollout.policy import Policy
from jaxrl.run import loop, offline
from jaxrl.run.context import Callbacks, Origin
from tests.benchmarks.peers import clock

JOB = clock.read_job()
ORIGIN = offline.origin


def unmeasured(config: Config, actor: Policy) -> Origin:
    """Where experience comes from, without evaluations: the peers make none."""
    return ORIGIN(config, actor)._replace(assess=lambda *_: {"loss": 0.0})


def config() -> Config:
    """What a user would set for this workload."""
    given = ["--data", JOB["data"], "--eval-data", JOB["data"], "--model", JOB["model"]]
    given += ["--data.batch-size", str(JOB["rows"]), "--steps", str(JOB["steps"])]
    given += ["--lr", str(JOB["learning_rate"]), "--run-dir", JOB["run_dir"]]
    given += ["--schedule", "constant", "--warmup-steps", "0", "--checkpoint.every", "100000"]
    given += ["--packing.row-length", str(JOB["row_length"])]
    given += ["--packing.micro-batch-tokens", str(JOB["row_length"]), *JOB["flags"]]
    return configs.resolve([JOB["recipe"], *given])[0]


def main() -> None:
    """Train, and write down what each step took."""
    steps: list[dict[str, float]] = []
    marks = [time.perf_counter()]
    first: list[float] = []

    def step(number: int, metrics: dict[str, float]) -> None:
        marks.append(time.perf_counter())
        first.append(time.time() - JOB["started"])
        steps.append({"step": marks[-1] - marks[-2], "loss": metrics["loss"]})
        clock.report(JOB, steps, first_step=first[0], matmul=rate, version=f"jax {jax.__version__}")

    offline.origin = unmeasured
    cli.few_arenas()  # as `jaxrl train` does
    square = jnp.ones((2048, 2048))
    multiply = jax.jit(lambda a: a @ a)
    rate = clock.best_rate(lambda: multiply(square).block_until_ready(), 2 * 2048**3)
    loop.train(config(), Callbacks(step=step))


if __name__ == "__main__":
    main()
