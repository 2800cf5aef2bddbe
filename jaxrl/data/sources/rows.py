"""Rows of a file to learn from: recognised, checked one by one, and some of them held out.

A row is one of eight kinds:

    messages     {"messages": [{"role": ..., "content": ...}, ...]}, and "tools" if there are any
    completion   {"prompt": ..., "completion": ...}
    preference   {"prompt": ..., "chosen": ..., "rejected": ...}
    ranking      {"prompt": ..., "ranking": [best, second, ...]}
    label        {"prompt": ..., "completion": ..., "label": true or false}
    stepwise     {"prompt": ..., "completions": [step, ...], "labels": [true or false, ...]}
    referenced   {"prompt": ..., "completions": [step, ...], "reference": [step, ...]}
    text         {"text": ...}

A prompt or an answer is a text or a list of messages. A preference without a prompt has two
conversations, whose common beginning is the prompt; it may have a `margin`, by which the chosen
answer is better than another pair's. Steps with a reference solution in place of labels get those
of `jaxrl.data.rewards.steps.aligned`. Other names of columns are recognised, see `COLUMNS`, or
given.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxrl.data.rewards.steps import aligned
from jaxrl.data.sources.numbered_lines import Bad, Chosen, read_numbered
from jaxrl.data.text.chat import Message

Kind = Literal[
    "messages", "completion", "preference", "ranking", "label", "stepwise", "referenced", "text"
]
Text = str | tuple[Message, ...]

KINDS: dict[Kind, tuple[str, ...]] = {
    "preference": ("chosen", "rejected"),
    "ranking": ("prompt", "ranking"),
    "stepwise": ("prompt", "completions", "labels"),
    "referenced": ("prompt", "completions", "reference"),
    "label": ("prompt", "completion", "label"),
    "messages": ("messages",),
    "completion": ("prompt", "completion"),
    "text": ("text",),
}
"""The columns that tell each kind, in the order in which they are looked for."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation"),
    "prompt": ("prompt", "question", "instruction", "problem", "query", "input"),
    "completion": ("completion", "response", "answer", "output", "solution"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "margin": ("margin",),
    "ranking": ("ranking", "ranked"),
    "label": ("label",),
    "completions": ("completions", "steps"),
    "labels": ("labels",),
    "reference": ("reference",),
    "text": ("text",),
    "tools": ("tools",),
}
"""Names that each column is recognised by, the first that is there."""

_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "function": "tool"}


