"""Sums of fractions, whose answers have many surface forms: 1/2, 2/4, 0.5 and 50% are one number.

Rewarded as in Ma et al. 2025, "General-Reasoner: Advancing LLM Reasoning Across All Domains".
"""

from __future__ import annotations

import fractions
import random
import re

from jaxrl.data.rewards import verifier
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_BELOW = (2, 4, 5, 8, 10)
_NUMBER = re.compile(r"-?[0-9]{1,6}(?:/[0-9]{1,6}|\.[0-9]{1,6})?%?")
WAYS = ("value", "text")


def value(text: str) -> fractions.Fraction | None:
    """The number that a text is: a fraction, a decimal number or a percentage; else None."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        number = fractions.Fraction(text.rstrip("%"))
    except ZeroDivisionError:
        return None
    return number / 100 if text.endswith("%") else number


def task(
    terms: int = 2,
    verify: str = "value",
    slips: float = 0.0,
    varied: float = 0.0,
    ood_terms: int | None = None,
    answer_format: str = "text",
    template: str = "{question}=",
) -> Task:
    """Sums of fractions; the reference is in one of the forms of the sum.

    The reward is `jaxrl.data.rewards.verifier.verified`, by characters.

    Args:
      terms: of a sum in train and test.
      verify: what is compared with the reference: the `value` or the `text`.
      slips: share of the solutions to imitate that are off by one tenth.
      varied: share of these that are in a form of their own.
      ood_terms: the same as `terms` for the ood split; None means one more than `terms`.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it.
    """
    ood_terms = terms + 1 if ood_terms is None else ood_terms
    if not 2 <= terms < ood_terms <= 20:
        raise ValueError(f"terms={terms}, ood_terms={ood_terms}: need 2 <= terms < ood_terms <= 20")
    if verify not in WAYS:
        raise ValueError(f"verify={verify!r}: choose one of {', '.join(WAYS)}")
    if not 0 <= slips < 1 or not 0 <= varied <= 1:
        raise ValueError(f"slips={slips}, varied={varied}: must be from 0 to 1, slips below 1")
    find = extract.extractor(answer_format)
    extract.fill(template, "")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_terms if split == "ood" else terms
        sum_terms = generate.draw(
            lambda stream: [_term(stream) for _ in range(count)],
            key=lambda sum_terms: "+".join(map(str, sum_terms)),
            stream=generate.rng("fractions", split, seed, index),
            split=split,
        )
        question = "+".join(f"{over}/{below}" for over, below in sum_terms)
        total = sum(fractions.Fraction(*term) for term in sum_terms)
        answer = generate.rng("form", question).choice(forms(total))
        return generate.user_problem(
            "fractions", question, extract.fill(template, question), answer
        )

    def gold(problem: Problem) -> str:
        stream, answer = generate.rng("slip", problem.id), problem.answer
        total = value(answer)
        if stream.random() < varied:
            answer = stream.choice(forms(total))
        if stream.random() < slips:
            answer = stream.choice(forms(total + fractions.Fraction(1, 10)))
        return extract.write_answer(answer_format, answer)

    def accepts(problem: Problem, answer: str) -> bool:
        by_value = verify == "value" and value(answer) == value(problem.answer)
        return answer == problem.answer or by_value

    def stated(completion: str) -> str | None:
        answer = find(completion)
        return answer if answer is not None and value(answer) is not None else None

    task = Task(
        name="fractions",
        problem=problem,
        reward=verifier.by_verdict(stated, accepts, len),
        gold=gold,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def forms(number: fractions.Fraction) -> list[str]:
    """Ways to write a number whose decimals end: reduced, doubled, decimal and in percent."""
    over, below = number.numerator, number.denominator
    decimal = f"{float(number):.6f}".rstrip("0").rstrip(".")
    percent = f"{float(number * 100):.4f}".rstrip("0").rstrip(".")
    return [f"{over}/{below}", f"{2 * over}/{2 * below}", decimal, f"{percent}%"]


def _term(stream: random.Random) -> tuple[int, int]:
    below = stream.choice(_BELOW)
    return stream.randrange(1, below), below
