"""Readers of completions that share no code with the verifiers, for `tests.benchmarks.verdicts`."""

from __future__ import annotations

import ast
import itertools
import json
import re
import sqlite3
import string
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from jaxrl.data.sandbox import runner
from jaxrl.data.types import Problem


def _tagged(text: str) -> str:
    """What the last pair of answer tags holds; empty without one."""
    return (re.findall(r"<answer>((?:(?!<answer>).)*?)</answer>", text, re.DOTALL) or [""])[-1]


def _plain_number(text: str) -> Fraction | None:
    """A decimal number with at most a currency, a percent sign and words of a unit around it."""
    shape = (
        r"\s*([-+]?)\s*[$*]*\s*([0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
        r"\s*%?[*]*(?:\s*[A-Za-z]+){0,3}\.?\s*"
    )
    found = re.fullmatch(shape, text.replace("\u2212", "-"))
    if not found:
        return None
    whole = found[2].split(".")[0]
    if "," in whole and not re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", whole):
        return None
    return Fraction(found[1] + found[2].replace(",", ""))


def _whole_number(problem: Problem, text: str) -> bool:
    return bool(re.fullmatch(r"\s*[+-]?[0-9]+\s*", text)) and int(text) == int(problem.answer)


def _with_confidence(problem: Problem, text: str) -> float:
    """2 q - q^2 if the prompt's sum is right, -q^2 if not, -1 without one q in [0, 1]."""
    stated = re.findall(r"<confidence>\s*([0-9.]+)\s*</confidence>", text)
    if len(stated) != 1 or not re.fullmatch(r"0?\.[0-9]+|[01](\.0*)?", stated[0]):
        return -1.0
    q, left = float(stated[0]), re.sub(r"<confidence>.*?</confidence>", "", text)
    total = int(_value(ast.parse(problem.prompt.split("=")[0], mode="eval"), []))
    right = bool(re.fullmatch(r"\s*[+-]?[0-9]+\s*", left)) and int(left) == total
    return 2 * q - q * q if right else -q * q


def _near(problem: Problem, text: str) -> float:
    """Nearness to the prompt's expression to two decimals, all in fractions."""
    exact = _value(ast.parse(problem.prompt.split("\n")[0], mode="eval"), [])
    value = Fraction(round(float(exact), 2)).limit_denominator(100)
    said = _plain_number(_tagged(text))
    if said is None:
        return 0.0
    error = abs(said - value)
    share = error / (abs(value) + Fraction(1, 10**6))
    return float(1 - min(error, Fraction(1)) / 2 - min(share, Fraction(1)) / 2)


def _letter(problem: Problem, text: str) -> bool:
    """One letter between the tags, with no number beside it but the sum."""
    a, b = map(int, re.findall(r"What is (\d+) \+ (\d+)", problem.prompt)[0])
    options = dict(re.findall(r"^([A-D])\. (\d+)$", problem.prompt, re.MULTILINE))
    letters = set(re.findall(r"\b[A-D]\b", _tagged(text)))
    numbers = set(re.findall(r"\d+", _tagged(text)))
    return len(letters) == 1 and int(options[letters.pop()]) == a + b and numbers <= {str(a + b)}


def _part(problem: Problem, text: str) -> float:
    return float({"numbers": _near, "words": _letter}[problem.domain](problem, text))


def _object(problem: Problem, text: str) -> bool:
    """The record, alone or in a fence, types as the schema has them."""
    fenced = re.findall(r"```(?:json)?\n(.*?)\n```", text, re.DOTALL)
    try:
        found = json.loads(fenced[-1] if fenced else text)
    except ValueError:
        return False
    return isinstance(found, dict) and repr(sorted(found.items())) == repr(
        sorted(problem.answer.items())
    )


def _rows(problem: Problem, text: str) -> bool:
    """The rows of the reference on every hidden database."""
    fenced = re.findall(r"```(?:sql|sqlite)?\n(.*?)```", text, re.DOTALL | re.IGNORECASE)
    for script in problem.metadata["databases"]:
        database = sqlite3.connect(":memory:")
        database.executescript(script)
        wanted = database.execute(problem.answer).fetchall()
        try:
            rows = database.execute(fenced[-1] if fenced else text).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return False
        if (rows if "order by" in problem.answer.lower() else Counter(rows)) != (
            wanted if "order by" in problem.answer.lower() else Counter(wanted)
        ):
            return False
    return True


def _value(node: ast.AST, used: list[int]) -> Fraction:
    match node:
        case ast.Expression(body=body):
            return _value(body, used)
        case ast.Constant(value=int() as number):
            used.append(number)
            return Fraction(number)
        case ast.BinOp(left=left, op=op, right=right):
            x, y = _value(left, used), _value(right, used)
            match op:
                case ast.Add():
                    return x + y
                case ast.Sub():
                    return x - y
                case ast.Mult():
                    return x * y
                case ast.Div():
                    return x / y
    raise ValueError(ast.dump(node))


