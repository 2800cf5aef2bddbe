"""Boolean expressions from a description in prefix form, right if they are equivalent to it."""

from __future__ import annotations

import random

from jaxrl.data.rewards import boolean
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

NAMES = "abcdef"
_WORDS = {"&": "A", "|": "O", "^": "X", "~": "N"}
Tree = str | tuple[str, "Tree"] | tuple[str, "Tree", "Tree"]
"""A variable, or an operator with what it is applied to."""


def task(
    variables: int = 3,
    gates: int = 3,
    inverted: float = 0.3,
    slips: float = 0.0,
    ood_gates: int | None = None,
) -> Task:
    """`XAabNc=` asks for the exclusive or of (a and b) and not c: `(a&b)^~c`, or its like.

    The operators are Verilog's: `~ & ^ |`. Every expression with the same truth table is right.

    Args:
      variables: from 1 to 6.
      gates: most gates of two inputs in train and test; each problem's number is uniform from 1.
      inverted: share of the inputs of gates that are inverted.
      slips: share of the solutions for supervised fine-tuning that leave out every `~` and have `|`
        for `^`.
      ood_gates: gates of the ood split; None means one more than `gates`.
    """
    ood_gates = gates + 1 if ood_gates is None else ood_gates
    if not 1 <= variables <= len(NAMES):
        raise ValueError(f"variables={variables}: use 1 to {len(NAMES)}")
    if not 1 <= gates < ood_gates:
        raise ValueError(f"gates={gates}, ood_gates={ood_gates}: need 1 <= gates < ood_gates")
    for name, share in (("inverted", inverted), ("slips", slips)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name}={share}: it is a share, from 0 to 1")
    names = NAMES[:variables]

    def draw(stream: random.Random, count: int) -> Tree:
        if not count:
            tree: Tree = stream.choice(names)
        else:
            left = stream.randrange(count)
            operator = stream.choice("&|^")
            tree = (operator, draw(stream, left), draw(stream, count - 1 - left))
        return ("~", tree) if stream.random() < inverted else tree

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("boolean", split, seed, index)
        lowest, highest = (ood_gates, ood_gates) if split == "ood" else (1, gates)
        tree = generate.draw(
            lambda stream: draw(stream, stream.randint(lowest, highest)),
            key=described,
            stream=stream,
            split=split,
        )
        return Problem(
            id=f"boolean/{described(tree)}",
            prompt=f"{described(tree)}=",
            answer=boolean.table(write_expression(tree), names),
            metadata={"solution": write_expression(tree)},
            domain="boolean",
        )

    def gold(problem: Problem) -> str:
        solution = problem.metadata["solution"]
        if generate.rng("slip", problem.id).random() < slips:
            return solution.replace("~", "").replace("^", "|")
        return solution

    task = Task(
        name="boolean",
        problem=problem,
        reward=boolean.equivalent(names),
        gold=gold,
        alphabet=f"{names}{''.join(_WORDS.values())}&|^~()=",
        description=__doc__,
        pure=True,
    )
    return task


def described(tree: Tree) -> str:
    """A tree in prefix form, by the letters A, O, X and N."""
    if isinstance(tree, str):
        return tree
    return _WORDS[tree[0]] + "".join(map(described, tree[1:]))


def write_expression(tree: Tree) -> str:
    """A tree as an expression, with parentheses around every gate but the outermost."""
    if isinstance(tree, str):
        return tree
    inner = [f"({write_expression(t)})" if len(t) == 3 else write_expression(t) for t in tree[1:]]
    return f"~{inner[0]}" if tree[0] == "~" else tree[0].join(inner)
