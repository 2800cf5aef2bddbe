"""What servers and programs of others report, read strictly.

A value of another type is an error that names it. It is never converted: the text "1" is no reward,
and the text "false" does not end an episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jaxrl.data.types import is_reward


class WrongReply(RuntimeError):
    """A reply is not what its protocol says."""


def read_object(text: str | bytes, source: str) -> dict[str, Any]:
    """The JSON object that a text is.

    Args:
      text: of the reply.
      source: of it, for the error.

    Raises:
      WrongReply: it is no JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongReply(f"{source} is no JSON: {text!r:.200}") from error
    return as_object(value, source)


def as_object(value: Any, source: str) -> dict[str, Any]:
    """A value, if it is a JSON object.

    Raises:
      WrongReply: it is none.
    """
    if not isinstance(value, dict):
        raise WrongReply(f"{source} is {value!r:.200}, no JSON object")
    return value


def field(fields: Mapping[str, Any], name: str, source: str) -> Any:
    """The value of a field.

    Raises:
      WrongReply: there is none.
    """
    if name not in fields:
        raise WrongReply(f"{source} has no {name!r}, but {sorted(fields)!r:.200}")
    return fields[name]


def flag(value: Any, name: str) -> bool:
    """A value, if it is true or false.

    Raises:
      WrongReply: it is neither.
    """
    if not isinstance(value, bool):
        raise WrongReply(f"{name}={value!r:.100} is neither true nor false")
    return value


def number(value: Any, name: str) -> float:
    """A value, if it is a number that a reward may be.

    Raises:
      WrongReply: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_reward(value):
        raise WrongReply(f"{name}={_shown(value)} is no number that a reward may be")
    return float(value)


def _shown(value: Any) -> str:
    """A value for an error; Python writes no integer of very many digits."""
    return (
        "a number of many digits" if type(value) is int and abs(value) > 1e18 else f"{value!r:.100}"
    )


def verified_reward(reply: str) -> float:
    """The reward in the answer of a NeMo Gym server to `verify`.

    Raises:
      RuntimeError: there is none, or the server says that it judges its own failure.
    """
    fields = read_object(reply, "the answer to verify")
    if flag(fields.get("mask_sample") or False, "mask_sample"):
        why = fields.get("failure_reason") or fields.get("failure_kind")
        raise RuntimeError(f"verify answers mask_sample, so its reward is none: {why!r:.300}")
    return number(field(fields, "reward", "the answer to verify"), "reward")
