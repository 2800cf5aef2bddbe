"""Your own data: a problem a row of a JSONL, CSV or Parquet file, scored by rewards you name.

`jaxrl train grpo --data train.jsonl --prompt-column question --answer-column answer --reward
my_reward.py:score` is this task; see docs/own-data.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.data.rewards import named
from jaxrl.data.sources import extract, generate, records
from jaxrl.data.text import templates
from jaxrl.data.types import Problem, Task

Turn = dict[str, str]

_PROMPTS = ("prompt", "question", "problem", "instruction", "messages", "input")
_ANSWERS = ("answer", "solution", "target", "output", "response", "ground_truth")
_MOST_HELD_OUT = 1024
_CHECKED = 64  # rows whose columns are checked against the parameters of rewards


def task(
    path: str,
    rewards: str,
    test_path: str = "",
    prompt_column: str = "",
    answer_column: str = "",
    template: str = "",
    test_share: float = 0.1,
    environment: str = "",
) -> Task:
    """Problems from a file of your own.

    Args:
      path: rows of the train split, see `jaxrl.data.sources.records`.
      rewards: from `jaxrl.data.rewards.named.written`; on the command line, --reward writes it.
      test_path: rows of the test split; empty holds out a share of `path`, by a hash of the prompt.
      prompt_column: column of the prompt, a text or a list of chat messages; empty: the first of
        prompt, question, problem, instruction, messages and input that is there.
      answer_column: column of the reference answer; empty: the first of answer, solution, target,
        output, response and ground_truth that is there, or none.
      template: a name of `jaxrl.data.text.templates`, or text with `{question}` in it; empty: none.
      test_share: share of the rows that is held out where there is no `test_path`; at most 1024.
      environment: names of environment variables, with commas, that the rewards read.

    Raises:
      ValueError: a row that does not fit, with its line; or a reward that cannot be called.
    """
    rows = _rows(path, prompt_column, answer_column, _stamp(path))
    given = {"train": rows}
    if test_path:
        given["test"] = _rows(test_path, rows.prompt, rows.answer, _stamp(test_path))
        places = {split: range(len(each.records)) for split, each in given.items()}
    else:
        places = _divided(rows, test_share)
    columns = {name for record in rows.first for name in record}
    combined = named.combined(named.read(rewards), columns)
    template = templates.TEMPLATES.get(template, template)
    if template:
        extract.fill(template, "")

    def problem(split: str, seed: int, index: int) -> Problem:
        made.check_split(split)
        source = given.get(split, rows)
        return _problem(source, places[split][index], template)

    made = Task(
        name="file",
        problem=problem,
        reward=combined.reward,
        splits=tuple(places),
        sizes={split: len(found) for split, found in places.items()},
        alphabet=_alphabet(list(given.values()), template),
        description=__doc__,
        pure=combined.pure,
        grouped=combined.grouped,
        seconds=(lambda _: combined.seconds) if combined.seconds else None,
        on_timeout=None if combined.slow else 0.0,
        environment=(*combined.environment, *filter(None, environment.split(","))),
    )
    return made


class _Rows:
    """The records of a file, each with a prompt."""

    def __init__(self, path: str, prompt: str, answer: str) -> None:
        self.path = path
        try:
            self.records: Sequence[Mapping[str, Any]] = records.read(path)
        except ValueError as error:
            raise ValueError(_with_line(path, str(error))) from error
        if not len(self.records):
            raise ValueError(f"{path} has no rows")
        self.first = [self.records[i] for i in range(min(_CHECKED, len(self.records)))]
        self.prompt = prompt or _found(self.first[0], _PROMPTS)
        self.answer = answer or _found(self.first[0], _ANSWERS)
        if not self.prompt:
            raise ValueError(
                f"{path} has the columns {', '.join(self.first[0])}; say which one is the prompt, "
                "with --prompt-column NAME"
            )
        self.characters: set[str] = set()
        self.keys = [self._key(index) for index in range(len(self.records))]

    def where(self, index: int) -> str:
        """The place of a row in its file."""
        return _with_line(self.path, f"{self.path}, record {index}")

    def _key(self, index: int) -> bytes:
        """A hash of the prompt, after checks of the row."""
        record = self.records[index]
        for name in filter(None, (self.prompt, self.answer)):
            if name not in record:
                flag = "prompt" if name == self.prompt else "answer"
                raise ValueError(
                    f"{self.where(index)}: no column {name!r}; it has {', '.join(record)}; name "
                    f"another with --{flag}-column"
                )
        prompt = self.asked(index)
        texts = [prompt] if isinstance(prompt, str) else [turn["content"] for turn in prompt]
        self.characters.update(*texts, str(_plain(record[self.answer])) if self.answer else "")
        raw = prompt if isinstance(prompt, str) else record[self.prompt]
        return hashlib.blake2b(json.dumps(raw, default=str).encode(), digest_size=8).digest()

    def asked(self, index: int) -> str | list[Turn]:
        """The prompt of a row: a text, or messages whose contents are texts.

        Raises:
          ValueError: it is neither, or holds the answer too.
        """
        value = records.field(self.records[index], self.prompt, self.where(index))
        turns = isinstance(value, list) and all(
            isinstance(t, dict) and isinstance(t.get("role"), str) and "content" in t for t in value
        )
        if not value or not (isinstance(value, str) or turns):
            raise ValueError(
                f"{self.where(index)}: {self.prompt}={value!r:.80} must be a text, or a list of "
                "messages with role and content"
            )
        if isinstance(value, str):
            return value
        if value[-1]["role"] == "assistant":
            raise ValueError(
                f"{self.where(index)}: {self.prompt} ends with a message of assistant, an answer "
                "that the model would see; leave that message out, or learn from it with "
                "jaxrl train sft"
            )
        return [{"role": t["role"], "content": self._content(t, index)} for t in value]

    def _content(self, turn: Mapping[str, Any], index: int) -> str:
        """The text of a message, whose parts are joined."""
        content = turn["content"]
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else []
        texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
        if not parts or len(texts) < len(parts) or not all(isinstance(t, str) for t in texts):
            raise ValueError(
                f"{self.where(index)}: {self.prompt}: the content of a message of {turn['role']} "
                f"is {content!r:.80}; write a text, or parts as in "
                '[{"type": "text", "text": "..."}]'
            )
        return "".join(texts)


@functools.lru_cache(maxsize=8)
def _rows(path: str, prompt: str, answer: str, stamp: tuple[int, ...]) -> _Rows:
    return _Rows(path, prompt, answer)


def _stamp(path: str) -> tuple[int, ...]:
    """What changes when a file does."""
    file = Path(path)
    if not file.is_file():
        return ()
    stat = file.stat()
    return (stat.st_mtime_ns, stat.st_size)


def _divided(rows: _Rows, share: float) -> dict[str, list[int]]:
    """Rows to train on, and rows to hold out: those of the lowest hashes of prompts.

    Rows of one prompt stay together, and the split does not depend on the order of rows.
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share={share}: must be above 0 and below 1; see --test-data")
    known = sorted(set(rows.keys))
    if len(known) < 2:
        raise ValueError(
            f"{rows.path} has one prompt, so none can be held out; name held-out data with "
            "--test-data (the same file, to evaluate on the training data)"
        )
    # One is left to train on, however large the share.
    count = min(max(1, round(share * len(known))), _MOST_HELD_OUT, len(known) - 1)
    held = set(known[:count])
    return {
        "train": [i for i, key in enumerate(rows.keys) if key not in held],
        "test": [i for i, key in enumerate(rows.keys) if key in held],
    }


