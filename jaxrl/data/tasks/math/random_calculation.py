"""RandomCalculation: fresh arithmetic expressions, scored by how near the answer comes.

Wu et al. 2025, "Reasoning or Memorization? Unreliable Results of Reinforcement Learning Due to Data
Contamination": problems that no training set can hold, for benchmarks may have leaked into one.
"""

from __future__ import annotations

import random
from fractions import Fraction

from jaxrl.data.rewards import math
from jaxrl.data.sources import extract, generate
from jaxrl.data.tasks.math import countdown
from jaxrl.data.types import Problem, Score, Task


def task(
    operations: int = 2,
    largest: int = 100,
    operators: str = "+-*/",
    ood_operations: int | None = None,
    answer_format: str = "tags",
    template: str = "",
) -> Task:
    """Expressions to compute to two decimals.

    Args:
      operations: in an expression of train and test; a tree of them, brackets as needed.
      largest: numbers are from 0 to this.
      operators: which of + - * / are drawn; nothing is divided by 0.
      ood_operations: of the ood split; None means one more than `operations`.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    ood_operations = operations + 1 if ood_operations is None else ood_operations
    if not 1 <= operations < ood_operations:
        raise ValueError(
            f"operations={operations}, ood_operations={ood_operations}: need "
            "1 <= operations < ood_operations"
        )
    if not operators or set(operators) - set("+-*/"):
        raise ValueError(f"operators={operators!r}: choose one or more of +-*/")
    if largest < 1:
        raise ValueError(f"largest={largest} must be positive")
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]

    def draw(stream: random.Random, count: int) -> tuple[Fraction, str]:
        numbers = [stream.randint(0, largest) for _ in range(count + 1)]
        return countdown.combine(stream, [(Fraction(n), str(n)) for n in numbers], operators)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        value, expression = generate.draw(
            lambda stream: draw(stream, ood_operations if split == "ood" else operations),
            key=lambda sample: sample[1],
            stream=generate.rng("random_calculation", split, seed, index),
            split=split,
        )
        question = expression.replace(" ", "")
        prompt = extract.fill(template, question)
        answer = round(float(value), 2)
        return generate.user_problem("random_calculation", question, prompt, answer)

    def reward(problem: Problem, completion: str) -> Score:
        stated = math.read_number(find(completion) or "")
        value = 0.0 if stated is None else math.nearness(stated, problem.answer)
        return Score(value, {"correct": float(value == 1.0), "format": float(stated is not None)})

    task = Task(
        name="random_calculation",
        problem=problem,
        reward=reward,
        gold=lambda problem: extract.write_answer(answer_format, decimal(problem.answer)),
        alphabet=generate.ASCII,
        description=__doc__.partition("\n")[0],
        pure=True,
    )
    return task


def decimal(value: float) -> str:
    """A value of two decimals as it is written: `5`, `-0.25`, `697670000`."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
