"""Training from Python: `jaxrl.train(jaxrl.recipes.grpo(model=..., data=..., reward=function))`."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.data.scoring import user_functions
from jaxrl.launch import cli, needs, progress
from jaxrl.launch.console import PlainConsole
from jaxrl.launch.settings import paths, short
from jaxrl.record import runs
from jaxrl.run import loop
from jaxrl.run.context import Callbacks
from jaxrl.training import companions

RewardLike = str | Callable[..., Any]
"""What `--reward` takes, or a function, see `jaxrl.data.scoring.user_functions`."""


class Result(NamedTuple):
    """What a run has come to."""

    directory: Path
    """Of the run; `jaxrl sample`, `jaxrl eval` and `jaxrl report` take it."""
    summary: dict[str, Any]
    """Figures before and after, steps, seconds; as in `summary.json`."""
    metrics: runs.Table
    """A column a metric, a row a step; `pandas.DataFrame(result.metrics)` takes it."""


def recipe(
    name: str,
    *,
    model: str | os.PathLike[str] = "",
    data: str | os.PathLike[str] = "",
    reward: RewardLike | Mapping[str, RewardLike] | Sequence[RewardLike] = (),
    prompt_column: str = "",
    answer_column: str = "",
    test_data: str | os.PathLike[str] = "",
    template: str = "",
    **fields: Any,
) -> Config:
    """The config of a recipe or algorithm with data and rewards of your own.

    A function that scoring processes cannot import, such as one of a notebook, scores in this
    process, where no time limit holds.

    Args:
      name: as in `jaxrl recipes`.
      model: see `Config.model`.
      data: a JSONL, CSV or Parquet file.
      reward: a function, a specification as of --reward, several of them, or by name.
      prompt_column, answer_column, test_data, template: see `jaxrl.data.tasks.file`.
      **fields: fields of the config; nested ones with a double underscore, as in
        `optimizer__learning_rate=1e-5`, or by a short flag's name, as in `lr=1e-5`.

    Raises:
      ValueError: no such recipe, field or reward.
    """
    from jaxrl.launch import recipes

    data_flags = {
        "data": data, "test-data": test_data, "prompt-column": prompt_column,
        "answer-column": answer_column, "template": template,
    }  # fmt: skip
    argv = [f"--{flag}={value}" for flag, value in data_flags.items() if os.fspath(value)]
    argv += [f"--reward={text}" for text in _rewards(reward)]
    argv += [f"--model={os.fspath(model)}"] if model else []
    before = recipes.load(name, os.fspath(model) or None)
    config, rest, _ = short.expand(before, argv)
    changes = {
        flag.removeprefix("--"): value for flag, _, value in (t.partition("=") for t in rest)
    }
    if policy := fields.get("objective__policy"):
        objective = companions.with_policy(config.objective, str(policy))
        config = dataclasses.replace(config, objective=objective)
    names = short.ALIASES | short.ROWS if config.data.kinds else short.ALIASES
    for field, value in {**changes, **fields}.items():
        flag = field.replace("__", ".").replace("_", "-")
        path = names.get(flag, field.replace("__", ".")).replace("-", "_")
        config = configs.replaced(config, path, value)
    config = recipes.refitted(config, before)
    if user_functions.SESSION in str(config.task_args.get("rewards", "")):
        config = dataclasses.replace(config, score_workers=0)
    return config


def train(
    config: Config | str,
    callbacks: Callbacks | None = None,
    *,
    quiet: bool = False,
    trust: bool = False,
) -> Result:
    """Run a config to its last step, or continue it in its directory.

    Args:
      config: from `jaxrl.recipes`, or the name of a recipe.
      callbacks: called during the run; None: progress on the console or in the notebook.
      quiet: no progress.
      trust: links in the run directory may lead out of it, as one to a larger disk does.

    Raises:
      ValueError: a config that cannot work.
      jaxrl.run.guards.Stopped: every score failed, or a guard stopped the run.
    """
    from jaxrl.launch import recipes

    config = recipes.load(config) if isinstance(config, str) else config
    short.check_named(config)
    for line in needs.check(config):
        warnings.warn(line, stacklevel=2)
    config = paths.with_whole_paths(config)
    cli.keep_compilations()
    if callbacks is not None or quiet:
        summary = loop.train(config, callbacks or Callbacks(), trust=trust)
    else:
        with progress.on_console(PlainConsole(), lambda: None, dtype=config.compute_dtype) as watch:
            summary = loop.train(config, watch, trust=trust)
    directory = loop.run_directory(config)
    return Result(directory, summary, runs.load_run(directory, texts=False).metrics)


def _rewards(rewards: Any) -> list[str]:
    """Rewards as --reward takes them."""
    if isinstance(rewards, str) or callable(rewards):
        rewards = [rewards]
    if isinstance(rewards, Mapping):
        return [f"{name}={_reward(reward)}" for name, reward in rewards.items()]
    return [_reward(reward) for reward in rewards]


def _reward(reward: RewardLike) -> str:
    return user_functions.keep(reward) if callable(reward) else reward
