"""The task of a run: the one that its config names, or the mixture of its domains."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.environments import Arrays
from jaxrl.data.text import dialogue as dialogues
from jaxrl.data.text.dialogue import Dialogue
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.types import Task


def of_config(config: Config) -> Task:
    """What makes a run's problems and scores them.

    Raises:
      ValueError: an unknown task or parameter.
    """
    if not config.domains:
        name, args = _wrapped(config, config.task, config.task_args)
        return tasks.get(name, **args)
    parts = {
        name: (
            domain.weight,
            *_wrapped(config, domain.task, domain.args),
            {"max_new_tokens": domain.max_new_tokens} if domain.max_new_tokens else {},
        )
        for name, domain in config.domains.items()
    }
    return tasks.get("mixture", parts=json.dumps(parts))


def _wrapped(config: Config, name: str, args: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """A task and its parameters, with the method's reward around the task's own."""
    if not config.wrapper:
        return name, args
    return "wrapped", {
        "of": name, "args": json.dumps(dict(args)), "by": config.wrapper, **config.wrapper_args,
    }  # fmt: skip


def require_turns(config: Config, asked_by: str, *, of_all: bool = True, or_else: str = "") -> None:
    """Refuse a task that is answered in one turn.

    Args:
      config: of the run.
      asked_by: what needs turns, which the error names first.
      of_all: whether every part of a mixture must have turns, and not one of them alone.
      or_else: a second remedy.

    Raises:
      ValueError: it is answered in one turn.
    """
    task = of_config(config)
    parts = task.parts.values() or [task]
    single = [part.name for part in parts if part.turns is None]
    if single and (of_all or len(single) == len(parts)):
        raise ValueError(
            f"{asked_by}: task {single[0]!r} is answered in one turn; use a task with turns"
            f"{or_else}"
        )


def require_one_turn(config: Config, asked_by: str) -> None:
    """Refuse a task with turns.

    Args:
      config: of the run.
      asked_by: what cannot be done with turns, which the error names first.

    Raises:
      ValueError: it has turns, or a part of it.
    """
    task = of_config(config)
    played = [part.name for part in task.parts.values() or [task] if part.turns is not None]
    if played:
        raise ValueError(
            f"{asked_by}: task {played[0]!r} has turns; use a task that is answered in one, "
            "such as --data FILE"
        )


def require_sampling(config: Config, asked_by: str) -> None:
    """Refuse a run that learns from the rows of a file.

    Args:
      config: of the run.
      asked_by: what works on sampled completions; the error names it first.

    Raises:
      ValueError: it learns from a file.
    """
    if config.data.kinds:
        raise ValueError(
            f"{asked_by} with data.path={config.data.path!r}: this run learns from a file and "
            f"samples nothing; leave {asked_by} out"
        )


def require_no_selection(config: Config, asked_by: str) -> None:
    """Refuse dynamic sampling, curricula and bandits, which go by the task's rewards.

    Args:
      config: of the run.
      asked_by: what replaces these rewards once a batch is complete; the error names it first.

    Raises:
      ValueError: naming the field.
    """
    curricula = [config.curriculum, *(domain.curriculum for domain in config.domains.values())]
    chosen = next((curriculum.choose for curriculum in curricula if curriculum.choose), "")
    for field, value, off in (
        ("rollout.oversampling", config.rollout.oversampling, 1.0),
        ("curriculum.choose", chosen, ""),
        ("bandit.weigh", config.bandit.weigh, ""),
    ):
        if value != off:
            raise ValueError(
                f"{asked_by} with {field}={value!r}: it would select by rewards of the task, which "
                f"are replaced after that; set {field} to {off or 'empty'}"
            )


def require_one_agent(config: Config, asked_by: str) -> None:
    """Refuse a task whose episodes have several agents.

    Args:
      config: of the run.
      asked_by: what would mix their rewards, which the error names first.

    Raises:
      ValueError: they have several.
    """
    task = of_config(config)
    parts = list(task.parts.values()) or [task]
    agents = max(1 if part.turns is None else part.turns.agents for part in parts)
    if agents > 1:
        raise ValueError(
            f"{asked_by}: the task's episodes have {agents} agents, and it would give the reward "
            "of one to the turns of another; use objective.advantage=agent_advantages alone"
        )


def arrays(task: Task, tokenizer: Tokenizer, rollout: RolloutConfig) -> Arrays | None:
    """The environment of a task for the decode loop; None where it is not asked for.

    Raises:
      ValueError: it is asked for, and the task or the rollout cannot have it.
    """
    if not rollout.on_device:
        return None
    make = None if task.turns is None else task.turns.arrays
    wrong = {
        f"task {task.name!r} is not given as arrays": make is None,
        "rollout.chat=True": rollout.chat,
        f"rollout.system={rollout.system!r}": bool(rollout.system),
        "rollout.strip_reasoning=True": rollout.strip_reasoning,
        f"rollout.turn_tokens={rollout.turn_tokens}": rollout.turn_tokens < 1,
        f"rollout.max_turns={rollout.max_turns}": rollout.max_turns > 0,
    }
    if conflicts := [name for name, value in wrong.items() if value]:
        raise ValueError(
            "rollout.on_device needs an environment in arrays and turns of bounded length, with "
            "no chat template, no system message and no reasoning left out, but "
            f"{conflicts[0]}; set rollout.on_device to False"
        )
    assert make is not None
    return _arrays(make, tokenizer)


@functools.lru_cache(maxsize=4)
def _arrays(make: Callable[..., Arrays], tokenizer: Tokenizer) -> Arrays:
    """The same functions for the same arguments, so that they are compiled once."""
    return make(jnp, tokenizer.encode)


def dialogue(task: Task, tokenizer: Tokenizer, rollout: RolloutConfig) -> Dialogue | None:
    """How the episodes of a task become tokens; None for a task without any.

    Raises:
      ValueError: the chat template cannot carry them exactly.
    """
    worlds = [part.turns for part in (task, *task.parts.values()) if part.turns is not None]
    if not worlds:
        return None
    roles = tuple(sorted({role for world in worlds for role in world.roles}))
    offered = any(world.tools for world in worlds)
    return dialogues.of_model(tokenizer, roles, chat=rollout.chat, tools=offered)
