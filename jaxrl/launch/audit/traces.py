"""Readers of recorded rollouts with token ids, as six tools write them.

| Format | A record |
|---|---|
| `verifiers` | a rollout: `trajectory`, a list of turns with `tokens`, beside `reward` |
| `atif` | a trajectory: `schema_version: ATIF-...`, `steps` with `metrics.completion_token_ids` |
| `tinker` | a datum: `model_input`, `loss_fn_inputs`; or a reply: `prompt`, `sequences` |
| `jaxrl` | a line of `RUN/rollouts/STEP.jsonl`, whose tokens are texts and are not scored |
| `flat` | a completion: `prompt_ids`, `completion_ids`, `logprobs` and the like (TRL, scripts) |
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrl.data.sources import records
from jaxrl.record import jsonl

Format = Literal["verifiers", "atif", "tinker", "jaxrl", "flat"]
Messages = Sequence[Mapping[str, Any]]


class ModelCall(NamedTuple):
    """One call of the model: P tokens were read, and T tokens follow."""

    prompt: tuple[int, ...]
    """[P] token ids; empty where they were not recorded."""
    tokens: tuple[int, ...]
    """[T] token ids."""
    logp: np.ndarray | None = None
    """[T] recorded log-probabilities, nats; NaN where a token has none. None: not recorded."""
    trained: np.ndarray | None = None
    """[T] bool, the tokens that the loss is over; None: all."""
    messages: Messages | None = None
    """The conversation that the prompt was rendered from."""
    tools: Sequence[Any] | None = None
    """Definitions of tools that the template was called with."""
    reply: str | None = None
    """The text of the completion."""


class Trace(NamedTuple):
    """One rollout: a completion, or an episode of several turns."""

    where: str
    """The file and the line or the number of the record."""
    turns: tuple[ModelCall, ...]
    group: str | None = None
    """Rollouts of one prompt have one group; None: none was recorded."""
    reward: float | None = None
    error: str = ""
    """Why sampling or scoring failed; empty: neither did."""
    advantage: float | None = None
    """None where none is recorded, or tokens have different ones."""
    versions: tuple[int, ...] = ()
    """Versions of the weights that the tokens were sampled with."""
    step: int | None = None
    """The version of the weights, or the training step, that the rollout was used in."""
    items: float | None = None
    """TRL's `num_items_in_batch`: what the sum over the tokens of a batch is divided by."""


class Unreadable(NamedTuple):
    """A record that is no rollout, or whose lists do not fit each other."""

    where: str
    why: str


def read(path: str) -> tuple[Format, list[Trace], list[Unreadable]]:
    """The rollouts of a file, whose format is recognised by its first record.

    Args:
      path: as in `jaxrl.data.sources.records.read`, or a `.json` file of one record.

    Raises:
      ValueError: the file cannot be read, has no record, or its first is of none of the formats.
    """
    rows, places = _rows(path)
    if not rows:
        raise ValueError(f"{path!r} has no record; name a file with at least one rollout")
    layout = _format(rows[0], places[0])
    traces: list[Trace] = []
    unreadable: list[Unreadable] = []
    for row, place in zip(rows, places, strict=True):
        try:
            traces += _READERS[layout](row, place)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            unreadable.append(Unreadable(place, _reason(error)))
    return layout, traces, unreadable


def _rows(path: str) -> tuple[Sequence[Mapping[str, Any]], list[str]]:
    """The records, and the place of each."""
    file = Path(path)
    if file.suffix == ".json" and file.is_file():
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError):
            content = None  # rows, one a line, or no JSON, which `records` says
        if isinstance(content, dict):
            return [content], [path]
    rows = records.read(path)
    return rows, [records.where(rows, index, path) for index in range(len(rows))]


