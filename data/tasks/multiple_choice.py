"""Multiple choice by letter: generated sums with near misses, or questions from a file."""

from __future__ import annotations

import functools
import random
import re
import string
from collections.abc import Sequence

from data import extract, generate, sources
from data.types import Problem, Score, Task

_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")


def task(
    choices: int = 4,
    digits: int = 2,
    ood_digits: int | None = None,
    path: str = "",
    test_path: str = "",
    answer_format: str = "tags",
    template: str = "",
) -> Task:
    """Questions with lettered options, their order drawn by the seed.

    Args:
      choices: options of a generated question.
      digits: of the operands of a generated question in train and test.
      ood_digits: the same for the ood split; None means one more than `digits`.
      path: of records for the train split (see `data.sources`) with `question`, `choices` (a list
        of texts) and `answer` (an index, a letter, or the text); empty generates sums instead.
      test_path: of records for the test split; without it, a file has only a train split.
      answer_format: see `data.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    ood_digits = digits + 1 if ood_digits is None else ood_digits
    if not 2 <= choices <= 10:
        raise ValueError(f"choices={choices}: must be from 2 to 10")
    if not 1 <= digits < ood_digits:
        raise ValueError(f"digits={digits}, ood_digits={ood_digits}: need 1 <= digits < ood_digits")
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]
    files = {"train": path} | ({"test": test_path} if test_path else {}) if path else {}
    read = functools.cache(sources.read)

    def problem(split: str, seed: int, index: int) -> Problem:
        made.check_split(split)
        stream = generate.rng("multiple_choice", split, seed, index)
        if files:
            record = read(files[split])[index]
            where = f"{files[split]}, record {index}"
            question = sources.field(record, "question", where)
            options = [str(o) for o in sources.field(record, "choices", where)]
            right = _right(sources.field(record, "answer", where), options, where)
        else:
            length = ood_digits if split == "ood" else digits
            question, options = generate.draw(
                lambda stream: _sum(stream, length, choices),
                key=lambda drawn: drawn[0],
                stream=stream,
                split=split,
            )
            right = options[0]
        stream.shuffle(options)
        letter = string.ascii_uppercase[options.index(right)]
        listed = "\n".join(
            f"{name}. {o}" for name, o in zip(string.ascii_uppercase, options, strict=False)
        )
        shown = f"{question}\n{listed}\nAnswer with the letter of the right option."
        prompt = extract.fill(template, shown)
        return generate.asked("multiple_choice", f"{question}{sorted(options)}", prompt, letter)

    made = Task(
        name="multiple_choice",
        problem=problem,
        reward=lambda problem, completion: _reward(problem, find(completion)),
        gold=lambda problem: extract.written(answer_format, problem.answer),
        splits=tuple(files) or ("train", "test", "ood"),
        sizes={split: len(read(file)) for split, file in files.items()},
        alphabet=None if files else generate.ASCII,
        description=__doc__,
    )
    return made


def _reward(problem: Problem, answer: str | None) -> Score:
    """1 for the right letter and nothing else, in brackets or not."""
    found = _LETTER.fullmatch(answer or "")
    correct = found is not None and found[1].upper() == problem.answer
    return Score(float(correct), {"correct": float(correct), "format": float(found is not None)})


def _sum(stream: random.Random, digits: int, choices: int) -> tuple[str, list[str]]:
    """A sum and options for its value, the right one first."""
    a, b = (stream.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    near = [a + b + d for d in (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)]
    wrong = stream.sample(near, choices - 1)
    return f"What is {a} + {b}?", [str(a + b), *map(str, wrong)]


def _right(answer: object, options: Sequence[str], where: str) -> str:
    """The text of the right option."""
    if isinstance(answer, int) and 0 <= answer < len(options):
        return options[answer]
    if answer in options:
        return str(answer)
    letter = string.ascii_uppercase.find(str(answer).strip().upper() or "?")
    if 0 <= letter < len(options):
        return options[letter]
    raise ValueError(f"{where}: answer={answer!r} is no index, letter or text of {options}")
