"""Values of recorded rows: the names that tools give a thing, and their forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.data.sources import records
from jaxrl.record import jsonl

# Each list has the spellings of one thing, the usual one first.
PROMPT = ("prompt_ids", "prompt_token_ids", "prompt_tokens", "input_ids")
TOKENS = (
    "completion_ids", "completion_token_ids", "token_ids", "completion_tokens", "response_ids",
    "output_ids",
)  # fmt: skip
LOGP = (
    "logprobs", "completion_logprobs", "sampling_per_token_logps", "old_per_token_logps",
    "log_probs", "rollout_log_probs", "logps", "logp",
)  # fmt: skip
TRAINED = ("tool_mask", "env_mask", "loss_mask", "response_mask")
REWARD = ("reward", "rewards", "score")
ADVANTAGE = ("advantage", "advantages")
GROUP = ("group", "group_id", "example_id", "problem_id", "prompt_id", "uid")
ERROR = ("error", "exception")
VERSION = ("version", "versions", "weight_version", "weight_versions", "policy_version")
STEP = ("step", "global_step", "train_step", "trainer_step")


def name_in(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of some columns that a record has a value in."""
    return next((name for name in names if not records.is_missing(row.get(name))), None)


def tokens_in(row: Mapping[str, Any], names: Sequence[str]) -> tuple[int, ...] | None:
    """The tokens of the first of some columns that has some; None: none has.

    A number is a count, as `completion_tokens` is in records of OpenAI's API.
    """
    name = name_in({name: row.get(name) for name in names if not is_count(row.get(name))}, names)
    return None if name is None else token_ids(row[name], name)


def is_count(value: Any) -> bool:
    """Whether a value is one number and no list."""
    return jsonl.is_number(value)


def value(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """What the first of some columns that has a value has; None: none has one."""
    name = name_in(row, names)
    return None if name is None else row[name]


def token_ids(value: Any, what: str) -> tuple[int, ...]:
    """The tokens of a list. A ValueError where it is none."""
    if value is None:
        return ()
    try:
        ids = np.asarray(value)
    except ValueError:  # lists of different lengths
        ids = np.empty((0, 0))
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"{what}={value!r:.80} is not a list of token ids")
    return tuple(int(token) for token in ids)


def numbers(value: Any, count: int, what: str) -> np.ndarray | None:
    """[count] float64 of a list, in which null becomes NaN; None without a list or in an empty one.

    It may be the `content` of an object, as OpenAI's format has it.
    """
    value = value.get("content") if isinstance(value, Mapping) else value
    if value is None or (len(value) == 0 < count):
        return None
    values = [float("nan") if entry is None else logp(entry, what) for entry in value]
    if len(values) != count:
        raise ValueError(f"{what} has {len(values)} entries for {count} tokens")
    return np.array(values, np.float64)


def logp(entry: Any, what: str) -> float:
    """A number, alone or as `logprob` of an object, as OpenAI's format has it."""
    number = entry.get("logprob") if isinstance(entry, Mapping) else entry
    if number is None or not jsonl.is_number(number):
        raise ValueError(f"{what} has {entry!r:.60}, which is no number")
    return float(number)


def mask(value: Any, count: int, what: str) -> np.ndarray | None:
    """[count] bool of a list of numbers, true where one is above 0."""
    marks = numbers(value, count, what)
    return None if marks is None else marks > 0


def number(value: Any, what: str) -> float | None:
    """A number; of a list with one value throughout, that value; None of any other list."""
    if value is None:
        return None
    if isinstance(value, Mapping):  # rewards by name
        value = [sum(logp(part, what) for part in value.values())]
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = {logp(entry, what) for entry in value}
        return numbers.pop() if len(numbers) == 1 else None
    return logp(value, what)


def integers(value: Any, what: str) -> tuple[int, ...]:
    """Whole numbers of a list, or of one number."""
    if value is None:
        return ()
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(int(logp(entry, what)) for entry in values)


def text(error: Any) -> str:
    """The words of an error, which some tools record as an object."""
    if not error:
        return ""
    return error if isinstance(error, str) else json.dumps(error, default=str)


def common(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that rows of all tools have, where they are recorded."""
    step = integers(value(row, STEP), "step")
    group = value(row, GROUP)
    if group is not None and step:  # a prompt is sampled again in a later step
        group = f"{group} of step {step[0]}"
    return {
        "group": None if group is None else str(group),
        "reward": number(value(row, REWARD), "reward"),
        "error": text(value(row, ERROR)),
        "advantage": number(value(row, ADVANTAGE), "advantage"),
        "versions": integers(value(row, VERSION), "version"),
        "step": step[0] if step else None,
    }
