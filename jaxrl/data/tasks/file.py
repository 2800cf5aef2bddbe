"""Your own data: a problem a row of a JSONL, CSV or Parquet file, scored by rewards you name.

`jaxrl train grpo --data train.jsonl --prompt-column question --answer-column answer --reward
my_reward.py:score` is this task; see docs/own-data.md.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.rewards import named
from jaxrl.data.sources import extract, generate, layouts, parsing, shards
from jaxrl.data.sources import records as sources
from jaxrl.data.sources.numbered_lines import Bad, read_numbered
from jaxrl.data.text import templates
from jaxrl.data.text.messages import Message
from jaxrl.data.types import Problem, Task

_PROMPTS = (
    "prompt", "question", "problem", "instruction", "messages", "conversations", "conversation",
    "query", "input", "context_messages", "context",
)  # fmt: skip
_ANSWERS = (
    "answer", "solution", "target", "output", "response", "ground_truth",
    "reward_model.ground_truth", "extra_info.answer", "final_answer", "expected_answer",
    "golden_answers", "answers.text", "answers", "answerKey",
)  # fmt: skip
_MANDATORY = _ANSWERS[:8]
"""Names of answers that every row has where one has them: rows may be of several kinds, and only
some be compared with an `expected_answer`."""
_BESIDE = ("system", "history", "tools", "variables", "weight", *sorted(layouts.MEDIA))
"""Columns of `jaxrl.data.sources.layouts` that a prompt may have besides, and `input` after
instruction."""
_MOST_HELD_OUT = 1024


def task(
    path: str,
    rewards: str,
    test_path: str = "",
    prompt_column: str = "",
    answer_column: str = "",
    template: str = "",
    test_share: float = 0.1,
    environment: str = "",
    bad_rows: str = "error",
    solution_column: str = "",
    domain_column: str = "",
    domain: str = "",
    columns: str = "",
) -> Task:
    """Problems from a file of your own.

    Args:
      path: rows of the train split, see `jaxrl.data.sources.records`.
      rewards: from `jaxrl.data.rewards.named.to_json`; on the command line, --reward writes it.
      test_path: rows of the test split; empty holds out a share of `path`, by a hash of the prompt.
      prompt_column: column of the prompt, a text or a list of chat messages; empty: the first of
        prompt, question, problem, instruction, messages, conversations, conversation, query and
        input that is there and has a value. A system message, a history, the input of an
        instruction and tools are read from the columns of these names.
      answer_column: column of the reference answer, or a path into one; empty: the first of answer,
        solution, target, output, response, ground_truth, reward_model.ground_truth,
        extra_info.answer, final_answer, expected_answer, golden_answers, answers.text, answers and
        answerKey that is there, or none.
      template: a name of `jaxrl.data.text.templates`, or text with `{question}` in it; empty: none.
      test_share: share of the rows that is held out where there is no `test_path`; at most 1024.
      environment: names of environment variables, with commas, that the rewards read.
      bad_rows: how a row that cannot be used is treated: `error` refuses the file and names the
        row, `skip` leaves it out.
      solution_column: column of a completion that a policy could have written, for methods that
        imitate or show one; empty: the column of the answer, where that is a text.
      domain_column: column whose values divide the rows into domains.
      domain: the value of that column whose rows are used; empty: all rows.
      columns: a JSON object of names in the file by the names of
        `jaxrl.data.sources.layouts.COLUMNS`, for what belongs to a prompt; an empty name says that
        there is no such column. The others are recognised.

    Raises:
      ValueError: a row that does not fit, with its line; or a reward that cannot be called.
    """
    if bad_rows not in ("error", "skip"):
        raise ValueError(f"bad_rows={bad_rows!r} must be error or skip")
    beside = _Beside(solution_column, domain_column, domain, columns, answer_column)
    rows = _rows(path, prompt_column, answer_column, bad_rows, beside, _stamp(path))
    split_rows = {"train": rows}
    if test_path:
        stamp = _stamp(test_path)
        split_rows["test"] = _rows(test_path, rows.prompt, rows.answer, bad_rows, beside, stamp)
        places = {split: range(len(source.keys)) for split, source in split_rows.items()}
    else:
        places = _divided(rows, test_share)
    specs = named.read(rewards)
    if not rows.answer and (compared := [s.name for s in specs if s.function in named.COMPARED]):
        raise ValueError(
            f"{path} has the columns {', '.join(rows.columns)}, none of which is known to hold the "
            f"answer that the reward {compared[0]!r} compares with; say which one, with "
            "--answer-column NAME"
        )
    combined = named.combined(specs, rows.columns)
    template = templates.TEMPLATES.get(template, template)
    if template:
        extract.fill(template, "")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        source = split_rows.get(split, rows)
        return _problem(source, places[split][index], template)

    task = Task(
        name="file",
        problem=problem,
        reward=combined.reward,
        gold=functools.partial(_solution, rows.solution) if rows.solution else None,
        splits=tuple(places),
        sizes={split: len(indices) for split, indices in places.items()},
        alphabet=_alphabet(list(split_rows.values()), template),
        description=__doc__,
        pure=combined.pure,
        grouped=combined.grouped,
        seconds=(lambda _: combined.seconds) if combined.seconds else None,
        on_timeout=None if combined.slow else 0.0,
        environment=(*combined.environment, *filter(None, environment.split(","))),
        setup=combined.setup,
        notes=rows.notes(named.columns(specs, rows.columns)),
    )
    return task


def domains(path: str, column: str) -> dict[str, float]:
    """The share of the rows of a file that each value of a column has, the most frequent first.

    Args:
      path: of the file, see `jaxrl.data.sources.records`.
      column: name of the column, or a path into one.

    Raises:
      ValueError: a row without a value in that column, with its line.
    """
    records, _ = read_numbered(path)
    counts: collections.Counter[str] = collections.Counter()
    for place, record in enumerate(records):
        value = layouts.value(record, column)
        if value is None:
            raise ValueError(
                f"{sources.where(records, place, path)}: no column {column!r}; it has "
                f"{', '.join(record)}; name another with --domain-column"
            )
        counts[str(value)] += 1
    return {name: count / len(records) for name, count in counts.most_common()}


class _Beside(NamedTuple):
    """Columns that a method may need beside prompt and answer, see `task`."""

    solution: str
    domain_column: str
    domain: str
    columns: str
    answer: str


class _Rows:
    """The records of a file, each with a prompt."""

    def __init__(self, path: str, prompt: str, answer: str, bad_rows: str, beside: _Beside) -> None:
        self.path = path
        self._columns = beside
        self._all, self.bad = read_numbered(path)
        if self.bad and bad_rows == "error":
            raise _unusable(self.bad[0])
        if not len(self._all):
            raise ValueError(f"{path} has no rows")
        self._names = sources.columns(self._all)
        self.columns = list(self._names)
        self.prompt = prompt or self._first_of(_PROMPTS)
        self.answer = answer or self._first_of(_ANSWERS)
        if not self.prompt:
            raise ValueError(
                f"{path} has the columns {', '.join(self.columns)}; say which one is the prompt, "
                "with --prompt-column NAME"
            )
        self.solution = beside.solution or (self.answer if self._is_text(self.answer) else "")
        self._needed = {"prompt": self.prompt, "solution": beside.solution}
        if beside.answer or self.answer in _MANDATORY:
            self._needed["answer"] = self.answer
        self.beside = self._context()
        self.characters: set[str] = set()
        self.keys: list[bytes] = []
        self._places: list[int] = []
        for place in range(len(self._all)):
            if not self._is_of_domain(place):
                continue
            try:
                self.keys.append(self._key(place))
            except ValueError as error:
                where = self._where(place)
                if bad_rows == "error":
                    raise ValueError(f"{error}; or leave such rows out with {_SKIP}") from error
                self.bad.append(Bad(where, str(error).removeprefix(f"{where}: ")))
                continue
            self._places.append(place)
        if "answer" not in self._needed and any(
            layouts.value(self._all[place], self.answer) is None for place in self._places
        ):  # not every row has one that could be imitated
            self.solution = beside.solution
        if not self.keys:
            why = self.bad[0].why if self.bad else f"none is of domain {beside.domain!r}"
            raise ValueError(f"{path} has no row that can be used: {why}")

    def _first_of(self, names: Sequence[str]) -> str:
        """The first column or path that leads to a value in any row, or else that is there."""
        spelled = layouts.spelled(names, self._names)
        for name in names:
            if full := [n for n in layouts.spelled([name], self._names) if self._names[n]]:
                return full[0]
            if self._names.get(name.partition(".")[0]) and layouts.reaches(self._all, name):
                return name
        return spelled[0] if spelled else ""

    def _is_text(self, name: str) -> bool:
        """Whether the values of a column are texts."""
        return bool(name) and isinstance(layouts.first(self._all, name), str)

    def _is_of_domain(self, place: int) -> bool:
        domain, column = self._columns.domain, self._columns.domain_column
        return not domain or str(layouts.value(self._all[place], column)) == domain

    def _context(self) -> dict[str, str]:
        """The columns that belong to the prompt."""
        chosen = json.loads(self._columns.columns or "{}")
        layouts.check_names(chosen, self._names, self._all, self.path)
        names = {
            column: name
            for column in _BESIDE
            for name in reversed(layouts.names_of(column, self._names))
            if self._names[name] and name != self.prompt and column not in chosen
        }
        names |= {column: name for column, name in chosen.items() if name}
        if "input" not in chosen:
            names |= layouts.input_of(self.prompt, self._names)
        return names

    def notes(self, used: Collection[str]) -> tuple[str, ...]:
        """What a run says once: rows left out, and columns that nothing reads.

        Args:
          used: columns that rewards read.
        """
        names = [self.prompt, self.answer, self.solution, self._columns.domain_column]
        names += [*self.beside.values(), *used]
        left = layouts.unused(self.columns, [name for name in names if name])
        lines = [f"left out {bad.id}: {bad.why}" for bad in self.bad[:3]]
        if self.bad:
            lines.append(f"{len(self.bad)} bad rows of {self.path} are left out")
        if left:
            lines.append(f"{self.path}: unused columns: {', '.join(left)}")
        lines += parsing.further_keys(
            map(self._asked, self._places[: parsing.LOOKED_AT]), self.path
        )
        lines += [
            f"WARNING: {self.path}: the column {name!r} is no part of the prompt, and no reward "
            "reads it; write into the prompt what the model needs to know"
            for name in layouts.meant(left)
            if self._names[name]
        ]
        if self.answer and _is_list(text := layouts.first(self._all, self.answer)):
            lines.append(
                f"{self.path}: {self.answer}={text!r:.60} is a text, and is compared as it is "
                "written; give a list where any of its elements is right"
            )
        return tuple(lines)

    def record(self, index: int) -> Mapping[str, Any]:
        """A record that can be used."""
        return self._all[self._places[index]]

    def where(self, index: int) -> str:
        """The place of a record that can be used, as FILE:LINE."""
        return self._where(self._places[index])

    def asked(self, index: int) -> str | tuple[Message, ...]:
        """The prompt of a record that can be used: a text or messages."""
        return self._asked(self._places[index])

    def _where(self, place: int) -> str:
        return sources.where(self._all, place, self.path)

    def _key(self, place: int) -> bytes:
        """A hash of the prompt, after checks of the row."""
        record = self._all[place]
        for flag, name in self._needed.items():
            if name and name not in record and not self._is_null(record, name):
                raise ValueError(
                    f"{self._where(place)}: no column {name!r}; it has {', '.join(record)}; name "
                    f"another with --{flag}-column"
                )
        prompt = self._asked(place)
        texts = [prompt] if isinstance(prompt, str) else [turn["content"] for turn in prompt]
        answer = _plain(layouts.value(record, self.answer)) if self.answer else ""
        solution = layouts.value(record, self.solution) if self.solution else ""
        if self._columns.solution and not isinstance(solution, str):
            raise ValueError(
                f"{self._where(place)}: {self.solution}: {solution!r:.80} is no text that a policy "
                "could have written; name another column with --solution-column"
            )
        self.characters.update(*texts, str(answer), str(solution))
        return hashlib.blake2b(_dumped(prompt), digest_size=8).digest()

    def _is_null(self, record: Mapping[str, Any], path: str) -> bool:
        """Whether a path leads to a value of a record, or to one of another in the same column."""
        if layouts.value(record, path) is not None:
            return True
        top = path.partition(".")[0]
        return path != top and top in record and layouts.reaches(self._all, path)

    def _asked(self, place: int) -> str | tuple[Message, ...]:
        """The prompt of a row: a text, or messages with what stands beside it.

        Raises:
          ValueError: it is neither, or holds the answer too.
        """
        layout = layouts.Layout("completion", {"prompt": self.prompt, **self.beside}, ())
        return parsing.prompt_of(self._all[place], layout, self._where(place))


@functools.lru_cache(maxsize=8)
def _rows(
    path: str,
    prompt: str,
    answer: str,
    bad_rows: str,
    beside: _Beside,
    stamp: tuple[tuple[int, ...], ...],
) -> _Rows:
    return _Rows(path, prompt, answer, bad_rows, beside)


def _is_list(answer: Any) -> bool:
    """Whether an answer is the text of a list of texts."""
    return (
        isinstance(answer, str) and re.match(r"\s*\[\s*(['\"]).*\1\s*\]\s*\Z", answer) is not None
    )


_SKIP = "--data.bad-rows skip"


def _unusable(row: Bad) -> ValueError:
    return ValueError(f"{row.id}: {row.why}; correct the row, or leave such rows out with {_SKIP}")


def _dumped(value: Any) -> bytes:
    return json.dumps(value, default=str).encode(errors="surrogatepass")


def _stamp(path: str) -> tuple[tuple[int, ...], ...]:
    """What changes when a file does, or one of a folder."""
    if path.startswith("tfds:"):
        return ()
    stats = [file.stat() for file in shards.files(path)]
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)


def _divided(rows: _Rows, share: float) -> dict[str, list[int]]:
    """Rows to train on, and rows to hold out: those of the lowest hashes of prompts.

    Rows of one prompt stay together, and the split does not depend on the order of rows.
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share={share}: must be above 0 and below 1; see --test-data")
    unique_keys = sorted(set(rows.keys))
    if len(unique_keys) < 2:
        raise ValueError(
            f"{rows.path} has one prompt, so none can be held out; name held-out data with "
            "--test-data (the same file, to evaluate on the training data)"
        )
    # One is left to train on, however large the share.
    count = min(max(1, round(share * len(unique_keys))), _MOST_HELD_OUT, len(unique_keys) - 1)
    test_keys = set(unique_keys[:count])
    return {
        "train": [i for i, key in enumerate(rows.keys) if key not in test_keys],
        "test": [i for i, key in enumerate(rows.keys) if key in test_keys],
    }