def _expression(problem: Problem, text: str) -> bool:
    """What follows "=" aside, an expression of exactly the numbers whose value is the target."""
    *numbers, target = map(int, re.findall(r"\d+", problem.prompt.split("\n")[0]))
    said = _tagged(text).split("=")
    used: list[int] = []
    try:
        value = _value(ast.parse(said[0].strip(), mode="eval"), used)
        ends = all(float(side) == target for side in said[1:])
    except (ValueError, SyntaxError, ZeroDivisionError):
        return False
    return ends and value == target and sorted(used) == sorted(numbers)


def _walk(problem: Problem, text: str) -> bool:
    """Moves in a set of open places that end on the goal."""
    rows = problem.prompt.split("\n")[: problem.prompt.split("Move from")[0].count("\n")]
    places = {complex(x, y): c for y, row in enumerate(rows) for x, c in enumerate(row)}
    at = next(place for place, c in places.items() if c == "S")
    for letter in re.sub(r"[\s,.>-]", "", _tagged(text)).upper():
        at += {"U": -1j, "D": 1j, "L": -1, "R": 1}.get(letter, 1000)
        if places.get(at, "#") == "#":
            return False
    return places[at] == "G"


def _path(problem: Problem, text: str) -> bool:
    """A path of the roads that the prompt has, as short as Floyd and Warshall's distance."""
    roads = re.findall(r"([A-Z])-([A-Z]) (\d+)", problem.prompt)
    start, end = re.findall(r"path from ([A-Z]) to ([A-Z])", problem.prompt)[0]
    names = sorted({name for a, b, _ in roads for name in (a, b)})
    length = {(a, b): 0 if a == b else 10**6 for a in names for b in names}
    for a, b, weight in roads:
        length[a, b] = length[b, a] = int(weight)
    direct = {pair: weight for pair, weight in length.items() if 0 < weight < 10**6}
    for middle, a, b in itertools.product(names, repeat=3):
        length[a, b] = min(length[a, b], length[a, middle] + length[middle, b])
    places = (
        _tagged(text).replace("->", " ").replace("-", " ").replace(",", " ").strip(" .").split()
    )
    if len(places) < 2 or (places[0], places[-1]) != (start, end):
        return False
    steps = [direct.get(pair, 10**6) for pair in itertools.pairwise(places)]
    return sum(steps) == length[start, end]


def _assignment(problem: Problem, text: str) -> bool:
    """A line of the truth table of the prompt's formula, or UNSAT where none is true."""
    formula, _, rest = problem.prompt.partition("\n")
    names = [f"x{i + 1}" for i in range(int(re.findall(r"x1 to x(\d+)", rest)[0]))]
    clauses = [
        [(name, not negated) for negated, name in re.findall(r"(not )?(x\d+)", clause)]
        for clause in formula.split(" and ")
    ]
    table = [
        dict(zip(names, values, strict=True))
        for values in itertools.product([False, True], repeat=len(names))
    ]
    true = [row for row in table if all(any(row[n] == v for n, v in c) for c in clauses)]
    said = _tagged(text).strip()
    if said.upper() == "UNSAT":
        return not true
    pairs = [pair.split("=") for pair in re.split(r"[\s,;]+", said) if pair]
    if sorted(pair[0] for pair in pairs) != names or any(
        pair[1:] not in (["0"], ["1"]) for pair in pairs
    ):
        return False
    return {name: value == "1" for name, value in pairs} in true


def _constraints(problem: Problem, text: str) -> float:
    """The share of the prompt's demands that the text meets; 0 if it does not name the topic."""
    text = text.strip()
    words = "".join(c if c in string.ascii_letters else " " for c in text).lower().split()
    topic, _, demands = re.fullmatch(
        r"Write about a (\w+)(, naming it): (.*)\.", problem.prompt
    ).groups()
    if topic not in words:
        return 0.0
    lines, met = text.split("\n"), []
    for demand in demands.split("; "):
        match demand.split():
            case ["use", "exactly", n, "words"]:
                met.append(len(words) == int(n))
            case ["write", "exactly", n, "lines"]:
                met.append(len(lines) == int(n))
            case ["start", "every", *_]:
                met.append(all(line[:2] == "- " for line in lines))
            case ["use", ("upper" | "lower") as case, *_]:
                met.append(not any(c.isupper() if case == "lower" else c.islower() for c in text))
            case ["use", "the", "word", word, "exactly", n, "times"]:
                met.append(words.count(word.strip("'")) == int(n))
            case ["do", "not", "use", "the", "letter", letter]:
                met.append(letter.strip("'") not in text.lower())
            case ["make", word, *_]:
                met.append(words[-1] == word.strip("'"))
            case ["use", "no", "comma"]:
                met.append("," not in text)
            case other:
                raise ValueError(f"demand {other} is not known")
    return sum(met) / len(met)


