"""Layouts of rows in public use: which columns make which kind of row.

The columns of a file are those of all its rows. Each is used, or listed as unused; one that has a
known meaning, such as `system`, is named in a warning where it is not used.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxrl.data.sources import records as sources
from jaxrl.data.text import prompts as dialogues

Kind = Literal[
    "messages", "completion", "preference", "ranking", "label", "stepwise", "referenced", "text",
    "prompt",
]  # fmt: skip

KINDS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "preference": (
        ("chosen", "rejected"),
        ("messages", "rejected"),
        ("prompt", "completion", "rejected"),
        ("prompt", "first", "second", "comparison"),
    ),
    "ranking": (("prompt", "ranking"),),
    "stepwise": (("prompt", "completions", "labels"),),
    "referenced": (("prompt", "completions", "reference"),),
    "label": (("prompt", "completion", "label"), ("messages", "label")),
    "messages": (("messages",),),
    "completion": (("prompt", "completion"),),
    "text": (("text",),),
}
"""The columns that tell each kind, in the order in which they are looked for."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation"),
    "prompt": (
        "prompt", "question", "instruction", "problem", "query", "input", "context_messages",
        "context",
    ),
    "completion": ("completion", "response", "answer", "output", "solution", "generation"),
    "chosen": (
        "chosen", "preferred_output", "chosen_response", "chosen_conversations", "response_j",
    ),
    "rejected": (
        "rejected", "non_preferred_output", "rejected_response", "rejected_messages",
        "rejected_conversations", "response_k",
    ),
    "first": ("response1",),
    "second": ("response2",),
    "comparison": ("overall_preference",),
    "margin": ("margin",),
    "ranking": ("ranking", "ranked", "answers", "completions"),
    "label": ("label", "kto_tag"),
    "completions": ("completions", "steps"),
    "labels": ("labels",),
    "reference": ("reference",),
    "text": ("text",),
    "input": (),
    "system": ("system", "system_prompt"),
    "history": ("history",),
    "tools": ("tools", "functions"),
    "variables": ("chat_template_kwargs",),
    "weight": ("weight",),
    "images": ("images", "image"),
    "videos": ("videos", "video"),
    "audios": ("audios", "audio"),
}  # fmt: skip
"""Names that each column is recognised by, the first that is there."""

_NEEDED = ("messages", "prompt", "completion", "chosen", "rejected", "text")
"""Columns that are looked for even where they are null in all rows, so that the rows are bad: what
is rejected, only beside what is chosen."""
_SHARED = {"prompt": ("context_messages", "context"), "completion": ("generation",)}
"""Names that mean something else in many files, so that other columns decide."""
_IDS = ("input_ids", "prompt_ids", "completion_ids")
"""Columns of files that another framework has encoded."""
_CONVERSATION = ("system", "history", "tools", "variables")
_GROUND_TRUTH = "reward_model.ground_truth"
"""Path of the answer in the layout of verl."""
MEDIA = frozenset({"images", "videos", "audios"})
"""Columns of what is no text."""
_ALWAYS = ("weight", "images", "videos", "audios")
_OPTIONAL: dict[Kind, tuple[str, ...]] = {
    "messages": _CONVERSATION,
    "preference": ("prompt", "messages", "input", "margin", *_CONVERSATION),
    "ranking": ("input", *_CONVERSATION),
    "label": ("input", *_CONVERSATION),
    "completion": ("input", *_CONVERSATION),
    "stepwise": ("input",),
    "referenced": ("input",),
}
"""Columns that a row of a kind may have besides."""

INPUTS = ("input", "context")
"""Columns that hold what an `instruction` is about."""

_MEANT = ("system", "history", "tools", "label", "margin", *_ALWAYS)
_MEANT_NAMES = frozenset(
    (
        *INPUTS,
        "choices",
        "options",
        "enable_thinking",
        *(name for column in _MEANT for name in COLUMNS[column]),
    )
)
"""Names whose meaning is known, so that leaving such a column out deserves a warning."""


class Layout(NamedTuple):
    """How the columns of a file make rows."""

    kind: Kind
    columns: dict[str, str]
    """Of each column of the kind, its name in the file; `a.b` is the key b of the column a."""
    unused: tuple[str, ...]
    """Columns of the file that nothing reads."""
    blank: tuple[str, ...] = ()
    """Those of them that have no value in any row."""

    @property
    def used(self) -> tuple[str, ...]:
        """Columns of the file that are read."""
        return tuple(dict.fromkeys(self.columns.values()))

    def warnings(self, path: str) -> list[str]:
        """What to say of columns that are left out although their meaning is known."""
        return [
            f"{path}: the column {name!r} is not used in rows of the kind {self.kind!r}"
            for name in meant(self.unused)
            if name not in self.blank
        ]


