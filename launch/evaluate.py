"""`jaxrl eval RUN_OR_MODEL [--task NAME] [--k 8] [flags]`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from data.scoring import open_pool
from jaxrl import config as configs
from jaxrl import evaluate, mesh, policy, storage, tasks
from jaxrl.config import Config
from launch import flags
from launch.cli import REFUSALS, refused


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """An evaluation. What is not given comes from the run, if it is one that is evaluated."""

    task: str = ""
    """Name of the task; needed for a model."""
    task_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task, e.g. --task-args.digits 3."""
    split: str = "test"
    problems: int = 256
    k: int = 1
    """Samples a problem: pass@1, unbiased pass@k and majority vote."""
    temperature: float | None = None
    """None: greedy for k = 1, else the run's own, or 1."""
    max_new_tokens: int | None = None
    chat: bool | None = None
    """Wrap prompts with the model's chat template; None: as the run did, or where there is one."""
    score_workers: int = 2
    """Processes that score; 0 scores in this process, with no time limit."""
    seed: int = 0
    """Of the problems and of the sampling."""
    json: bool = False
    """Print the figures as one JSON object."""


def main(argv: list[str]) -> int:
    """Evaluate a packaged model, a model directory or a run."""
    usage, what = "jaxrl eval RUN_OR_MODEL", "a run, a model or its directory"
    try:
        name, settings = flags.named(EvaluateConfig(), argv, usage=usage, what=what)
        figures = measure(name, settings)
    except REFUSALS as error:
        return refused(error)
    if settings.json:
        print(json.dumps(figures))
        return 0
    table = Table("figure", "value", "95% interval")
    for figure, value in figures.items():
        if not figure.endswith(("/low", "/high")):
            low, high = figures.get(f"{figure}/low"), figures.get(f"{figure}/high")
            interval = f"{low:.3f} - {high:.3f}" if low is not None else ""
            table.add_row(figure, f"{value:.4g}", interval)
    Console().print(table)
    return 0


def measure(name: str, settings: EvaluateConfig) -> dict[str, float]:
    """The figures of `jaxrl.evaluate.figures`.

    Raises:
      ValueError: a request that cannot be served, such as a model without a task.
    """
    config = resolve(name, settings)
    temperature = settings.temperature
    if temperature is None:
        temperature = 0.0 if settings.k == 1 else config.rollout.temperature
    task = tasks.named(config)
    task.check_split(settings.split)
    source = dataclasses.replace(policy.named(name), compute_dtype=config.compute_dtype)
    model, tokenizer = policy.describe(source)
    keep = policy.keeps(tokenizer, config.rollout)
    held_out = evaluate.problems(task, settings.split, settings.problems, settings.seed, keep)
    if config.rollout.chat and settings.chat is None and not policy.is_run(name):
        chat = tokenizer.chat is not None and held_out[0].messages is not None
        config = _with_rollout(config, chat=chat)
    # Compiled for the longest prompt that is there, not for the longest allowed.
    longest = max(len(policy.encode_prompt(tokenizer, config.rollout, p)) for p in held_out)
    config = _with_rollout(config, max_prompt_tokens=longest)
    the_mesh = mesh.make(config.mesh)
    with (
        jax.set_mesh(the_mesh),
        open_pool(
            task.name,
            task.params,
            workers=settings.score_workers,
            time_limit_s=config.score_seconds,
        ) as pool,
    ):
        params = policy.first_params(source, model, the_mesh)
        figures, _ = evaluate.evaluate(
            policy.Policy(model, params, tokenizer),
            policy.sampling_params(params, config.compute_dtype),
            held_out,
            pool,
            config.rollout,
            config.sampler,
            k=settings.k,
            temperature=temperature,
            seed=settings.seed,
        )
    return figures


def resolve(name: str, settings: EvaluateConfig) -> Config:
    """The run's config, or the defaults for a model, with what the settings override."""
    if policy.is_run(name):
        config = configs.load(storage.locate(name) / "config.json")
    elif not settings.task:
        raise ValueError(f"{name!r} is not a run, so say what to evaluate it on: --task NAME")
    else:
        config = _with_rollout(Config(), chat=True, max_prompt_tokens=1024, max_new_tokens=512)
    if settings.task and settings.task != config.task:
        config = dataclasses.replace(config, task=settings.task, task_args={}, domains={})
    config = dataclasses.replace(config, task_args=config.task_args | settings.task_args)
    given = {"chat": settings.chat, "max_new_tokens": settings.max_new_tokens}
    return _with_rollout(config, **{k: v for k, v in given.items() if v is not None})


def _with_rollout(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **changes))