def _same_words(problem: Problem, text: str) -> bool:
    return text.split() == problem.answer.split()


def _same_sentence(problem: Problem, text: str) -> bool:
    """Equal words, whatever their case, punctuation and articles."""

    def words(said: str) -> list[str]:
        plain = "".join(c for c in said.lower() if c.isalnum() or c.isspace())
        return [word for word in plain.split() if word not in ("a", "an", "the")]

    return words(text) == words(problem.answer)


def _number(problem: Problem, text: str) -> bool:
    said = _plain_number(_tagged(text))
    return said is not None and said == Fraction(problem.answer.replace(",", ""))


def _same_formula(problem: Problem, text: str) -> bool:
    """Equal letter for letter but for LaTeX's spacing and spellings, or equal in value."""
    begin = text.rfind("\\boxed{")
    inner, depth = "", 1
    for c in text[begin + 7 :] if begin >= 0 else "":
        depth += (c == "{") - (c == "}")
        if not depth:
            break
        inner += c

    def plain(said: str) -> str:
        said = re.sub(
            r"\\(left|right|[,;!: ]|displaystyle|\$)|\^\\circ|\^{\\circ}|\s|\$|\\%|%", "", said
        )
        said = (
            re.sub(r"\\text\{(.*?)\}", r"\1", said)
            .replace("dfrac", "frac")
            .replace("tfrac", "frac")
        )
        return re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", said).rstrip(".")

    def value(said: str) -> Fraction | None:
        found = re.fullmatch(
            r"(-?)\\frac\{(-?\d+)\}\{(\d+)\}|(-?[\d,]+(?:\.\d+)?)(?:/(\d+))?", said
        )
        if not found or "0" in (found[3], found[5]):
            return None
        if found[4]:
            return Fraction(found[4].replace(",", "")) / int(found[5] or 1)
        return Fraction(int(found[1] + "1") * int(found[2]), int(found[3]))

    a, b = plain(inner), plain(problem.answer)
    return bool(a) and depth == 0 and (a == b or (value(a) is not None and value(a) == value(b)))


def _program(problem: Problem, text: str) -> bool:
    """What the prompt's first words ask, computed here for other inputs than the verifier's."""
    blocks = re.findall(r"```(\w*)[^\n]*\n(.*?)```", text, re.DOTALL)
    labelled = [body for label, body in blocks if label.lower() in ("python", "py", "python3")]
    bodies = labelled or [body for label, body in blocks if not label]
    if not bodies:
        return False
    asked = re.findall(r"integers\. (.*?), and print", problem.prompt)[0].lower()
    inputs = [[3, -4, 7, 7, 0, 12, 5], [-9, 20, 2, 1, 4, 6, -1, 15], [8, 6, 5, 4, 3, 2]]
    outcomes = runner.run_each(
        [sys.executable, "-I", "main.py"],
        [" ".join(map(str, row)) + "\n" for row in inputs],
        files={"main.py": bodies[-1]},
        until_failure=True,
    )
    if len(outcomes) < len(inputs) or any(o.end != "exit" or o.status for o in outcomes):
        return False
    return all(
        [line.split() for line in o.stdout.strip().split("\n")]
        == [list(map(str, _done(asked, row)))]
        for o, row in zip(outcomes, inputs, strict=True)
    )


def _done(asked: str, row: list[int]) -> list[int]:
    """A list after the operations that a sentence names."""
    for step in asked.split(", then "):
        (k,) = map(int, re.findall(r"\d+", step) or [0])
        match step.split():
            case ["keep", "those", *_]:
                row = [v for v in row if v > k]
            case ["add", *_]:
                row = [v + k for v in row]
            case ["multiply", *_]:
                row = [v * k for v in row]
            case ["drop", *_]:
                row = row[k:]
            case ["reverse", *_]:
                row = row[::-1]
            case ["sort", *_]:
                row = sorted(row)
            case ["keep", "the", "even", *_]:
                row = [v for v in row if v % 2 == 0]
            case ["square", *_]:
                row = [v**2 for v in row]
    return row


CHECKERS: dict[str, Callable[[Problem, str], bool | float]] = {
    "arithmetic": _whole_number,
    "calibrated": _with_confidence,
    "random_calculation": _near,
    "countdown": _expression,
    "maze": _walk,
    "translation": _same_words,
    "next_segment": _same_sentence,
    "shortest_path": _path,
    "multiple_choice": _letter,
    "mixture": _part,
    "json_output": _object,
    "sql": _rows,
    "format_following": _constraints,
    "sat": _assignment,
    "gsm8k": _number,
    "math": _same_formula,
    "code": _program,
}
"""A reader of each task that shares no code with its verifier. It gives whether the completion is
right, or its exact reward where that is neither 0 nor 1."""
