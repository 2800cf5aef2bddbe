r"""Word problems in the format of GSM8K: `question`, and an `answer` that ends in `#### 42`.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems".
"""

from __future__ import annotations

import functools
from decimal import Decimal

from jaxrl.data.sources import extract, generate, records
from jaxrl.data.types import Problem, Score, Task


def task(
    path: str,
    test_path: str = "",
    ood_path: str = "",
    answer_format: str = "tags",
    template: str = "",
) -> Task:
    """Problems from files of GSM8K's format; a split exists if its file is given.

    For such problems without a file, see `reasoning_gym/gsm_symbolic`.

    Args:
      path: records of the train split, see `jaxrl.data.sources.records`.
      test_path: records of the test split.
      ood_path: records of the ood split, such as another set of the same format.
      answer_format: see `jaxrl.data.sources.extract`; "number" suits models that follow no format.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]
    files = {s: f for s, f in [("train", path), ("test", test_path), ("ood", ood_path)] if f}
    read = functools.cache(records.read)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        record, where = read(files[split])[index], f"{files[split]}, record {index}"
        question = records.field(record, "question", where)
        worked = records.field(record, "answer", where)
        if not isinstance(worked, str):
            raise ValueError(f"{where}: answer={worked!r} is no text that ends in '#### NUMBER'")
        solution, mark, answer = worked.rpartition("####")
        if not mark or number(answer) is None:
            raise ValueError(f"{where}: answer={answer!r} does not end in '#### NUMBER'")
        prompt = extract.fill(template, question)
        return generate.user_problem(
            "gsm8k", question, prompt, answer.strip(), solution=solution.strip()
        )

    def reward(problem: Problem, completion: str) -> Score:
        value = number(find(completion) or "")
        correct = value is not None and value == number(problem.answer)
        return Score(
            float(correct), {"correct": float(correct), "format": float(value is not None)}
        )

    task = Task(
        name="gsm8k",
        problem=problem,
        reward=reward,
        gold=lambda problem: (
            f"{problem.metadata['solution']}\n{extract.write_answer(answer_format, problem.answer)}"
        ),
        splits=tuple(files),
        sizes={split: len(read(file)) for split, file in files.items()},
        description=__doc__,
        pure=True,
    )
    return task


def number(text: str) -> Decimal | None:
    """The number that `text` is, see `jaxrl.data.sources.extract.number`; else None."""
    number_text = extract.number(text)
    return None if number_text is None else Decimal(number_text)
