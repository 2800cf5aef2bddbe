"""Scorers for generators of reasoning-gym whose own ones cannot be used.

Most of those evaluate the answer as Python; here it is parsed, and nothing of it runs. The others
give the full score to a constant: any text for `game_of_life_halting`, 0 for `coin_flip`. A score
is what the generator's own gives to a well-formed answer, except that `puzzle24` wants the numbers
of the problem and an integral must not be answered by itself. `watched` guards the scorers of all
other generators.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import os
import re
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import sympy
from reasoning_gym.dataset import ProceduralDataset

from jaxrl.data.tasks.math import countdown

Scorer = Callable[[ProceduralDataset, str, Mapping[str, Any]], float]
"""(generator, answer, entry) -> score."""

_LONGEST = 20_000  # characters of an answer
_DIGITS, _LARGEST_POWER = 40, 100
_FUNCTIONS = {
    name: getattr(sympy, name)
    for name in (
        "exp", "log", "ln", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos",
        "atan", "acot", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "Abs",
    )
}  # fmt: skip
_PROBABILITY = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20}|/[0-9]{1,20})?")
_CONSTANTS = {"E": sympy.E, "pi": sympy.pi}


class Evaluated(RuntimeError):
    """A generator's scorer tried to run text."""


def _literal(answer: str) -> Any:
    """The Python literal that the answer spells.

    Raises:
      ValueError: none.
    """
    try:
        return ast.literal_eval(answer) if len(answer) <= _LONGEST else None
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _listed(full: Callable[[str, Mapping[str, Any]], bool], write: Any, share: float) -> Scorer:
    """1 for the answer as it is asked for, `share` for the Python list that means the same."""

    def score(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
        if full(answer, entry):
            return 1.0
        try:
            return share if full(write(_literal(answer)), entry) else 0.0
        except (ValueError, TypeError):
            return 0.0

    return score


def _rows(board: Any) -> str:
    return "\n".join(" ".join(map(str, row)) for row in board)


def _is_oracle(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer.strip() == entry["answer"].strip()


def _expression(text: str, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """The expression that `text` spells: numbers, symbols, + - * / **, and elementary functions.

    Raises:
      ValueError: anything else, or numbers and powers too large to compute with.
    """
    if len(text) > _LONGEST:
        raise ValueError("too long")
    names = {**_CONSTANTS, **symbols}

    def build(node: ast.expr) -> sympy.Expr:
        match node:
            case ast.Constant(value=int(number)) if type(number) is int:
                return sympy.Integer(_bounded(number))
            case ast.Constant(value=float(number)):
                return sympy.Float(number)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -build(inner)
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return build(inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return build(left) + build(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return build(left) - build(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return build(left) * build(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return build(left) / build(right)
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                base, exponent = build(left), build(right)
                if exponent.is_number and not abs(exponent) <= _LARGEST_POWER:
                    raise ValueError(f"power {exponent}")
                return base**exponent
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](build(inner))
        raise ValueError(f"not part of an expression: {ast.dump(node)[:80]}")

    try:
        return build(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, MemoryError, RecursionError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def _bounded(number: int) -> int:
    if abs(number) >= 10**_DIGITS:
        raise ValueError(f"a number of more than {_DIGITS} digits")
    return number


def _integral(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
    """1 if the answer's derivative is the integrand."""
    metadata = entry["metadata"]
    if answer.strip() == entry["answer"].strip():
        return 1.0  # some hold integrals that sympy leaves as they are
    variable = sympy.Symbol(metadata["variable"])
    symbols = {metadata["variable"]: variable}
    try:
        derivative = sympy.diff(_expression(answer, {"C": sympy.Symbol("C"), **symbols}), variable)
    except ValueError:
        return 0.0
    difference = derivative - _expression(metadata["integrand"], symbols)
    return float(sympy.simplify(difference) == 0)


def _polynomial(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
    """1 if the answer is the product, written as a sum."""
    names = set(re.findall(r"[A-Za-z]+", entry["answer"]))
    symbols = {name: sympy.Symbol(name) for name in names}
    try:
        return float(_expression(answer, symbols) == _expression(entry["answer"], symbols))
    except ValueError:
        return 0.0


def _used(answer: str, numbers: list[int]) -> bool:
    return Counter(map(int, re.findall(r"[0-9]+", answer))) == Counter(numbers)


def _countdown(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
    """1 if the expression uses each number once and makes the target; 0.05, 0.01 as upstream."""
    value = countdown.evaluate(answer.strip(), signs=True)
    if value is None:
        return 0.01
    metadata = entry["metadata"]
    return 1.0 if _used(answer, metadata["numbers"]) and value == metadata["target"] else 0.05


def _puzzle24(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
    """1 if the expression uses each of the four numbers once and makes 24; else 0.01."""
    operators = "".join(dataset.config.operators)
    value = countdown.evaluate(answer.strip(), operators, signs=True)
    return 1.0 if value == 24 and _used(answer, entry["metadata"]["numbers"]) else 0.01


def _halting(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
    return float(answer.strip().lower() == entry["answer"].lower())


def _coin_flip(dataset: ProceduralDataset, answer: str, entry: Mapping[str, Any]) -> float:
    """1 within 1e-4; else the share of leading digits that are right, of the longer of the two."""
    if not _PROBABILITY.fullmatch(answer.strip()):
        return 0.0
    try:
        answer_value, right = float(Fraction(answer.strip())), float(Fraction(entry["answer"]))
    except ZeroDivisionError:
        return 0.0
    if abs(answer_value - right) <= 1e-4:
        return 1.0
    texts = f"{answer_value:.10g}", f"{right:.10g}"
    same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), len(texts[0]))
    return min(same / max(map(len, texts)), 0.99)


SCORERS: dict[str, Scorer] = {
    "coin_flip": _coin_flip,
    "game_of_life_halting": _halting,
    "string_insertion": _listed(_is_oracle, "".join, 0.1),
    "spiral_matrix": _listed(_is_oracle, lambda items: " ".join(map(str, items)), 0.1),
    "binary_matrix": _listed(_is_oracle, _rows, 0.1),
    "n_queens": _listed(
        lambda answer, entry: answer in entry["metadata"]["valid_answers"], _rows, 0.5
    ),
    "countdown": _countdown,
    "puzzle24": _puzzle24,
    "simple_integration": _integral,
    "intermediate_integration": _integral,
    "polynomial_multiplication": _polynomial,
}
"""By generator."""

_NUMBERS = re.compile(
    r"(?<![^\W_])(?:(?:nan|inf(?:inity)?|oo|zoo)[ij]?|[0-9_.]+e\+?[0-9_]+[ij]?|[0-9_]{309,}"
    r"(?:\.[0-9_]*)?[ij]?)(?![^\W_])",
    re.IGNORECASE,
)
"""Words that are numbers without an end, and numbers that may be too large to be one."""


def non_finite(answer: str) -> list[str]:
    """The numbers of an answer that are not finite, or that no float holds: nan, inf, 1e999.

    Digits of any script count, as Python reads them all. A formula of such a number can be met by
    any question: min(1, nan) is 1.
    """
    plain = "".join(
        str(unicodedata.digit(c)) if c.isdecimal() else c
        for c in unicodedata.normalize("NFKC", answer)
    )
    return [word for word in _NUMBERS.findall(plain) if not _is_finite(word)]


def _is_finite(word: str) -> bool:
    try:
        return math.isfinite(float(word.rstrip("ijIJ").replace("_", "")))
    except ValueError:
        return False


_REFUSED_EVENTS = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen",
    "pickle.find_class", "socket.connect", "os.putenv",
)  # fmt: skip
_WATCHING = threading.local()


@contextlib.contextmanager
def watched(entry: Mapping[str, Any]) -> Iterator[None]:
    """Refuse to compile text that is not the problem's own, and to start programs, meanwhile.

    Raises:
      Evaluated: something did, whether or not the scorer hid that.
    """
    _install()
    _WATCHING.trusted, _WATCHING.refused = str(entry), []
    try:
        yield
    finally:
        refused, _WATCHING.refused = _WATCHING.refused, None
    if refused:
        raise Evaluated(refused[0])


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    refused = getattr(_WATCHING, "refused", None)
    if refused is None:
        return
    if event == "compile":
        source, filename = arguments
        name = os.fsdecode(filename) if filename else ""
        if name == "<unknown>" or (isinstance(source, bytes) and os.path.isabs(name)):
            return  # ast.parse, which makes a tree and no code; and modules as they are imported
        text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
        if isinstance(text, str) and text in _WATCHING.trusted:
            return
    elif event not in _REFUSED_EVENTS:
        return
    offence = f"{event} {str(arguments)[:200]}"
    refused.append(f"this generator's scorer runs what the answer says: {offence}")
    raise Evaluated(refused[-1])


@functools.cache
def _install() -> None:
    """Once: an audit hook stays for the life of the process."""
    sys.addaudithook(_hook)
