r"""Problems in the format of MATH: `problem`, and a `solution` whose answer is in `\boxed{}`.

Hendrycks et al. 2021, "Measuring Mathematical Problem Solving With the MATH Dataset".
"""

from __future__ import annotations

import functools

from jaxrl.data.rewards import math
from jaxrl.data.sources import extract, generate, records
from jaxrl.data.types import Problem, Task


def task(
    path: str,
    test_path: str = "",
    ood_path: str = "",
    answer_format: str = "boxed",
    template: str = "",
) -> Task:
    """Problems from files of MATH's format, scored by math-verify; a split exists with its file.

    Args:
      path: records of the train split, see `jaxrl.data.sources.records`.
      test_path: records of the test split.
      ood_path: records of the ood split.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    template = template or extract.INSTRUCTIONS[extract.checked(answer_format)]
    files = {s: f for s, f in [("train", path), ("test", test_path), ("ood", ood_path)] if f}
    read = functools.cache(records.read)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        record, where = read(files[split])[index], f"{files[split]}, record {index}"
        question = records.field(record, "problem", where)
        solution = records.field(record, "solution", where)
        answer = record.get("answer")
        if answer is None or answer == "":  # and not 0
            answer = extract.boxed(solution)
        if answer is None:
            raise ValueError(f"{where}: the solution has no \\boxed{{}} and there is no `answer`")
        metadata = {name: record[name] for name in ("level", "type", "subject") if name in record}
        prompt = extract.fill(template, question)
        return generate.user_problem(
            "math", question, prompt, str(answer), solution=solution, **metadata
        )

    task = Task(
        name="math",
        problem=problem,
        reward=math.equivalent(answer_format),
        gold=lambda problem: extract.write_answer(answer_format, problem.answer),
        splits=tuple(files),
        sizes={split: len(read(file)) for split, file in files.items()},
        description=__doc__,
    )
    return task
