"""What a method needs of the user's data, the flag that gives it, and whether a run has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxrl.config import Config
from jaxrl.data import tasks as library
from jaxrl.data.rewards import named
from jaxrl.data.sources import layouts
from jaxrl.data.types import Problem
from jaxrl.launch import recipes
from jaxrl.launch.method import Method, Need, lost, parameters
from jaxrl.launch.settings import short
from jaxrl.rollout import tasks
from jaxrl.run import assemble

FLAGS: dict[Need, str] = {
    "answer": "--answer-column NAME, the column of the reference answer",
    "solution": "--solution-column NAME, a column of texts that a policy could have written",
    "domains": "--domain-column NAME, a column whose values divide the rows",
    "harmful": "--wrapper-args.column NAME, a column that says whether a request is harmful",
    "facts": "--wrapper-args.column NAME, a column of known facts",
    "judge": "--reward judge?url=URL&model=NAME, --reward rubric:FILE.yaml, or --reward RUN of a "
    "reward model",
    "rewards": "--reward A --reward B, two rewards or more",
    "environment": "--env NAME or --env MODULE:FUNCTION, a task with turns",
    "parameters": "--env NAME or --env MODULE:FUNCTION, a task with the parameters that the "
    "method's stages set",
    "history": "--curriculum.history RUN or --bandit.history RUN, an earlier run on the same data",
    "task": "--task NAME, the recipe's own or one of yours: its reward is the method",
    "runs": "more than one run: `jaxrl merge` or an experiment puts runs of other recipes together",
}
"""Need to the flag that gives it."""
_OF_FILES = ("answer", "solution", "domains", "harmful", "facts", "judge", "rewards")
"""Needs whose flags are for data of the user's."""
ROWS = 100_000
"""Rows of a file that are looked at for a value, evenly spaced where the file has more."""


class Refused(ValueError):
    """A run would not train its recipe's method."""

    def __init__(self, message: str, needs: tuple[Need, ...] = ()) -> None:
        super().__init__(message)
        self.needs = needs
        """What the method lacks; empty: a setting takes it away, or cannot work with it."""


def titles(method: Method) -> list[str]:
    """What a method needs, with the names of parameters."""
    return [_title(need, method) for need in method.needs]


def _title(need: Need, method: Method) -> str:
    return f"{need} ({', '.join(parameters(method))})" if need == "parameters" else need


def flag(need: Need, config: Config, method: Method) -> str:
    """The flag that gives a run what its method needs.

    Args:
      need: one of the method's.
      config: of the run.
      method: of its recipe.
    """
    if need in _OF_FILES and "file" not in _tasks(config):
        return f"--data FILE with {FLAGS[need]}"
    if need != "parameters":
        return FLAGS[need]
    recipe = config.recipe
    named_parameters = " and ".join(parameters(method))
    task = recipes.load(recipe).task if recipe in recipes.names() else ""
    like = f", as --env {task} has" if task else ""
    return f"--env MODULE:FUNCTION, a task with the parameters {named_parameters}{like}"


def missing(config: Config, method: Method) -> list[Need]:
    """What a method needs and a run does not have.

    Args:
      config: of the run, with a task or data.
      method: of its recipe.

    Raises:
      ValueError: the task or its data cannot be read.
    """
    return [need for need in method.needs if not _HAS[need](config, method)]


def check(config: Config, *, strict: bool = False) -> list[str]:
    """Refuse a method without what it needs.

    Args:
      config: of the run.
      strict: whether a setting that takes the method's mechanism away is refused too.

    Returns:
      Lines on settings that take it away.

    Raises:
      Refused: the method needs something else, naming the flag.
    """
    method = recipes.method_of(config)
    if method is None or recipes.is_example(config):
        return []
    if absent := missing(config, method):
        names = " and ".join(_title(need, method) for need in absent)
        flags = "; and ".join(flag(need, config, method) for need in absent)
        raise Refused(f"{config.recipe} needs {names}: {flags}", tuple(absent))
    lines = [
        f"{config.recipe}: {change} takes part of the method away"
        for change in lost(config, method)
    ]
    if strict and lines:
        raise Refused(f"{lines[0]}, which needs its own setting; leave it out, or --strict")
    return lines