def _problem(rows: _Rows, index: int, template: str) -> Problem:
    record, prompt = rows.record(index), rows.asked(index)
    answer = _plain(layouts.value(record, rows.answer)) if rows.answer else None
    metadata = {
        "row": {name: _plain(value) for name, value in record.items()},
        "place": rows.where(index),
    }
    text = isinstance(prompt, str)
    if not text:
        metadata["conversational"] = True
    raw = prompt if text and not rows.beside else _plain(record.get(rows.prompt, prompt))
    context = [_plain(record.get(name)) for name in rows.beside]
    key = json.dumps([raw, answer, *context], default=str)
    question = prompt if text else "\n\n".join(turn["content"] for turn in prompt)
    problem = generate.user_problem("file", key, question, answer, **metadata)
    if not text:
        problem = dataclasses.replace(problem, messages=prompt)
    return templates.apply(problem, template) if template else problem


def _solution(column: str, problem: Problem) -> str:
    return str(layouts.value(problem.metadata["row"], column))


def _alphabet(sources_: Sequence[_Rows], template: str) -> str:
    """The characters of a model that is made for these data."""
    characters = set(generate.ASCII + template)
    for rows in sources_:
        characters |= rows.characters
    return "".join(sorted(characters))


def _plain(value: Any) -> Any:
    """A value of a row that a checkpoint can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)
