"""The task of a run: the one that its config names, or the mixture of its domains."""

from __future__ import annotations

import json

from jaxrl.config import Config
from jaxrl.data import tasks
from jaxrl.data.types import Task


def named(config: Config) -> Task:
    """What makes a run's problems and judges them.

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