def _specs(config: Config) -> list[named.Spec]:
    first = next((domain.args for domain in config.domains.values()), config.task_args)
    return named.read(str(first.get("rewards", "[]")))


def _tasks(config: Config) -> set[str]:
    return {domain.task for domain in config.domains.values()} or {config.task}


def _any_problem(config: Config, has: Callable[[Problem], bool]) -> bool:
    """Whether a problem of the train split has something, up to the first that has.

    Of a file at most `ROWS` rows are looked at; of a task without a size, the first problem.
    """
    task = tasks.of_config(config)
    size = task.sizes.get("train", 1)
    places = range(0, size, math.ceil(size / ROWS) or 1)
    return any(has(task.problem("train", config.seed, place)) for place in places)


def _has_answer(config: Config, method: Method) -> bool:
    return _any_problem(config, lambda problem: problem.answer is not None)


def _has_column(config: Config, method: Method) -> bool:
    column = config.wrapper_args.get("column") or (method.wrapper_args or {}).get("column", "")

    def has(problem: Problem) -> bool:
        row = problem.metadata.get("row", problem.metadata)
        return layouts.value(row, column) is not None

    return not column or _any_problem(config, has)


def _has_judge(config: Config, method: Method) -> bool:
    judged = any(spec.function in named.JUDGED for spec in _specs(config))
    return judged or bool({"judge", "reward_model"} & config.extensions.keys())


def _has_rewards(config: Config, method: Method) -> bool:
    return len(_specs(config)) > 1


def _has_turns(config: Config, method: Method) -> bool:
    task = tasks.of_config(config)
    return all(part.turns is not None for part in task.parts.values() or [task])


def _has_parameters(config: Config, method: Method) -> bool:
    return all(
        library.takes(name, parameter)
        for name in _tasks(config)
        for parameter in parameters(method)
    )


_HAS: dict[Need, Callable[[Config, Method], bool]] = {
    "answer": _has_answer,
    "solution": lambda config, method: tasks.of_config(config).gold is not None,
    "domains": lambda config, method: len(config.domains) > 1,
    "harmful": _has_column,
    "facts": _has_column,
    "judge": _has_judge,
    "rewards": _has_rewards,
    "environment": _has_turns,
    "parameters": _has_parameters,
    "history": lambda config, method: bool(config.curriculum.history or config.bandit.history),
    "task": lambda config, method: not {"", "file"} & _tasks(config),
    "runs": lambda config, method: False,
}


def needs_of(name: str) -> list[Need]:
    """What the method of a recipe needs."""
    method = recipes.method_in(recipes.module(name))
    return [] if method is None else list(method.needs)


def verdict(config: Config) -> str:
    """Whether a run would train its recipe's method, after all checks before weights are loaded.

    Args:
      config: of the run.

    Returns:
      A line that says so.

    Raises:
      Refused: it would not: the method needs something else, or the config cannot work.
      ValueError: it has no model, or nothing to train on.
    """
    short.check_named(config)
    try:
        check(config, strict=True)
        assemble.assemble(config)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"{config.recipe} needs other settings: {error}") from error
    return f"{config.recipe}: the method is kept"


def for_file(path: str) -> list[dict[str, Any]]:
    """One object a method: `name`, `summary`, and what is `missing` in a file of prompts.

    Args:
      path: of the file.

    Raises:
      ValueError: it cannot be read.
    """
    out = []
    for row in recipes.rows():
        method = recipes.method_in(recipes.module(str(row["name"])))
        if method is None:
            continue
        config = recipes.load(str(row["name"]), "any")
        task_args = {"path": path, "rewards": named.to_json([named.parse("none")])}
        absent = missing(short.on_file(config, task_args, {}), method)
        out.append({"name": row["name"], "summary": row["summary"], "missing": absent})
    return out
