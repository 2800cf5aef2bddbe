"""What environments around another environment share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.environments import Message
from jaxrl.data.environments.play import LONGEST
from jaxrl.data.environments.tools import definition
from jaxrl.data.types import Task

_NOTE = 40
"""Characters, more than say how many were cut off."""


def task(name: str, args: str | Mapping[str, Any], *, words: str, symbols: bool) -> Task:
    """The task inside, which has an environment of one agent.

    Args:
      name: of the task.
      args: see `tasks.within`.
      words: that the environment around it writes, unless it uses symbols.
      symbols: whether it does.

    Raises:
      ValueError: it has no such environment, or its alphabet lacks the words.
    """
    inner_task = tasks.within(name, args)
    if inner_task.turns is None or inner_task.turns.agents > 1:
        raise ValueError(f"name={name!r}: choose a task that has an environment, of one agent")
    if not symbols and inner_task.alphabet is not None and set(words) - set(inner_task.alphabet):
        raise ValueError(f"symbols=False: {name!r} knows no words; set it to True")
    return inner_task


def extended(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The messages, with a text at the end of the last one; it is cut off where they get too long.

    The text may be the policy's, which could else void its episode.
    """
    *earlier, last = messages
    room = LONGEST - _NOTE - sum(len(message["content"]) for message in messages)
    return (*earlier, {**last, "content": last["content"] + definition.cut(text, max(room, 0))})
