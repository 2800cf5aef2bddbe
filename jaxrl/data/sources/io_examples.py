"""Unit tests of a function as examples of standard input and output, for programs in any language.

Agnostics (Boruch-Gruszecki et al. 2025) has a language model rewrite tests and task. Here a rule
rewrites tests whose values fit on one line each, and the prompt states the format.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from jaxrl.data.rewards.programs import code

CONVENTION = (
    "Read the arguments of the function from standard input, one a line, and print its value. The "
    "items of a list or tuple are separated by spaces, texts are written without quotes, and truth "
    "values as True or False."
)
"""What a task in these examples has to say."""


def of_asserts(source: str) -> list[tuple[str, str]]:
    """`assert f(3, [1, 2]) == 5` as `("3\\n1 2\\n", "5\\n")`, and so each line of a test.

    Args:
      source: assertions that calls of one function equal literals.

    Raises:
      ValueError: other assertions, or a value that does not fit on one line: a nested list, a
        dictionary, None, a text in a list that has a blank in it, or one with a line break.
    """
    pairs, functions = [], set()
    for expression, value in code.calls_of_asserts(source):
        call = ast.parse(expression, mode="eval").body
        if not isinstance(call, ast.Call) or call.keywords or not isinstance(call.func, ast.Name):
            raise ValueError(f"not a call with positional arguments: {expression}")
        functions.add(call.func.id)
        arguments = [ast.literal_eval(node) for node in call.args]
        stdin = "".join(f"{spelled(argument)}\n" for argument in arguments)
        pairs.append((stdin, f"{spelled(value)}\n"))
    if len(functions) > 1:
        raise ValueError(f"the tests call {', '.join(sorted(functions))}: keep to one function")
    return pairs


def spelled(value: Any) -> str:
    """A value on one line.

    Raises:
      ValueError: it cannot be written on one.
    """
    if isinstance(value, list | tuple):
        return " ".join(map(_item, value))
    if not isinstance(value, bool | int | float | str) or "\n" in str(value):
        raise ValueError(f"{value!r} has no plain spelling on one line")
    return str(value)


def _item(value: Any) -> str:
    text = spelled(value)
    if isinstance(value, list | tuple) or not text or text.split() != [text]:
        raise ValueError(f"{value!r} in a list has no plain spelling: items are split at blanks")
    return text


def usable(tests: Sequence[str]) -> bool:
    """Whether a problem's assertions can be rewritten, to filter a data set by."""
    try:
        return bool(of_asserts("\n".join(tests)))
    except (ValueError, SyntaxError):
        return False
