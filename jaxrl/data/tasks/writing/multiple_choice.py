"""Multiple choice by letter: generated sums with near misses, or questions from a file."""

from __future__ import annotations

import functools
import random
import re
import string
from collections.abc import Sequence

from jaxrl.data.sources import extract, generate, records
from jaxrl.data.types import Problem, Score, Task

_CHOICE = re.compile(
    r"(?:(?:the )?(?:correct )?(?:answer|option|choice)(?: is)?:?\s*)?\(?([A-Z])\)?"
    r"(?:\s*[.:)-]\s*(.*)|\s+(.*))?",
    re.IGNORECASE | re.DOTALL,
)


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
      path: of records for the train split (see `jaxrl.data.sources.records`) with `question`,
        `choices` (a list of texts) and `answer` (an index, a letter, or the text); empty generates
        sums instead.
      test_path: of records for the test split; without it, a file has only a train split.
      answer_format: see `jaxrl.data.sources.extract`.
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
    read = functools.cache(records.read)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("multiple_choice", split, seed, index)
        if files:
            record = read(files[split])[index]
            where = f"{files[split]}, record {index}"
            question = records.field(record, "question", where)
            options = [str(o) for o in records.field(record, "choices", where)]
            right = _right(records.field(record, "answer", where), options, where)
        else:
            length = ood_digits if split == "ood" else digits
            question, options = generate.draw(
                lambda stream: _sum(stream, length, choices),
                key=lambda sample: sample[0],
                stream=stream,
                split=split,
            )
            right = options[0]
        stream.shuffle(options)
        letter = string.ascii_uppercase[options.index(right)]
        listed = "\n".join(
            f"{name}. {o}" for name, o in zip(string.ascii_uppercase, options, strict=False)
        )
        full_question = f"{question}\n{listed}\nAnswer with the letter of the right option."
        prompt = extract.fill(template, full_question)
        return generate.user_problem(
            "multiple_choice",
            f"{question}{sorted(options)}",
            prompt,
            letter,
            options=options,
        )

    task = Task(
        name="multiple_choice",
        problem=problem,
        reward=lambda problem, completion: _reward(problem, find(completion)),
        gold=lambda problem: extract.write_answer(answer_format, problem.answer),
        splits=tuple(files) or ("train", "test", "ood"),
        sizes={split: len(read(file)) for split, file in files.items()},
        alphabet=None if files else generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def _reward(problem: Problem, answer: str | None) -> Score:
    """1 for the letter of the right option, or of one with the same text, and nothing else.

    Brackets, emphasis and the option's own text after the letter change nothing.
    """
    options = problem.metadata["options"]
    chosen = _chosen(answer or "", options)
    right = options[string.ascii_uppercase.index(problem.answer)]
    correct = chosen is not None and options[chosen] == right
    return Score(float(correct), {"correct": float(correct), "format": float(chosen is not None)})


def _chosen(answer: str, options: Sequence[str]) -> int | None:
    """The index of the option that an answer names."""
    if "\\boxed{" in answer:
        answer = extract.boxed(answer) or ""
    bare = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", answer)
    match = _CHOICE.fullmatch(bare.strip(" \n\t*_$").rstrip("."))
    if match is None:
        return None
    index = string.ascii_uppercase.index(match[1].upper())
    option = (match[2] or match[3] or "").strip(" *_$.")
    agrees = index < len(options) and option.lower() in ("", options[index].strip(" .").lower())
    return index if agrees else None


def _sum(stream: random.Random, digits: int, choices: int) -> tuple[str, list[str]]:
    """A sum and options for its value, the right one first."""
    a, b = (stream.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    near = [a + b + d for d in (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)]
    wrong = stream.sample(near, choices - 1)
    return f"What is {a} + {b}?", [str(a + b), *map(str, wrong)]


def _right(answer: object, options: Sequence[str], where: str) -> str:
    """The text of the right option.

    Raises:
      ValueError: the answer names none, or could name two.
    """
    candidates = {str(answer)} & set(options)
    if type(answer) is int and 0 <= answer < len(options):
        candidates.add(options[answer])
    elif isinstance(answer, str) and not candidates and len(answer.strip()) == 1:
        index = string.ascii_uppercase.find(answer.strip().upper())
        candidates = set(options[index : index + 1]) if index >= 0 else set()
    if len(candidates) != 1:
        raise ValueError(
            f"{where}: answer={answer!r} names {len(candidates)} of {options}; give an index, a "
            "letter or the text of one"
        )
    return candidates.pop()