def _format(row: Mapping[str, Any], place: str) -> Format:
    if str(row.get("schema_version", "")).startswith("ATIF"):
        return "atif"
    if "trajectory" in row:
        return "verifiers"
    if "loss_fn_inputs" in row or "sequences" in row:
        return "tinker"
    if "log_ratio" in row and "source" in row:
        return "jaxrl"
    if _name(row, _TOKENS):
        return "flat"
    raise ValueError(
        f"{place}: no rollout with token ids is recognised; its columns are {', '.join(row):.300}. "
        "A row has completion_ids and prompt_ids, or is one of verifiers, ATIF, Tinker or jaxrl "
        "(verifiers saves token ids with the state column `trajectory`)"
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


# Each list has the spellings of one thing, the usual one first.
_PROMPT = ("prompt_ids", "prompt_token_ids", "prompt_tokens", "input_ids")
_TOKENS = (
    "completion_ids", "completion_token_ids", "token_ids", "completion_tokens", "response_ids",
    "output_ids",
)  # fmt: skip
_LOGP = (
    "logprobs", "completion_logprobs", "sampling_per_token_logps", "old_per_token_logps",
    "log_probs", "rollout_log_probs", "logps", "logp",
)  # fmt: skip
_TRAINED = ("tool_mask", "env_mask", "loss_mask", "response_mask")
_REWARD = ("reward", "rewards", "score")
_ADVANTAGE = ("advantage", "advantages")
_GROUP = ("group", "group_id", "example_id", "problem_id", "prompt_id", "uid")
_ERROR = ("error", "exception")
_VERSION = ("version", "versions", "weight_version", "weight_versions", "policy_version")
_STEP = ("step", "global_step", "train_step", "trainer_step")


def _name(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of some columns that a record has a value in."""
    return next((name for name in names if not records.is_missing(row.get(name))), None)


def _value(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    name = _name(row, names)
    return None if name is None else row[name]


def _ids(value: Any, what: str) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = np.asarray(value)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"{what}={value!r:.80} is not a list of token ids")
    return tuple(int(token) for token in ids)


def _numbers(value: Any, count: int, what: str) -> np.ndarray | None:
    """[count] float64 of a list; None and null become NaN."""
    if value is None:
        return None
    values = [float("nan") if entry is None else _logp(entry, what) for entry in value]
    if len(values) != count:
        raise ValueError(f"{what} has {len(values)} entries for {count} tokens")
    return np.array(values, np.float64)


def _logp(entry: Any, what: str) -> float:
    """A number, alone or as `logprob` of an object, as OpenAI's format has it."""
    number = entry.get("logprob") if isinstance(entry, Mapping) else entry
    if number is None or not jsonl.is_number(number):
        raise ValueError(f"{what} has {entry!r:.60}, which is no number")
    return float(number)


def _mask(value: Any, count: int, what: str) -> np.ndarray | None:
    numbers = _numbers(value, count, what)
    return None if numbers is None else numbers > 0


def _number(value: Any, what: str) -> float | None:
    """A number; of a list with one value throughout, that value; None of any other list."""
    if value is None:
        return None
    if isinstance(value, Mapping):  # rewards by name
        value = [sum(_logp(part, what) for part in value.values())]
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = {_logp(entry, what) for entry in value}
        return numbers.pop() if len(numbers) == 1 else None
    return _logp(value, what)


def _integers(value: Any, what: str) -> tuple[int, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(int(_logp(entry, what)) for entry in values)


def _text(error: Any) -> str:
    """The words of an error, which some tools record as an object."""
    if not error:
        return ""
    return error if isinstance(error, str) else json.dumps(error, default=str)


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that rows of all tools have, where they are recorded."""
    step = _integers(_value(row, _STEP), "step")
    group = _value(row, _GROUP)
    return {
        "group": None if group is None else str(group),
        "reward": _number(_value(row, _REWARD), "reward"),
        "error": _text(_value(row, _ERROR)),
        "advantage": _number(_value(row, _ADVANTAGE), "advantage"),
        "versions": _integers(_value(row, _VERSION), "version"),
        "step": step[0] if step else None,
    }


def _flat(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A completion in a row. Padding, which `prompt_mask` and `completion_mask` mark, is left out.

    `completion_mask` marks padding if what it leaves out is at the end, else it is of the loss.
    """
    prompt = _ids(_value(row, _PROMPT), "prompt_ids")
    tokens = _ids(_value(row, _TOKENS), "completion_ids")
    logp = _numbers(_value(row, _LOGP), len(tokens), str(_name(row, _LOGP)))
    real_prompt = _mask(row.get("prompt_mask"), len(prompt), "prompt_mask")
    if real_prompt is not None:
        prompt = tuple(itertools.compress(prompt, real_prompt))
    trained = _mask(_value(row, _TRAINED), len(tokens), str(_name(row, _TRAINED)))
    real_tokens = _mask(row.get("completion_mask"), len(tokens), "completion_mask")
    if real_tokens is not None:
        length = int(np.flatnonzero(real_tokens)[-1]) + 1 if real_tokens.any() else 0
        trained = real_tokens if trained is None else trained & real_tokens
        tokens, trained = tokens[:length], trained[:length]
        logp = None if logp is None else logp[:length]
    group = {} if _value(row, _GROUP) is not None or not prompt else {"group": str(hash(prompt))}
    items = _number(row.get("num_items_in_batch"), "num_items_in_batch")
    messages = _conversation(row.get("prompt"))
    turn = ModelCall(prompt, tokens, logp, trained, messages, row.get("tools") or None)
    yield Trace(place, (turn,), **{**_common(row), **group}, items=items)


def _conversation(value: Any) -> Messages | None:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return value if is_list and all(isinstance(turn, Mapping) for turn in value) else None


def _reply(value: Any) -> str | None:
    """What the assistant wrote last, of a text, a message or messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = [value]
    for message in reversed(value or []):
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            return str(message["content"])
    return None


def _verifiers(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    turns = []
    for turn in row["trajectory"]:
        tokens = turn.get("tokens")
        if tokens is None:
            raise ValueError("a turn of `trajectory` has no tokens")
        ids = _ids(tokens.get("completion_ids"), "completion_ids")
        turns.append(
            ModelCall(
                _ids(tokens.get("prompt_ids"), "prompt_ids"),
                ids,
                _numbers(tokens.get("completion_logprobs"), len(ids), "completion_logprobs"),
                _mask(tokens.get("completion_mask"), len(ids), "completion_mask"),
                _conversation(turn.get("prompt")),
                row.get("tool_defs") or None,
                _reply(turn.get("completion")),
            )
        )
    yield Trace(place, tuple(turns), **_common(row))


def _atif(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    turns = []
    for step in row["steps"]:
        metrics = step.get("metrics") or {}
        ids = _ids(metrics.get("completion_token_ids"), "completion_token_ids")
        if step.get("source") != "agent" or not ids:
            continue
        turns.append(
            ModelCall(
                _ids(metrics.get("prompt_token_ids"), "prompt_token_ids"),
                ids,
                _numbers(metrics.get("logprobs"), len(ids), "logprobs"),
                reply=_reply(step.get("message")),
            )
        )
    if not turns:
        raise ValueError("no step of the agent has completion_token_ids")
    extra = row.get("extra") or {}
    yield Trace(place, tuple(turns), **_common({**extra, **row}))


def _tensor(value: Any) -> Any:
    return value["data"] if isinstance(value, Mapping) else value


def _chunks(value: Any) -> tuple[int, ...]:
    parts = value["chunks"] if isinstance(value, Mapping) else [{"tokens": value}]
    return tuple(itertools.chain.from_iterable(_ids(part["tokens"], "tokens") for part in parts))


def _tinker(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A datum, whose targets are its inputs one token later, or the sequences of a reply."""
    if "sequences" in row:
        prompt = _chunks(_value(row, ("prompt", *_PROMPT)) or [])
        for sequence in row["sequences"]:
            tokens = _ids(sequence["tokens"], "tokens")
            logp = _numbers(sequence.get("logprobs"), len(tokens), "logprobs")
            yield Trace(place, (ModelCall(prompt, tokens, logp),), **_common({**row, **sequence}))
        return
    tensors = {name: _tensor(value) for name, value in row["loss_fn_inputs"].items()}
    inputs = _chunks(row["model_input"])
    targets = _ids(tensors["target_tokens"], "target_tokens")
    if len(inputs) != len(targets) or inputs[1:] != targets[:-1]:
        raise ValueError("target_tokens are not the tokens of model_input, one later")
    logp = _numbers(tensors.get("logprobs"), len(targets), "logprobs")
    weights = _value(tensors, ("mask", "weights"))
    trained = _mask(weights, len(targets), "mask")
    advantages = _numbers(tensors.get("advantages"), len(targets), "advantages")
    if trained is None and logp is not None:
        trained = logp != 0  # an observation has a log-probability of exactly 0
    start = int(np.argmax(trained)) if trained is not None and trained.any() else 0
    turn = ModelCall(
        (*inputs[:1], *targets[:start]),
        targets[start:],
        None if logp is None else logp[start:],
        None if trained is None else trained[start:],
    )
    used = [] if advantages is None or trained is None else advantages[trained].tolist()
    fields = _common({key: value for key, value in row.items() if key != "loss_fn_inputs"})
    yield Trace(place, (turn,), **{**fields, "advantage": _number(used or None, "advantages")})


def _jaxrl(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A line of the log of rollouts, whose advantages are those of the tokens of the policy."""
    by_policy = [source == "policy" for source in row["source"]]
    of_policy = {
        name: list(itertools.compress(row[name], by_policy)) for name in ("advantage", "version")
    }
    fields = {**row, **of_policy, "group": f"{row['step']}/{row['group']}"}
    turn = ModelCall((), (), reply=row["completion"])
    # Weights of version n - 1 are those that step n begins with.
    yield Trace(place, (turn,), **{**_common(fields), "step": int(row["step"]) - 1})


_READERS = {
    "verifiers": _verifiers,
    "atif": _atif,
    "tinker": _tinker,
    "jaxrl": _jaxrl,
    "flat": _flat,
}