def _problem(rows: _Rows, index: int, template: str) -> Problem:
    record = rows.records[index]
    prompt, answer = rows.asked(index), record[rows.answer] if rows.answer else None
    kept = {name: _plain(value) for name, value in record.items()}
    raw = prompt if isinstance(prompt, str) else record[rows.prompt]
    key = json.dumps([raw, answer], default=str)
    if isinstance(prompt, str):
        made = generate.asked("file", key, prompt, _plain(answer), row=kept)
    else:
        question = "\n\n".join(turn["content"] for turn in prompt)
        made = generate.asked("file", key, question, _plain(answer), row=kept)
        made = Problem(made.id, question, made.answer, tuple(prompt), made.metadata, made.domain)
    return templates.apply(made, template) if template else made


def _alphabet(sources_: Sequence[_Rows], template: str) -> str:
    """The characters of a model that is made for these data."""
    found = set(generate.ASCII + template)
    for rows in sources_:
        found |= rows.characters
    return "".join(sorted(found))


def _plain(value: Any) -> Any:
    """A value of a row that a checkpoint can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


def _found(record: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if name in record), "")


def _with_line(path: str, message: str) -> str:
    """A message about a record of a `.jsonl` file, with the number of its line instead."""
    found = re.search(r"record (\d+)", message)
    if found is None or Path(path).suffix not in (".jsonl", ".ndjson", ".csv", ".tsv"):
        return message
    if Path(path).suffix in (".csv", ".tsv"):
        return message.replace(found[0], f"row {int(found[1]) + 1}")
    left = int(found[1])
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                if not left:
                    return message.replace(found[0], f"line {number}")
                left -= 1
    return message