def recognise(
    records: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    path: str,
    *,
    prompts: bool = False,
) -> Layout:
    """The layout of a file.

    Args:
      records: of the file, all of which are looked at.
      columns: names in the file by the names of `COLUMNS`; an empty name says that the file has no
        such column.
      path: of the file, for the message.
      prompts: whether a prompt alone, which a policy is to answer, is a kind too.

    Raises:
      ValueError: none of the kinds, or a name that no row has.
    """
    present = sources.columns(records)
    check_names(columns, present, records, path)
    names = {column: name for column, name in columns.items() if name}
    for column in COLUMNS:
        if column in columns:
            continue
        free = [n for n in names_of(column, present) if n not in names.values()]
        if column == "ranking":
            free = [
                n
                for n in free
                if n.lower() not in ("answers", "completions") or _has_ranks(records, n)
            ]
        full = [n for n in free if present[n]]
        needed = column != "rejected" or present.get(names.get("chosen", ""), False)
        if full or (free and needed and column in _NEEDED):
            names[column] = (full or free)[0]
    for column in _taken(names, present, records) - columns.keys():
        del names[column]
    if "input" not in columns:
        names |= input_of(names.get("prompt", ""), present)
    for kind, choices in KINDS.items():
        needed = next((choice for choice in choices if names.keys() >= set(choice)), None)
        if needed is None:
            continue
        optional = (*_OPTIONAL.get(kind, ()), *_ALWAYS)
        if kind == "preference" and "chosen" not in needed:
            optional = ("input", "margin", *_CONVERSATION, *_ALWAYS)
        elif kind == "preference" and (
            "prompt" in names or _has_conversations(records, names["chosen"])
        ):  # messages beside a prompt repeat one of the answers
            optional = tuple(column for column in optional if column != "messages")
        used = {column: names[column] for column in (*needed, *optional) if column in names}
        if kind == "preference" and "completion" in used:
            used["chosen"] = used.pop("completion")
        if kind == "ranking" and _has_pairs(records, names["ranking"]):
            kind = "preference"
        return _layout(kind, used, present)
    if prompts and "prompt" in names:
        used = {c: names[c] for c in ("prompt", "input", *_CONVERSATION, *_ALWAYS) if c in names}
        if reaches(records, _GROUND_TRUTH):
            used["answer"] = _GROUND_TRUTH
        return _layout("prompt", used, present)
    if ids := [name for name in present if name in _IDS]:
        raise ValueError(
            f"{path} has the columns {', '.join(ids)}: token ids are not read, as they are right "
            "for one tokenizer and one chat template alone; give the texts or messages that they "
            "were made of"
        )
    kinds = "; ".join(f"{kind} ({', '.join(choices[0])})" for kind, choices in KINDS.items())
    alone = "; prompts alone are for training by reward, as jaxrl train grpo"
    raise ValueError(
        f"{path} has the columns {', '.join(present)}, which is none of the kinds {kinds}; name "
        "its columns, as in --data.columns.prompt NAME --data.columns.completion NAME"
        f"{alone if 'prompt' in names else ''}"
    )


def names_of(column: str, present: Collection[str]) -> list[str]:
    """The columns of a file that one of `COLUMNS` is recognised by, the first first.

    Letters of any case are for what is learned and what belongs to its prompt. A column such as
    `Label` or `Weight` may hold anything.
    """
    if column in _NEEDED or column in _CONVERSATION or column in MEDIA:
        return spelled(COLUMNS[column], present)
    return [name for name in COLUMNS[column] if name in present]


def _taken(
    names: Mapping[str, str], present: Mapping[str, bool], records: Sequence[Mapping[str, Any]]
) -> set[str]:
    """The columns of `_SHARED` whose names mean something else in a file, as its others show."""
    shared = {c for c, others in _SHARED.items() if names.get(c, "").lower() in others}
    if "chosen" in names:
        is_blank = not any(
            str(value(records[index], names["prompt"]) or "").strip()
            for index in range(len(records) if "prompt" in shared else 0)
        )
        return shared if is_blank or _has_dialogues(records, names["chosen"]) else set()
    has_text = present.get(names.get("text", ""), False)
    return shared if has_text and not names.keys() & {"ranking", "first"} else set()


