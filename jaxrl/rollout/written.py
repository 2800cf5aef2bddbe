"""Turns the rows of a file into experience; no policy sampled them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from jaxrl.config import Config, DataConfig
from jaxrl.data.sources import encoding, parsing, rows
from jaxrl.data.sources.rows import Rows
from jaxrl.data.text import examples, marking
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import comparisons, files
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Row
from jaxrl.types import Completion, Request, Source

Group = tuple[Problem, list[Row]]
"""A row of a file as a group: one answer, or the chosen and the rejected."""


def answers(data: DataConfig) -> int:
    """Sequences of each row of a file: two of a comparison and of a preference, else one."""
    return 2 if data.comparisons or {"preference", "ranking"} & {*data.kinds} else 1


def notes(tokenizer: Tokenizer, config: Config, file_rows: Rows) -> list[str]:
    """What a run says once of its file: columns that it does not use, rows left out, and whether
    a chat template writes them."""
    lines = [f"WARNING: {warning}" for warning in file_rows.layout.warnings(file_rows.path)]
    if file_rows.layout.unused:
        lines.append(f"{file_rows.path}: unused columns: {', '.join(file_rows.layout.unused)}")
    if file_rows.left_out:
        lines.append(
            f"{file_rows.path}: {file_rows.left_out} rows over data.max_tokens are left out"
        )
    first = (file_rows[i] for i in range(min(len(file_rows), parsing.LOOKED_AT)))
    texts = (text for row in first for text in (row.prompt, *row.answers))
    lines += parsing.further_keys(texts, file_rows.path)
    row = file_rows[0]
    if examples.skips_template(tokenizer, row, chat=config.rollout.chat):
        lines.append(f"{file_rows.path}: {examples.WITHOUT_TEMPLATE}")
    plain = isinstance(row.answers[0], str) and isinstance(row.prompt, str)
    if (config.rollout.chat or not plain) and not examples.learns_to_stop(tokenizer):
        lines.append(f"WARNING: {marking.NO_END}")
    return lines


def usable(tokenizer: Tokenizer, config: Config, path: str) -> Rows:
    """The rows of a file that a run learns from, each of which is encoded once here.

    What is too long is left out by `data.long_rows`, so that rows are counted and held out among
    those that are used.

    Raises:
      ValueError: as `files.read`; a row that the tokenizer or the chat template refuses; or no row
        has an answer within `data.max_tokens`.
    """
    every = files.read(config.data, path)
    write = functools.partial(of_row, tokenizer, config)
    chosen = encoding.usable(every, write, bad=config.data.bad_rows)
    if not len(chosen):
        raise ValueError(
            f"data.max_tokens={config.data.max_tokens} leaves no row of {path!r} with an answer to "
            "learn; raise it"
        )
    return chosen


def groups(actor: Policy, config: Config, file_rows: Rows, index: int) -> list[Group]:
    """A row as a group of written answers; none if it is left out, several of a text that is split.

    Args:
      actor: its tokenizer writes the row.
      config: of the run, see `DataConfig`.
      file_rows: the rows of a file.
      index: of the row.

    Raises:
      ValueError: a row that cannot be used, where none is left out.
    """
    try:
        return of_row(actor.tokenizer, config, file_rows[index])
    except ValueError:
        if config.data.bad_rows == "error":
            raise
        return []


def of_row(tokenizer: Tokenizer, config: Config, row: rows.Row) -> list[Group]:
    """A row as groups of written answers; none if it is left out.

    Raises:
      ValueError: the tokenizer or the chat template refuses the row.
    """
    settings, chat = config.data, config.rollout
    if settings.comparisons:
        return _compared(tokenizer, config, row)
    answers = examples.encode(tokenizer, row, chat=chat.chat, system=chat.system)
    if settings.long_rows == "split":
        parts = examples.pieces(answers[0], settings.max_tokens)
        return [_group(tokenizer, row.id, [part], row.rewards) for part in parts]
    fitted = examples.fitting(answers, settings.max_tokens, settings.long_rows, row.id)
    if fitted is None:
        return []
    if row.stepwise:
        (example,) = fitted
        answer = with_labels(as_completion(example), row.rewards)
        score = Score(float(np.mean(answer.turn_rewards)))
        text, prompt = (tokenizer.decode(list(ids)) for ids in (example.tokens, example.prompt))
        return [(Problem(row.id, prompt, None), [Row(answer, text, score)])]
    if config.labels:
        close = examples.end(tokenizer)
        fitted = [examples.scored_at_end(example, close) for example in fitted]
    return [_group(tokenizer, row.id, fitted, row.rewards)]


def _compared(tokenizer: Tokenizer, config: Config, row: rows.Row) -> list[Group]:
    """A preference as two questions; none if they are too long."""
    settings, long = config.data, config.data.long_rows
    assert long != "split"  # which is for texts
    fitted = [
        examples.fitting(pair, settings.max_tokens, long, row.id)
        for pair in comparisons.examples(tokenizer, row, config.seed)
    ]
    return [_group(tokenizer, row.id, pair, (1.0, 0.0)) for pair in fitted if pair is not None]


def _group(
    tokenizer: Tokenizer, name: str, fitted: Sequence[examples.Example], rewards: Sequence[float]
) -> Group:
    decode = tokenizer.decode
    answers = [
        Row(as_completion(example), decode(list(example.tokens)), Score(reward))
        for example, reward in zip(fitted, rewards, strict=True)
    ]
    return Problem(name, decode(list(fitted[0].prompt)), None), answers


def as_completion(example: examples.Example) -> Completion:
    """A written answer: the tokens to learn are an expert's, the others are given."""
    zeros = np.zeros(len(example.tokens), np.float32)
    marks = np.where(example.learned, Source.EXPERT, Source.OBSERVATION).astype(np.int8)
    request = Request(0, example.prompt, len(example.tokens))
    ids = np.array(example.tokens, np.int32)
    return Completion(request, ids, zeros, zeros, zeros.astype(np.int32), True, marks)


def with_labels(answer: Completion, labels: Sequence[float]) -> Completion:
    """A written answer of which each step is a turn, whose reward is its label.

    Args:
      answer: its actions are where steps are scored.
      labels: of all steps; of an answer that was cut, more than are left.
    """
    turn = np.where(answer.actions, np.cumsum(answer.actions), 0).astype(np.int16)
    return dataclasses.replace(
        answer, turn=turn, turn_rewards=tuple(labels[: int(answer.actions.sum())])
    )


def gathered(groups: Iterable[Group]) -> Experience:
    """Groups of rows as experience.

    Raises:
      ValueError: groups of different sizes, as rankings of different lengths are.
    """
    problems, answers = zip(*groups, strict=True)
    for problem, group in zip(problems, answers, strict=True):
        if len(group) != len(answers[0]):
            raise ValueError(
                f"{problem.id} has {len(group)} answers and {problems[0].id} {len(answers[0])}; "
                "give all rankings of a file the same length"
            )
    flat = [row for group in answers for row in group]
    return Experience(
        list(problems),
        [row.completion for row in flat],
        [row.text for row in flat],
        [row.score for row in flat],
        [],
    )
