"""A record of a file as a row: its prompt, its answers, and what each answer is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxrl.data.rewards.steps import aligned
from jaxrl.data.sources import layouts
from jaxrl.data.sources.layouts import Kind, Layout
from jaxrl.data.text import messages, prompts
from jaxrl.data.text.messages import Message, Text

_ANSWERS = ("answer", "completion", "response")
"""Keys of an answer that has a rank."""
_MESSAGE_KEYS = (
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "tools", "weight",
)  # fmt: skip
"""Keys of a message in the one form."""
LOOKED_AT = 200
"""Rows of a file whose messages are looked at for other keys."""


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
    variables: Mapping[str, Any] = {}
    """Of the chat template, for this row."""
    stepwise: bool = False
    """Whether the answers are the steps of one, in order."""


def further_keys(texts: Iterable[Text], path: str) -> list[str]:
    """What to say of keys of messages that have no known meaning, such as `id`; at most a line."""
    turns = [turn for text in texts if not isinstance(text, str) for turn in text]
    keys = dict.fromkeys(key for turn in turns for key in turn if key not in _MESSAGE_KEYS)
    if not keys:
        return []
    return [
        f"{path}: messages have the keys {', '.join(keys)}, which are read by a chat template that "
        "names them, and by nothing else"
    ]


class _Record(NamedTuple):
    """A record of a file, its columns by their names in `jaxrl.data.sources.layouts.COLUMNS`."""

    fields: Mapping[str, Any]
    columns: Mapping[str, str]
    where: str

    def get(self, column: str) -> Any:
        """The value of a column; None where the record lacks it."""
        cell = layouts.value(self.fields, self.columns[column]) if column in self.columns else None
        if not isinstance(cell, bytes):
            return cell
        try:
            return cell.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{self.label(column)} is {cell!r:.80}, which is not UTF-8") from None

    def value(self, column: str) -> Any:
        """The value of a column that must be there."""
        value = self.get(column)
        if value is None:
            name = self.columns[column]
            raise ValueError(
                f"{self.where}: {name!r} is missing; the row has {', '.join(self.fields)}"
            )
        return value

    def text(self, column: str) -> Text:
        """A text or messages."""
        return _text(self.value(column), self.label(column))

    def label(self, column: str) -> str:
        """The column of the record, for a message."""
        return f"{self.where}: {self.columns.get(column, column)!r}"


def parse(fields: Mapping[str, Any], layout: Layout, where: str) -> Row:
    """A record as a row.

    Raises:
      ValueError: a column is missing or of another form; the message begins with `where`.
    """
    record = _Record(fields, layout.columns, where)
    _check_always(record)
    tools, variables = _tools(record), _variables(record)
    kind = layout.kind
    if kind == "text":
        text = record.value("text")
        if isinstance(text, str) and not text:
            raise ValueError(f"{record.label('text')} is empty")
        if not isinstance(text, str):
            raise ValueError(f"{record.label('text')} holds messages; name it `messages`")
        return Row(where, "", (text,), (1.0,))
    if kind == "messages":
        turns = _with_context(_turns(record, "messages"), record)
        if not any(turn["role"] == "assistant" for turn in turns):
            raise ValueError(f"{where}: no message has the role assistant, so there is no answer")
        return Row(where, "", (turns,), (1.0,), tools, variables)
    if kind == "preference" and "ranking" not in layout.columns:
        return _preference(record, tools, variables)
    if kind == "label" and "prompt" not in layout.columns:
        turns = _with_context(_turns(record, "messages"), record)
        messages.require_answer(turns, where)
        label = (_label(record.value("label"), record),)
        return Row(where, turns[:-1], (turns[-1:],), label, tools, variables)
    prompt = _prompt(record)
    if kind == "prompt":
        return Row(where, prompt, (), (), tools, variables)
    if kind in ("ranking", "preference"):
        answers = _ranked(record)
        worst = len(answers) - 1
        rewards = tuple((worst - place) / worst for place in range(len(answers)))
        return Row(where, prompt, answers, rewards, tools, variables)
    if kind in ("stepwise", "referenced"):
        if not isinstance(prompt, str):
            raise ValueError(f"{record.label('prompt')} of steps must be a text")
        steps, labels = _labelled(record, kind)
        return Row(where, prompt, steps, labels, stepwise=True)
    prompt, answer = prompts.without_prompt(prompt, record.text("completion"), where)
    row = Row(where, prompt, (answer,), (1.0,), tools, variables)
    if kind == "completion":
        return row
    return row._replace(rewards=(_label(record.value("label"), record),))


def prompt_of(fields: Mapping[str, Any], layout: Layout, where: str) -> Text:
    """The prompt that a policy answers: of a record without answers.

    Messages carry the schemas of tools in their first one, see `jaxrl.data.text.messages`.

    Raises:
      ValueError: it is no text and no messages, or ends with an answer.
    """
    record = _Record(fields, layout.columns, where)
    _check_always(record)
    if variables := _variables(record):
        raise ValueError(
            f"{record.label('variables')} is {variables!r:.60}, and prompts have no variables of "
            "their own; give them to all with --rollout.template-args, and ignore the column with "
            "--data.columns.variables ''"
        )
    prompt, schemas = _prompt(record), _tools(record)
    if isinstance(prompt, str) and not schemas:
        return prompt
    turns = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
    if turns[-1]["role"] == "assistant":
        raise ValueError(
            f"{record.label('prompt')} ends with a message of assistant, an answer that the model "
            "would see; leave that message out, or learn from it with jaxrl train sft"
        )
    return ({**turns[0], "tools": schemas}, *turns[1:]) if schemas else turns


def _check_always(record: _Record) -> None:
    """Refuse what changes the meaning of a row and cannot be followed."""
    for column in layouts.MEDIA & record.columns.keys():
        names = (record.columns[column], *layouts.COLUMNS[column])
        if name := next((n for n in names if layouts.value(record.fields, n)), ""):
            raise messages.NotText(
                f"{record.where}: {name!r} is not empty, and only texts are read; leave the "
                f"column out with --data.columns.{column} ''"
            )
    weight = record.get("weight")
    if weight is not None and str(weight).strip() not in ("1", "1.0", ""):
        raise ValueError(
            f"{record.label('weight')} is {weight!r:.40}, and rows have no weights of their own; "
            "repeat rows or leave rows out, or ignore the column with --data.columns.weight ''"
        )


def _tools(record: _Record) -> Any:
    """Schemas of tools: of their column, or beside the messages of OpenAI's layout."""
    value, prompt = record.get("tools"), record.get("prompt")
    if not value and isinstance(prompt, Mapping):
        value = prompt.get("tools")
    return messages.tools(value, record.where)


