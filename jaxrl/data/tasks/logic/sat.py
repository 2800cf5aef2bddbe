"""Boolean satisfiability: give a satisfying assignment, or say that there is none."""

from __future__ import annotations

import random
import re

from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

Clauses = tuple[tuple[int, ...], ...]
"""As in DIMACS: literal v is variable v, -v its negation."""

_LITERAL = re.compile(r"\bx([0-9]{1,3})\s*=\s*([01]|true|false)\b", re.IGNORECASE)


def task(
    variables: int = 4,
    clauses: int = 17,
    width: int = 3,
    unsatisfiable: float = 0.25,
    ood_variables: int | None = None,
    answer_format: str = "tags",
    template: str = "",
) -> Task:
    """Random k-SAT. The ood split keeps the ratio of clauses to variables.

    Args:
      variables: in train and test.
      clauses: in train and test.
      width: literals a clause, of distinct variables.
      unsatisfiable: share of problems without a solution; 0 leaves UNSAT out of the question.
      ood_variables: in the ood split; None means half as many again.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    ood_variables = variables + (variables + 1) // 2 if ood_variables is None else ood_variables
    if not 1 <= width <= variables < ood_variables <= 30:
        raise ValueError(
            f"width={width}, variables={variables}, ood_variables={ood_variables}: need "
            "1 <= width <= variables < ood_variables <= 30"
        )
    if clauses < 1 or not 0 <= unsatisfiable < 1:
        raise ValueError(f"clauses={clauses} must be >= 1, unsatisfiable={unsatisfiable} in [0, 1)")
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("sat", split, seed, index)
        count = ood_variables if split == "ood" else variables
        satisfiable = stream.random() >= unsatisfiable

        def draw(stream: random.Random) -> Clauses:
            for _ in range(10_000):
                candidate = tuple(
                    tuple(v if stream.random() < 0.5 else -v for v in sorted(chosen))
                    for _ in range(round(clauses * count / variables))
                    for chosen in [stream.sample(range(1, count + 1), width)]
                )
                if (solve(candidate) is not None) == satisfiable:
                    return candidate
            raise ValueError(
                f"clauses={clauses}: no formula found that is "
                f"{'' if satisfiable else 'un'}satisfiable; lower it, or raise it if "
                "unsatisfiable formulas are asked for"
            )

        formula = generate.draw(
            draw, key=lambda formula: str(sorted(formula)), stream=stream, split=split
        )
        solution = solve(formula)
        formula_text = " and ".join(
            "(" + " or ".join(f"{'not ' if v < 0 else ''}x{abs(v)}" for v in clause) + ")"
            for clause in formula
        )
        ending = ", or UNSAT if there are none" if unsatisfiable else ""
        question = (
            f"{formula_text}\nGive values from x1 to x{count} that make this true, such as x1=1 "
            f"x2=0{ending}."
        )
        return generate.user_problem(
            "sat",
            str(sorted(formula)),
            extract.fill(template, question),
            None if solution is None else write(solution, count),
            clauses=formula,
            variables=count,
        )

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion) or ""
        if answer.strip().upper() == "UNSAT":
            correct = problem.answer is None
            return Score(float(correct), {"correct": float(correct), "format": 1.0})
        read = parse(answer, problem.metadata["variables"])
        correct = read is not None and holds(problem.metadata["clauses"], read)
        return Score(float(correct), {"correct": float(correct), "format": float(read is not None)})

    task = Task(
        name="sat",
        problem=problem,
        reward=reward,
        gold=lambda problem: extract.write_answer(answer_format, problem.answer or "UNSAT"),
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def solve(clauses: Clauses) -> dict[int, bool] | None:
    """A satisfying partial assignment by unit propagation and splitting (DPLL), or None."""
    values: dict[int, bool] = {}
    while True:
        if not all(clauses):
            return None
        unit = next((clause[0] for clause in clauses if len(clause) == 1), None)
        if unit is None:
            break
        values[abs(unit)] = unit > 0
        clauses = _assume(clauses, unit)
    if not clauses:
        return values
    for literal in (clauses[0][0], -clauses[0][0]):
        rest = solve(_assume(clauses, literal))
        if rest is not None:
            return values | {abs(literal): literal > 0} | rest
    return None


def holds(clauses: Clauses, values: dict[int, bool]) -> bool:
    """Whether a full assignment makes every clause true."""
    return all(any(values[abs(v)] == (v > 0) for v in clause) for clause in clauses)


def write(values: dict[int, bool], variables: int) -> str:
    """An assignment as `x1=1 x2=0`; a variable left open is 0."""
    return " ".join(f"x{v}={int(values.get(v, False))}" for v in range(1, variables + 1))


def parse(text: str, variables: int) -> dict[int, bool] | None:
    """The assignment that `text` spells and nothing else, each variable once; None otherwise."""
    pairs = _LITERAL.findall(text)
    if re.sub(r"[\s,;]", "", _LITERAL.sub("", text)):
        return None
    values = {int(v): value.lower() in ("1", "true") for v, value in pairs}
    if len(pairs) != len(values) or set(values) != set(range(1, variables + 1)):
        return None
    return values


def _assume(clauses: Clauses, literal: int) -> Clauses:
    return tuple(
        tuple(v for v in clause if v != -literal) for clause in clauses if literal not in clause
    )