def spelled(names: Sequence[str], present: Collection[str]) -> list[str]:
    """The columns that have one of some names, in the order of these, in letters of any case."""
    lowered = {name.lower(): name for name in reversed([*present])}
    matches = [name if name in present else lowered.get(name.lower(), "") for name in names]
    return [name for name in matches if name]


def input_of(prompt: str, present: Mapping[str, bool]) -> dict[str, str]:
    """The column of what an instruction is about, if the prompt is one and there is such a column.

    Args:
      prompt: the column of the prompt.
      present: the columns, and whether each has a value.
    """
    if prompt.lower() != "instruction":
        return {}
    full = [name for name in spelled(INPUTS, present) if present[name]]
    return {"input": full[0]} if full else {}


def _layout(kind: Kind, used: dict[str, str], present: Mapping[str, bool]) -> Layout:
    left = unused(present, used.values())
    return Layout(kind, used, left, tuple(name for name in left if not present[name]))


def unused(present: Collection[str], used: Collection[str]) -> tuple[str, ...]:
    """The columns that are not among the used ones, of which some may be paths into a column."""
    tops = {*used, *(name.partition(".")[0] for name in used)}
    return tuple(name for name in present if name not in tops)


def meant(columns: Sequence[str]) -> list[str]:
    """The columns whose meaning is known."""
    return [name for name in columns if name.lower() in _MEANT_NAMES]


def check_names(
    columns: Mapping[str, str],
    present: Mapping[str, bool],
    records: Sequence[Mapping[str, Any]],
    path: str,
) -> None:
    """Refuse names that the file does not have.

    Raises:
      ValueError: naming the columns that it has.
    """
    for column, name in columns.items():
        if column not in COLUMNS:
            raise ValueError(f"data.columns.{column}: no such column; known: {', '.join(COLUMNS)}")
        if name and name not in present and not reaches(records, name):
            raise ValueError(
                f"data.columns.{column}={name!r}: {path} has no such column; it has "
                f"{', '.join(present)}"
            )


def value(record: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a path such as `reward_model.ground_truth`; None: none."""
    if name in record or "." not in name:
        return _known(record.get(name))
    inner: Any = record
    for key in name.split("."):
        if isinstance(inner, str) and inner.lstrip()[:1] == "{":  # as a table of texts holds it
            with contextlib.suppress(ValueError, RecursionError):
                inner = json.loads(inner)
        if not isinstance(inner, Mapping) or key not in inner:
            return None
        inner = inner[key]
    return _known(inner)


def _known(cell: Any) -> Any:
    """The value of a cell; None for one that is missing, which is NaN where pandas wrote it."""
    return None if sources.is_missing(cell) else cell


def reaches(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a path leads to a value in any of the records."""
    places = range(len(records)) if "." in name else ()
    return any(value(records[index], name) is not None for index in places)


def _has_conversations(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column holds whole conversations, and not one message or text each."""
    first_cell = first(records, name)
    return isinstance(first_cell, list | tuple) and len(first_cell) > 1


def _has_dialogues(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column holds answers after the prompts that they answer."""
    first_cell = parsed(first(records, name))
    if isinstance(first_cell, str):
        return dialogues.has_question(first_cell)
    turn = first_cell[0] if isinstance(first_cell, list | tuple) and len(first_cell) > 1 else None
    role = (turn.get("role") or turn.get("from")) if isinstance(turn, Mapping) else None
    return str(role).lower() in ("system", "user", "human")


def _has_ranks(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column holds answers with their ranks, and not the answers to a question."""
    first_cell = parsed(first(records, name))
    return (
        isinstance(first_cell, list | tuple)
        and bool(first_cell)
        and all(isinstance(answer, Mapping) and "rank" in answer for answer in first_cell)
    )


def _has_pairs(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether all rankings are of two answers; a cell that ranks nothing is a bad row of these."""
    cells = (parsed(value(records[index], name)) for index in range(len(records)))
    lengths = {len(cell) for cell in cells if isinstance(cell, list | tuple)}
    return lengths - {0, 1} == {2}


def parsed(cell: Any) -> Any:
    """What a text of JSON stands for, as a table of texts holds it; any other value as it is."""
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError):
        return cell


def first(records: Sequence[Mapping[str, Any]], name: str) -> Any:
    """The first value of a column that is not null."""
    values = (value(records[index], name) for index in range(len(records)))
    return next((cell for cell in values if cell is not None), None)