class Row(NamedTuple):
    """One row: a prompt, and what was written to answer it."""

    id: str
    """FILE:LINE, or FILE:RECORD counted from 1 where the file has no lines."""
    prompt: Text
    """Empty in rows of messages, whose turns say who wrote them, and of text."""
    answers: tuple[Text, ...]
    """One; of a preference two, the chosen and the rejected; of a ranking all, best first; of
    stepwise labels the steps."""
    rewards: tuple[float, ...]
    """1 for what is to be learned, 0 for the rejected and the undesirable. Of a preference with a
    margin, the chosen answer has the margin more; a ranking goes from 1 to 0 in equal steps;
    stepwise labels have 1 for each good step."""
    tools: Any = None
    """JSON schemas for the chat template; None: none."""
    stepwise: bool = False
    """Whether the answers are the steps of one, in order."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a file, in its order. `rows[i]` reads one."""

    path: str
    kind: Kind
    columns: Mapping[str, str]
    """Of each column of the kind, its name in the file."""
    records: Sequence[Mapping[str, Any]]
    ids: Sequence[int]
    """Line or record of each, from 1."""
    keys: tuple[bytes, ...]
    """8 bytes each: a hash of the prompt, or of the whole row where it has none."""
    bad: tuple[Bad, ...]
    """Rows that were left out."""

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Row:
        where = f"{self.path}:{self.ids[index]}"
        return parse(self.records[index], self.kind, self.columns, where)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells these rows from others."""
        return hashlib.blake2b(b"".join(self.keys), digest_size=8).hexdigest()


def read(
    path: str,
    columns: Mapping[str, str] | None = None,
    *,
    bad: Literal["error", "skip"] = "error",
) -> Rows:
    """The rows of a file, each of which is read once and checked.

    Args:
      path: a `.jsonl`, `.json` (a list), `.csv`, `.tsv` or `.parquet` file, or another source of
        `jaxrl.data.sources.records.read`.
      columns: names in the file by the names of `COLUMNS`; the others are recognised.
      bad: `error` refuses the file at its first row that cannot be used; `skip` leaves them out.

    Raises:
      ValueError: no such file, a kind that is not recognised, a bad row, or no good one.
    """
    records, ids, broken = read_numbered(path)
    if bad == "error" and broken:
        raise _unusable(broken[0])
    if not len(records):
        raise ValueError(f"data.path={path!r} has no rows")
    kind, names = recognise(records[0], columns or {}, path)
    good, keys = array("Q"), list[bytes]()
    for index in range(len(records)):
        try:
            row = parse(records[index], kind, names, f"{path}:{ids[index]}")
        except ValueError as error:
            broken.append(Bad(f"{path}:{ids[index]}", str(error).partition(": ")[2]))
            if bad == "error":
                raise _unusable(broken[-1]) from error
            continue
        good.append(index)
        keys.append(_key(row))
    if not good:
        raise ValueError(f"data.path={path!r} has no row that can be used: {broken[0].why}")
    return Rows(
        path,
        kind,
        names,
        Chosen(records, good),
        array("Q", (ids[i] for i in good)),
        tuple(keys),
        tuple(sorted(broken, key=lambda each: int(each.id.rpartition(":")[2]))),
    )


def _unusable(row: Bad) -> ValueError:
    return ValueError(
        f"{row.id}: {row.why}; correct the row, or leave such rows out with --data.bad-rows skip"
    )


def recognise(
    record: Mapping[str, Any], columns: Mapping[str, str], path: str
) -> tuple[Kind, dict[str, str]]:
    """The kind of a record, and the name in the file of each of its columns.

    Args:
      record: the first of a file.
      columns: names that are given, see `read`.
      path: of the file, for the message.

    Raises:
      ValueError: none of the kinds, or a given name that the record lacks.
    """
    for column, name in columns.items():
        if column not in COLUMNS:
            raise ValueError(f"data.columns.{column}: no such column; known: {', '.join(COLUMNS)}")
        if name not in record:
            raise ValueError(
                f"data.columns.{column}={name!r}: {path} has no such column; it has "
                f"{', '.join(record)}"
            )
    found = dict(columns)
    for column, known in COLUMNS.items():
        name = next((name for name in known if name in record), None)
        if name is not None and column not in found and name not in columns.values():
            found[column] = name
    for kind, wanted in KINDS.items():
        if all(column in found for column in wanted):
            optional = {"messages": ("tools",), "preference": ("prompt", "margin", "tools")}
            own = (*wanted, *optional.get(kind, ("tools",)))
            return kind, {column: found[column] for column in own if column in found}
    known = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in KINDS.items())
    raise ValueError(
        f"{path} has the columns {', '.join(record)}, which is none of the kinds {known}; name its "
        "columns, as in --data.columns.prompt NAME --data.columns.completion NAME"
    )


def parse(record: Mapping[str, Any], kind: Kind, columns: Mapping[str, str], where: str) -> Row:
    """A record as a row.

    Raises:
      ValueError: a column is missing or of another form; the message begins with `where`.
    """

    def value(column: str) -> Any:
        name = columns[column]
        if record.get(name) is None:
            raise ValueError(f"{where}: {name!r} is missing; the row has {', '.join(record)}")
        return record[name]

    def text(column: str) -> Text:
        return _text(value(column), f"{where}: {columns[column]!r}")

    tools = record.get(columns["tools"]) if "tools" in columns else None
    if isinstance(tools, str) and tools:
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise ValueError(f"{where}: 'tools' is not JSON: {error}") from error
    if kind == "text":
        return Row(where, "", (text("text"),), (1.0,))
    if kind == "messages":
        turns = text("messages")
        if isinstance(turns, str) or not any(turn["role"] == "assistant" for turn in turns):
            raise ValueError(f"{where}: no message has the role assistant, so there is no answer")
        return Row(where, "", (turns,), (1.0,), tools or None)
    if kind == "preference":
        pair = (text("chosen"), text("rejected"))
        prompt = text("prompt") if "prompt" in columns else ""
        prompt, pair = _with_prompt(prompt, pair, where)
        margin = _number(value("margin"), where) if "margin" in columns else 0.0
        return Row(where, prompt, pair, (1.0 + margin, 0.0), tools or None)
    if kind == "ranking":
        answers = _several(value("ranking"), f"{where}: {columns['ranking']!r}", least=2)
        worst = len(answers) - 1
        given = tuple((worst - place) / worst for place in range(len(answers)))
        return Row(where, text("prompt"), answers, given, tools or None)
    if kind in ("stepwise", "referenced"):
        steps = _steps(value("completions"), f"{where}: {columns['completions']!r}")
        if kind == "referenced":
            wanted = _steps(value("reference"), f"{where}: {columns['reference']!r}")
            given = tuple(map(float, aligned(steps, wanted)))
            return Row(where, text("prompt"), steps, given, tools or None, stepwise=True)
        labels = value("labels")
        if not isinstance(labels, list | tuple) or len(labels) != len(steps):
            raise ValueError(f"{where}: {columns['labels']!r} must have a label for each step")
        given = tuple(_label(label, where) for label in labels)
        return Row(where, text("prompt"), steps, given, tools or None, stepwise=True)
    row = Row(where, text("prompt"), (text("completion"),), (1.0,), tools or None)
    return row if kind == "completion" else row._replace(rewards=(_label(value("label"), where),))


def _with_prompt(prompt: Text, pair: tuple[Text, Text], where: str) -> tuple[Text, tuple]:
    """The prompt of a preference and its answers without it."""
    chosen, rejected = pair
    if chosen == rejected:
        raise ValueError(f"{where}: chosen and rejected are equal")
    if isinstance(chosen, str) or isinstance(rejected, str):
        if not prompt or type(chosen) is not type(rejected):
            raise ValueError(
                f"{where}: a preference of texts needs a prompt, and both answers as texts"
            )
        return prompt, pair
    given = 0
    while given < min(len(chosen), len(rejected)) and chosen[given] == rejected[given]:
        given += 1
    if isinstance(prompt, str) and not prompt and not given:
        raise ValueError(f"{where}: the conversations have no common beginning, so no prompt")
    # conversations that repeat their prompt are as good as those that do not
    repeated = given and (not prompt or _said(chosen[:given]) == _said(prompt))
    if not repeated:
        return prompt, pair
    return chosen[:given], (chosen[given:], rejected[given:])


def _said(text: Text) -> list[str]:
    """What is said in a prompt, without its form."""
    return [text] if isinstance(text, str) else [str(turn["content"]) for turn in text]


def _several(value: Any, where: str, *, least: int) -> tuple[Text, ...]:
    """A list of answers, or of steps."""
    if not isinstance(value, list | tuple) or len(value) < least:
        raise ValueError(f"{where} is {value!r:.60}, and must be a list of {least} or more")
    return tuple(_text(each, where) for each in value)


def _steps(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts."""
    steps = _several(value, where, least=1)
    if not all(isinstance(step, str) for step in steps):
        raise ValueError(f"{where} must hold texts")
    return steps