def _variables(record: _Record) -> Mapping[str, Any]:
    value = record.get("variables")
    if isinstance(value, str) and value:
        value = layouts.parsed(value)
    if value and not isinstance(value, Mapping):
        raise ValueError(f"{record.label('variables')} is {value!r:.60}, and must be an object")
    return messages.without_nulls(value or {})


def _turns(record: _Record, column: str) -> tuple[Message, ...]:
    """A column of messages, which a table of texts holds as JSON."""
    value = record.value(column)
    return messages.conversation(layouts.parsed(value), record.label(column))


def _prompt(record: _Record) -> Text:
    """The prompt with its input, after the system message and the turns before it."""
    prompt, input_text = record.text("prompt"), record.get("input")
    if input_text is not None and not isinstance(input_text, str | int | float):
        raise ValueError(f"{record.label('input')} is {input_text!r:.60}, and must be a text")
    if input_text is not None and str(input_text).strip():
        if isinstance(prompt, str):
            prompt = f"{prompt}\n\n{input_text}"
        else:
            last = {**prompt[-1], "content": f"{prompt[-1]['content']}\n\n{input_text}"}
            prompt = (*prompt[:-1], last)
    if not {"system", "history"} & record.columns.keys():
        return prompt
    turns = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
    return _with_context(turns, record)


def _with_context(turns: tuple[Message, ...], record: _Record) -> tuple[Message, ...]:
    """Messages after those of the columns `system` and `history`."""
    system, before = record.get("system"), list[Message]()
    if system is not None and not isinstance(system, str):
        raise ValueError(f"{record.label('system')} is {system!r:.60}, and must be a text")
    lead = [turns[0]] if turns[0]["role"] == "system" else []
    if system and lead and lead[0]["content"] != system:
        raise ValueError(
            f"{record.label('system')} differs from the system message of the conversation; leave "
            "one of them out (--data.columns.system '' ignores the column)"
        )
    if system and not lead:
        before.append({"role": "system", "content": system})
    history = messages.earlier(layouts.parsed(record.get("history")), record.label("history"))
    return (*before, *lead, *history, *turns[len(lead) :])


