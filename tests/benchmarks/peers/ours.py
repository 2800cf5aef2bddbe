"""The loop of jaxrl on a benchmark's workload: `python -m tests.benchmarks.peers.ours JOB`."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.config import Config, RolloutConfig
from jaxrl.data.types import Problem, Score, Task
from jaxrl.launch import cli
from jaxrl.rollout import collect, programs
from jaxrl.rollout.policy import Policy
from jaxrl.run import loop, sampled
from jaxrl.run.context import Callbacks, Origin
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.sampling.work import Setup
from jaxrl.training.packing import PackingConfig
from jaxrl.types import Request
from tests.benchmarks.peers import clock

JOB = clock.read_job()
LENGTHS = JOB["lengths"]
TOKENS = sum(LENGTHS)


def task() -> Task:
    """The workload's prompts in their order."""

    def problem(split: str, seed: int, index: int) -> Problem:
        return Problem(str(index), JOB["prompts"][index % len(JOB["prompts"])], None)

    def reward(problem: Problem, text: str) -> Score:
        return Score(len(text) % 7 / 7)

    return Task("benchmark", problem, reward, pure=True)


REQUESTS, SETUP = programs.requests, collect.sampler_setup
ORIGIN = sampled.origin


def scheduled(ctx: programs.Context, problem: Problem, first_id: int) -> list[Request]:
    """A group's requests, each as long as the schedule says."""
    return [
        dataclasses.replace(request, max_new_tokens=LENGTHS[request.id % len(LENGTHS)])
        for request in REQUESTS(ctx, problem, first_id)
    ]


def without_stops(*args: Any, **given: Any) -> Setup:
    """The sampler's setup, in which no token ends a sequence."""
    return SETUP(*args, **given)._replace(stop_ids=())


def unmeasured(config: Config, actor: Policy) -> Origin:
    """Where experience comes from, without evaluations: the peers make none."""
    return ORIGIN(config, actor)._replace(assess=lambda *_: {"pass@1": 0.0})


def config() -> Config:
    """What a user would set for this workload."""
    group, longest = JOB["group_size"], max(LENGTHS)
    return Config(
        seed=0,
        steps=JOB["steps"],
        run_dir=JOB["run_dir"],
        model=JOB["model"],
        task="tests.benchmarks.peers.ours:task",
        rollout=RolloutConfig(
            prompts=len(LENGTHS) // group,
            group_size=group,
            max_prompt_tokens=JOB["max_prompt"],
            max_new_tokens=longest,
        ),
        sampler=SamplerConfig(slots=len(LENGTHS), bucket=16, chunk=32),
        packing=PackingConfig(row_length=JOB["row_length"], micro_batch_tokens=2048),
        score_workers=0,
        **JOB["options"],
    )


def main() -> None:
    """Train, and write down what each step took."""
    steps: list[dict[str, float]] = []
    first: list[float] = []

    def step(number: int, metrics: dict[str, float]) -> None:
        first.append(time.time() - JOB["started"])
        phases = {k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/")}
        extra = ("padding_share", "shared_share", "logp_gap_max", "compilations")
        assert metrics["tokens"] == TOKENS, metrics["tokens"]
        steps.append(phases | {k: metrics[k] for k in extra})
        clock.report(JOB, steps, first_step=first[0], matmul=rate, version=f"jax {jax.__version__}")

    programs.requests, collect.sampler_setup = scheduled, without_stops
    sampled.origin = unmeasured
    cli.few_arenas()  # as `jaxrl train` does
    square = jnp.ones((2048, 2048))
    multiply = jax.jit(lambda a: a @ a)
    rate = clock.best_rate(lambda: multiply(square).block_until_ready(), 2 * 2048**3)
    loop.train(config(), Callbacks(step=step))


if __name__ == "__main__":
    main()