def _number(value: Any, where: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: margin={value!r} must be a number") from None
    if not 0 <= found < math.inf:
        raise ValueError(f"{where}: margin={value!r} must be 0 or more, and finite")
    return found


def _label(value: Any, where: str) -> float:
    known = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
    label = known.get(str(value).strip().lower())
    if label is None:
        raise ValueError(f"{where}: label={value!r} must be true or false")
    return label


def _text(value: Any, where: str) -> Text:
    if isinstance(value, str):
        if not value:
            raise ValueError(f"{where} is empty")
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{where} is {value!r:.60}, neither a text nor a list of messages")
    return tuple(_message(turn, where) for turn in value)


def _message(turn: Any, where: str) -> Message:
    if isinstance(turn, Mapping) and "from" in turn and "value" in turn:
        turn = {"role": _ROLES.get(turn["from"], turn["from"]), "content": turn["value"]}
    if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
        raise ValueError(f"{where} holds {turn!r:.60}, which is no message with a role")
    kept = {name: value for name, value in turn.items() if value is not None}
    if not isinstance(kept.get("content", ""), str | list) or not kept.keys() & {
        "content",
        "tool_calls",
    }:
        raise ValueError(f"{where} holds a message of {turn['role']} without content")
    return {"content": "", **kept}


def _key(row: Row) -> bytes:
    contents = row.prompt or row.answers
    plain = json.dumps(contents, sort_keys=True, default=str).encode(errors="surrogatepass")
    return hashlib.blake2b(plain, digest_size=8).digest()


def divide(rows: Rows, share: float, most: int) -> tuple[list[int], list[int]]:
    """Rows to train on, and rows to hold out: those with the lowest hashes of their prompts.

    Rows of one prompt stay together. What is held out does not depend on the order of the rows.

    Args:
      rows: of a file.
      share: of the prompts that is held out, at least one; above 0 and below 1.
      most: prompts to hold out.

    Raises:
      ValueError: a share out of range, or one prompt alone.
    """
    if not 0 < share < 1:
        raise ValueError(f"data.eval_share={share}: must lie above 0 and below 1")
    prompts = sorted(set(rows.keys))
    if len(prompts) < 2:
        raise ValueError(
            f"data.path={rows.path!r} has one prompt, so none can be held out; name other rows to "
            "evaluate on with --eval-data FILE"
        )
    count = min(max(1, round(share * len(prompts))), most, len(prompts) - 1)  # one is trained on
    held = set(prompts[:count])
    train = [i for i, key in enumerate(rows.keys) if key not in held]
    return train, [i for i, key in enumerate(rows.keys) if key in held]
