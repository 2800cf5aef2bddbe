"""Files with a course: stages one after another as one run, see `jaxrl.run.course`.

    model: smollm2-135m
    lora: {rank: 8}
    course:
      - {recipe: sft, data: train.jsonl, steps: 200}
      - {recipe: dpo, data: pairs.jsonl, steps: 100}
      - {recipe: grpo, data: problems.jsonl, reward: number, steps: 50}

What stands beside `course` holds for each stage that does not say otherwise.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.launch.settings import short

_OF_ALL = ("run-dir", "out", "output-dir", "from", "fork")
"""Flags that the course has as a whole."""


def stages(values: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """The stages of a file, each with what holds for all; empty where it has no course.

    Args:
      values: of the file.
      path: of the file, for the message.

    Raises:
      ValueError: a stage without a recipe.
    """
    course = values.get("course")
    if not isinstance(course, list):
        return []  # also of the config.json of a run, whose stages are resolved already
    common = {name: value for name, value in values.items() if name not in ("course", "run_dir")}
    for number, stage in enumerate(course):
        if not isinstance(stage, Mapping) or "recipe" not in stage:
            raise ValueError(f"{path}: stage {number} of the course must name a recipe: {stage!r}")
    merged_stages = [_with_common(common, stage) for stage in course]
    if values.get("run_dir"):
        merged_stages[-1]["run_dir"] = values["run_dir"]
    return merged_stages


def _with_common(common: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a stage, and of its groups of fields, on top of those of all stages."""
    for name, alternative in (("steps", "epochs"), ("epochs", "steps")):
        if name in stage:  # both say how long a stage is
            common = {key: value for key, value in common.items() if key != alternative}
    return _merged(common, stage, Config())


def _merged(common: Mapping[str, Any], stage: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    values = {**common, **stage}
    for name in common.keys() & stage.keys():
        fields = getattr(kind, name.replace("-", "_"), None)
        both = common[name], stage[name]
        if dataclasses.is_dataclass(fields) and all(isinstance(group, Mapping) for group in both):
            values[name] = _merged(*both, fields)
    return values


def resolve(
    path: Path,
    stages: Sequence[Mapping[str, Any]],
    argv: Sequence[str],
    parse: Callable[[Mapping[str, Any], list[str]], tuple[Config, short.Options]],
) -> tuple[Config, short.Options]:
    """The config of a course: that of its last stage, with the others in `course`.

    Args:
      path: of the file; its name is the default run directory's.
      stages: from `stages`.
      argv: flags, which hold for every stage but for the run directory.
      parse: values of a stage and flags to its config.

    Raises:
      ValueError: naming the stage.
    """
    course_flags, rest = _divided(argv)
    stage_configs: list[Config] = []
    options = short.Options()
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        try:
            config, parsed = parse(stage, [*rest, *(course_flags if last else [])])
        except ValueError as error:
            raise ValueError(f"stage {number} of the course: {error}") from error
        options = parsed._replace(notes=(*options.notes, *parsed.notes))
        stage_configs.append(
            dataclasses.replace(
                config, model=stage_configs[0].model if stage_configs else config.model
            )
        )
    final = stage_configs[-1]
    if not final.run_dir:
        final = dataclasses.replace(final, run_dir=f"runs/{path.stem}-seed{final.seed}")
    # as they are read back from JSON, so that a continued run finds them equal
    before = {
        n: json.loads(json.dumps(configs.to_dict(c))) for n, c in enumerate(stage_configs[:-1])
    }
    return dataclasses.replace(final, course=before), options


def _divided(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags of the course as a whole, with their values, and the others."""
    course_flags, rest, queue = list[str](), list[str](), list(argv)
    while queue:
        token = queue.pop(0)
        name, has_value, _ = token.removeprefix("--").partition("=")
        into = course_flags if name.replace("_", "-") in _OF_ALL else rest
        into.append(token)
        while not has_value and queue and not queue[0].startswith("--"):
            into.append(queue.pop(0))
    return course_flags, rest
