"""Boolean expressions judged by what they compute: any that equals the reference is right."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.data.types import Problem, Reward, Score

_RANKS = {"|": 0, "^": 1, "&": 2, "~": 3}
LONGEST = 2000
"""Characters of an expression; longer ones are not read."""


def table(expression: str, names: Sequence[str]) -> int | None:
    """The truth table of an expression in Verilog's operators `~ & ^ |`, of falling rank.

    Args:
      expression: of names of one character, operators and parentheses.
      names: N variables, at most 10.

    Returns:
      An integer whose bit i is the value where the variable k is bit k of i, 0 <= i < 2^N; None if
      it is no such expression.

    Raises:
      ValueError: too many variables.
    """
    if len(names) > 10:
        raise ValueError(f"names={list(names)}: a table has at most 10 variables")
    if len(expression) > LONGEST:
        return None
    rows = range(1 << len(names))
    columns = {name: sum((i >> k & 1) << i for i in rows) for k, name in enumerate(names)}
    every = (1 << len(rows)) - 1
    values: list[int] = []
    pending: list[str] = []

    def reduce(rank: int) -> None:
        while pending and pending[-1] != "(" and _RANKS[pending[-1]] >= rank:
            operator, right = pending.pop(), values.pop()
            if operator == "~":
                values.append(every ^ right)
                continue
            left = values.pop()
            tables = {"&": left & right, "^": left ^ right, "|": left | right}
            values.append(tables[operator])

    ended = False  # whether an operand came last
    for character in expression:
        if character == " ":
            continue
        if not ended and character in columns:
            values.append(columns[character])
            ended = True
        elif not ended and character in "~(":
            pending.append(character)
        elif ended and character == ")":
            reduce(0)
            if not pending:
                return None
            pending.pop()
        elif ended and character in "&^|":
            reduce(_RANKS[character])
            pending.append(character)
            ended = False
        else:
            return None
    if not ended:
        return None
    reduce(0)
    return None if pending else values[0]


def equivalent(names: Sequence[str]) -> Reward:
    """Reward 1 of an expression that agrees with `problem.answer`, its truth table, everywhere.

    CodeV-R1 (Zhu et al. 2025) compares modules on random inputs against the reference; expressions
    of a few variables can be compared on all of them.
    """

    def reward(problem: Problem, completion: str) -> Score:
        truth_table = table(completion, names)
        correct = float(truth_table == problem.answer)
        return Score(correct, {"correct": correct, "format": float(truth_table is not None)})

    return reward
