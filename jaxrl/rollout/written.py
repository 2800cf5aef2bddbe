"""Turns the rows of a file into experience; no policy sampled them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from jaxrl.config import Config, DataConfig
from jaxrl.data import examples, rows
from jaxrl.data.rows import Rows
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import comparisons
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Row
from jaxrl.types import Completion, Request, Source

Group = tuple[Problem, list[Row]]
"""A row of a file as a group: one answer, or the chosen and the rejected."""


def answers(data: DataConfig) -> int:
    """Sequences of each row of a file: two of a comparison and of a preference, else one."""
    return 2 if data.comparisons or {"preference", "ranking"} & {*data.kinds} else 1


def groups(actor: Policy, config: Config, found: Rows, index: int) -> list[Group]:
    """A row as a group of written answers; none if it is left out, several of a text that is split.

    Args:
      actor: its tokenizer writes the row.
      config: of the run, see `DataConfig`.
      found: the rows of a file.
      index: of the row.

    Raises:
      ValueError: a row that cannot be used, where none is left out.
    """
    row, settings, chat = found[index], config.data, config.rollout
    try:
        if settings.comparisons:
            return _compared(actor, config, row)
        made = examples.encode(actor.tokenizer, row, chat=chat.chat, system=chat.system)
    except ValueError:
        if settings.bad_rows == "error":
            raise
        return []
    decode = actor.tokenizer.decode
    if settings.long_rows == "split":
        parts = examples.pieces(made[0], settings.max_tokens)
        return [_group(actor, row.id, [part], row.rewards) for part in parts]
    fitted = examples.fitting(made, settings.max_tokens, settings.long_rows, row.id)
    if fitted is None:
        return []
    if row.stepwise:
        (example,) = fitted
        answer = with_labels(written(example), row.rewards)
        score = Score(float(np.mean(answer.turn_rewards)))
        text = decode(list(example.tokens))
        return [(Problem(row.id, decode(list(example.prompt)), None), [Row(answer, text, score)])]
    if config.labels:
        fitted = [examples.scored_at_end(each, examples.end(actor.tokenizer)) for each in fitted]
    return [_group(actor, row.id, fitted, row.rewards)]


def _compared(actor: Policy, config: Config, row: rows.Row) -> list[Group]:
    """A preference as two questions; none if they are too long."""
    settings, made = config.data, comparisons.examples(actor.tokenizer, row, config.seed)
    fitted = [
        examples.fitting(each, settings.max_tokens, settings.long_rows, row.id) for each in made
    ]
    return [_group(actor, row.id, each, (1.0, 0.0)) for each in fitted if each is not None]


def _group(
    actor: Policy, name: str, fitted: Sequence[examples.Example], rewards: Sequence[float]
) -> Group:
    decode = actor.tokenizer.decode
    answers = [
        Row(written(example), decode(list(example.tokens)), Score(reward))
        for example, reward in zip(fitted, rewards, strict=True)
    ]
    return Problem(name, decode(list(fitted[0].prompt)), None), answers


def written(example: examples.Example) -> Completion:
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
    for problem, own in zip(problems, answers, strict=True):
        if len(own) != len(answers[0]):
            raise ValueError(
                f"{problem.id} has {len(own)} answers and {problems[0].id} {len(answers[0])}; give "
                "all rankings of a file the same length"
            )
    flat = [row for group in answers for row in group]
    return Experience(
        list(problems),
        [row.completion for row in flat],
        [row.text for row in flat],
        [row.score for row in flat],
        [],
    )
