"""Courses: stages one after another as one run, such as fine-tuning, preferences, then RL.

Every stage is a run of its own in RUN/stages/N, and the last stage is the run itself, in RUN. So
each is checkpointed, continues bit for bit and is shown as any other run, and what reads a run
reads a course: its result is that of the last stage. A finished stage has a summary and is not run
again; an interrupted one continues. Stages share no state but the parameters of the one before,
which are on disk, so an interruption between stages is no special case.

A stage starts from the last language model before it, its adapters merged. A reward model that a
stage has trained is the reward of the stages after it that sample, unless they name their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxrl import config as configs
from jaxrl import json_file
from jaxrl.config import Config, conflicts
from jaxrl.mesh import distributed
from jaxrl.record import rundir, storage
from jaxrl.run import assemble
from jaxrl.run.context import Callbacks

_SHOWN = ("recipe", "steps", "seconds", "eval")
"""What a summary says of each stage before."""

Train = Callable[[Config, Callbacks], dict[str, Any]]


def check(config: Config) -> None:
    """Refuse a stage that cannot work, before anything is compiled or written.

    Raises:
      ValueError: naming the stage.
    """
    if not config.course:
        return
    conflicts.check(config)
    planned = [*_stages(config), dataclasses.replace(config, course={})]
    for number, stage in enumerate(planned):
        try:
            assemble.assemble(dataclasses.replace(stage, model=planned[0].model))
        except ValueError as error:
            raise ValueError(f"stage {number} of the course: {error}") from error


def followed(config: Config, directory: Path, callbacks: Callbacks, train: Train) -> Config:
    """Run the stages that are not over yet; the config of the last one, from their result.

    Args:
      config: of a run; without a course it comes back as it is.
      directory: of the run, whose lock is held.
      callbacks: of each stage.
      train: `jaxrl.run.loop.train`.
    """
    if not config.course:
        return config
    rundir.save_config(directory, config)
    *before, last = _linked(config, directory)
    for number, stage in enumerate(before):
        if not _finished(storage.locate(stage.run_dir)):
            callbacks.note(f"stage {number} of {len(before) + 1}: {stage.recipe}")
            train(stage, callbacks)
    callbacks.note(f"stage {len(before)} of {len(before) + 1}: {config.recipe}")
    return last


@distributed.by_first
def _finished(directory: Path) -> bool:
    """Whether a stage has its summary; a damaged one is written anew."""
    return _has_summary(directory)


def _has_summary(directory: Path) -> bool:
    try:
        return all(name in json_file.read(directory / "summary.json") for name in _SHOWN)
    except (FileNotFoundError, ValueError):
        return False


def resolved(config: Config, directory: Path) -> Config:
    """The last stage alone, from what the stages before it have made.

    Args:
      config: of a run; without a course it comes back as it is.
      directory: of the run.
    """
    return _linked(config, directory)[-1] if config.course else config


def summary(directory: Path) -> dict[str, Any]:
    """What a summary says of the stages before: recipe, steps and figures of each.

    Args:
      directory: of the run.
    """
    files = directory.glob("stages/*/summary.json")
    pairs = ((storage.number(file.parent.name), file) for file in files)
    stages = sorted((n, file) for n, file in pairs if n is not None)
    summaries = [json_file.read(file) for _, file in stages if _has_summary(file.parent)]
    return (
        {"course": [{name: stage[name] for name in _SHOWN} for stage in summaries]}
        if summaries
        else {}
    )


def _stages(config: Config) -> Iterator[Config]:
    for number in sorted(config.course):
        yield configs.from_dict(Config, config.course[number])


def _linked(config: Config, directory: Path) -> list[Config]:
    """All stages in order, each with what those before it make; the last without its course."""
    model, rewards = config.model, tuple[str, ...]()
    linked: list[Config] = []
    for number, stage in enumerate(_stages(config)):
        place = str(directory / "stages" / str(number))
        model = model if linked else stage.model
        linked.append(dataclasses.replace(_from(stage, model, rewards), run_dir=place))
        if stage.labels:
            rewards = (place,)
        else:
            model = place
    return [*linked, _from(dataclasses.replace(config, course={}), model, rewards)]


def _from(stage: Config, model: str, rewards: tuple[str, ...]) -> Config:
    """A stage with what the stages before it have made."""
    stage = dataclasses.replace(stage, model=model)
    if not rewards or stage.data.kinds or "reward_model" in stage.extensions:
        return stage
    return configs.extended(stage, "reward_model", models=rewards)
