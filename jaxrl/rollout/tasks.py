"""The task of a run: the one that its config names, or the mixture of its domains."""

from __future__ import annotations

import json

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import dialogue as dialogues
from jaxrl.data import tasks
from jaxrl.data.dialogue import Dialogue
from jaxrl.data.tokenizers import Tokenizer
from jaxrl.data.types import Task


def named(config: Config) -> Task:
    """What makes a run's problems and scores them.

    Raises:
      ValueError: an unknown task or parameter.
    """
    if not config.domains:
        return tasks.get(config.task, **config.task_args)
    parts = {
        name: (
            domain.weight,
            domain.task,
            domain.args,
            {"max_new_tokens": domain.max_new_tokens} if domain.max_new_tokens else {},
        )
        for name, domain in config.domains.items()
    }
    return tasks.get("mixture", parts=json.dumps(parts))


def dialogue(task: Task, tokenizer: Tokenizer, rollout: RolloutConfig) -> Dialogue | None:
    """How the episodes of a task become tokens; None for a task without any.

    Raises:
      ValueError: the chat template cannot carry them exactly.
    """
    worlds = [each.turns for each in (task, *task.parts.values()) if each.turns is not None]
    if not worlds:
        return None
    roles = tuple(sorted({role for world in worlds for role in world.roles}))
    return dialogues.of(tokenizer, roles, chat=rollout.chat)