def _preference(record: _Record, tools: Any, variables: Mapping[str, Any]) -> Row:
    """A pair, whose prompt may be the common beginning of both answers."""
    if "chosen" in record.columns:
        pair = (record.text("chosen"), record.text("rejected"))
    elif "first" in record.columns:
        pair = _compared(record)
    else:  # a conversation, and what was worse than what follows its last question
        turns, worse = _turns(record, "messages"), record.text("rejected")
        messages.require_answer(turns, record.where)
        if isinstance(worse, str):
            worse = ({"role": "assistant", "content": worse},)
        repeats = len(worse) > 1 and worse[0] == turns[0]
        if not repeats and worse[0]["role"] not in ("system", "user"):
            users = [n for n, turn in enumerate(turns) if turn["role"] == "user"]
            worse = (*turns[: users[-1] + 1 if users else len(turns) - 1], *worse)
        pair = (turns, worse)
    if "prompt" in record.columns:
        prompt = _prompt(record)
    elif {"chosen", "messages"} <= record.columns.keys():
        prompt = _with_context(_turns(record, "messages"), record)
    else:
        prompt = ""
    prompt, pair = prompts.divide(prompt, pair, record.where)
    implicit = "chosen" not in record.columns or "messages" not in record.columns
    if "prompt" not in record.columns and implicit and not isinstance(prompt, str):
        prompt = _with_context(prompt, record)
    elif isinstance(prompt, str) and {"system", "history"} & record.columns.keys():
        prompt = _with_context(({"role": "user", "content": prompt},), record)
    value = record.get("margin")
    margin = 0.0 if value is None else _number(value, record.where)
    return Row(record.where, prompt, pair, (1.0 + margin, 0.0), tools, variables)


def _compared(record: _Record) -> tuple[Text, Text]:
    """The better of two answers and the other, as a number says: below 0 the first is better."""
    value, pair = record.value("comparison"), (record.text("first"), record.text("second"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value:
        raise ValueError(
            f"{record.label('comparison')} is {value!r:.40}, which prefers neither answer; it must "
            "be a number below 0 where the first is better, and above 0 where the second is"
        )
    return pair if value < 0 else (pair[1], pair[0])


def _ranked(record: _Record) -> tuple[Text, ...]:
    """Answers, the best first: a list in that order, or objects with an answer and its `rank`."""
    value, where = layouts.parsed(record.value("ranking")), record.label("ranking")
    if isinstance(value, list | tuple) and any(
        isinstance(entry, Mapping) and "rank" in entry for entry in value
    ):
        ranks = [entry.get("rank") if isinstance(entry, Mapping) else None for entry in value]
        if not all(isinstance(rank, int | float) for rank in ranks) or len({*ranks}) < len(ranks):
            raise ValueError(
                f"{where} has the ranks {ranks!r:.60}; give each answer one of its own"
            )
        ordered = sorted(value, key=lambda entry: entry["rank"])
        value = [next((e[n] for n in _ANSWERS if e.get(n) is not None), None) for e in ordered]
    return _several(value, where, least=2)


def _labelled(record: _Record, kind: Kind) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The lines of steps with the labels of the steps, as a reward model scores lines."""
    steps = _steps(record.value("completions"), record.label("completions"))
    if kind == "referenced":
        reference = _steps(record.value("reference"), record.label("reference"))
        labels = tuple(map(float, aligned(steps, reference)))
    else:
        values = layouts.parsed(record.value("labels"))
        if not isinstance(values, list | tuple) or len(values) != len(steps):
            raise ValueError(f"{record.label('labels')} must have a label for each step")
        labels = tuple(_label(label, record) for label in values)
    pairs = [
        (line, label)
        for step, label in zip(steps, labels, strict=True)
        for line in step.splitlines()
        if line.strip()
    ]
    if not pairs:
        raise ValueError(f"{record.label('completions')} holds no text")
    lines, repeated = zip(*pairs, strict=True)
    return lines, repeated


def _several(value: Any, where: str, *, least: int) -> tuple[Text, ...]:
    """A list of answers, or of steps."""
    value = layouts.parsed(value)
    if not isinstance(value, list | tuple) or len(value) < least:
        raise ValueError(f"{where} is {value!r:.60}, and must be a list of {least} or more")
    return tuple(_text(answer, where) for answer in value)


def _steps(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts."""
    steps = _several(value, where, least=1)
    if not all(isinstance(step, str) for step in steps):
        raise ValueError(f"{where} must hold texts")
    return steps


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: margin={value!r} must be a number") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{where}: margin={value!r} must be 0 or more, and finite")
    return number


def _label(value: Any, record: _Record) -> float:
    names = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
    label = names.get(str(value).strip().lower())
    if label is None:
        raise ValueError(
            f"{record.where}: label={value!r} must be true or false; if the column is no verdict, "
            "ignore it with --data.columns.label ''"
        )
    return label


def _text(value: Any, where: str) -> Text:
    if isinstance(value, str):
        if not value:
            raise ValueError(f"{where} is empty")
        turns = messages.in_text(value, where)
        if turns is None:
            return value
        value = turns
    return messages.conversation(value, where)
