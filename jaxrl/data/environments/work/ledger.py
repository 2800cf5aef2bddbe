"""Sums of numbers that stand in a ledger under names, with two tools, all in symbols.

A small model from nothing can play it: what the tools are for, to look up what is not in the prompt
and to add what is too long to add, is the same as in words.
"""

from __future__ import annotations

import dataclasses
import random
import re
import string
from collections.abc import Callable, Mapping

from jaxrl.data.environments import Environment, Message, Opening, Reply, unscored
from jaxrl.data.environments.work.calculator import calculate
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

TOOLS = {"lookup": "?", "calculator": "="}
"""The sign with which a call of each tool ends."""
_ANSWER = "."
_STOPS = (*TOOLS.values(), _ANSWER)
_ERROR = "!"
_SUM = re.compile(r"[0-9]+(?:\+[0-9]+)*")


@dataclasses.dataclass
class _Desk:
    ledger: Mapping[str, str]
    answer: str
    said: list[Message]
    """The conversation, without what was taken back."""
    left: int
    """Calls that are left."""
    again: int
    """Calls that may still be taken back."""
    used: set[str] = dataclasses.field(default_factory=set)
    """Tools that a call has run."""
    calls: int = 0
    failed: int = 0


def task(
    digits: int = 2,
    terms: int = 2,
    ood_terms: int | None = None,
    names: int = 4,
    given: float = 0.0,
    tools: str = "lookup,calculator",
    calls: int = 5,
    bonus: float = 0.0,
    malformed: float = 0.0,
    failed: float = 0.0,
    again: int = 0,
) -> Task:
    """Sums whose terms are names in a ledger, or numbers.

    `a+c` asks for the sum of what stands under `a` and `c`. A turn that ends with `?` is a name to
    look up: `a?` gives `37`. One that ends with `=` is a sum for the calculator: `37+58=` gives
    `95`. One that ends with `.` is the answer: `95.` A call that cannot be run gives `!`.

    The reward is 1 for the right sum, else 0. A call too many ends the episode without reward.

    Args:
      digits: of each number.
      terms: of a sum, in train and test problems.
      ood_terms: in the ood split; None means one more than `terms`.
      names: in the ledger, 2 to 26.
      given: probability that a term is a number and not a name.
      tools: their names, apart by commas: lookup, calculator; empty: none.
      calls: that an episode may have.
      bonus: added to the reward of a right answer if every tool was used (Tool-Star).
      malformed: reward of a turn that is neither a call nor a number with a full stop, 0 or less;
        it ends the episode.
      failed: reward of a call that cannot be run, 0 or less.
      again: calls that cannot be run and are taken back, in an episode: the conversation goes back
        to what it was before the call, and the policy writes another turn (THOR).
    """
    ood_terms = terms + 1 if ood_terms is None else ood_terms
    if not 1 <= digits <= 9:
        raise ValueError(f"digits={digits}: a number has 1 to 9")
    if not 1 <= terms < ood_terms <= 8:
        raise ValueError(f"terms={terms}, ood_terms={ood_terms}: need 1 <= terms < ood_terms <= 8")
    if not 2 <= names <= 26:
        raise ValueError(f"names={names}: a ledger has 2 to 26")
    if not 0 <= given <= 1:
        raise ValueError(f"given={given} is a probability, from 0 to 1")
    offered = tuple(name.strip() for name in tools.split(",") if name.strip())
    if unknown := [name for name in offered if name not in TOOLS]:
        raise ValueError(f"tools={tools!r}: {unknown[0]!r} is none of {', '.join(TOOLS)}")
    if calls < 0 or again < 0:
        raise ValueError(f"calls={calls}, again={again} must be at least 0")
    if bonus < 0:
        raise ValueError(f"bonus={bonus} must be at least 0")
    for field, penalty in (("malformed", malformed), ("failed", failed)):
        if penalty > 0:
            raise ValueError(f"{field}={penalty} is a penalty: give 0 or less")

    letters = string.ascii_lowercase[:names]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_terms if split == "ood" else terms

        def number(stream: random.Random) -> str:
            return str(stream.randrange(10 ** (digits - 1), 10**digits))

        def draw(stream: random.Random) -> tuple[dict[str, str], list[str]]:
            ledger = {name: number(stream) for name in letters}
            sums = [
                number(stream) if stream.random() < given else stream.choice(letters)
                for _ in range(count)
            ]
            return ledger, sums

        stream = generate.rng("ledger", split, seed, index)
        ledger, sums = generate.draw(draw, key=repr, stream=stream, split=split)
        answer = str(sum(int(ledger.get(term, term)) for term in sums))
        return generate.user_problem(
            "ledger", repr((ledger, sums)), "+".join(sums), answer, ledger=ledger
        )

    def begin(problem: Problem, seed: int) -> tuple[_Desk, Opening]:
        messages = [{"role": "user", "content": problem.prompt}]
        desk = _Desk(problem.metadata["ledger"], problem.answer, list(messages), calls, again)
        return desk, Opening(tuple(messages), _STOPS)

    def step(desk: _Desk, action: str) -> Reply:
        tool = next((name for name in TOOLS if action.endswith(TOOLS[name])), "")
        body = action[:-1]
        if not tool:
            number = action.endswith(_ANSWER) and body.isdecimal()
            right = number and body == desk.answer
            full = bool(offered) and desk.used == set(offered)
            reward = (1 + bonus * full) * right if number else malformed
            return Reply(reward=reward, parts=figures(desk, right, not number, full), done=True)
        if not desk.left:
            return Reply(reward=0.0, parts=figures(desk), done=True, calls=1)
        desk.calls += 1
        result = _RUN[tool](desk.ledger, body) if tool in offered else None
        desk.failed += result is None
        if result is None and desk.again:
            desk.again -= 1
            return Reply(
                reward=failed,
                parts=figures(desk),
                calls=1,
                opening=Opening(tuple(desk.said), _STOPS),
            )
        desk.left -= 1
        if result is not None:
            desk.used.add(tool)
        reply = {"role": "user", "content": result or _ERROR}
        desk.said += [{"role": "assistant", "content": action}, reply]
        reward = failed if result is None else 0.0
        return Reply((reply,), reward, figures(desk), stop=_STOPS, calls=1)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        sums = problem.prompt.split("+")
        looked = [f"{term}?" for term in sums if term.isalpha() and "lookup" in offered]
        values = [problem.metadata["ledger"].get(term, term) for term in sums]
        added = [f"{'+'.join(values)}="] * ("calculator" in offered)
        return (*looked, *added, f"{problem.answer}.")

    task = Task(
        name="ledger",
        problem=problem,
        reward=unscored,
        alphabet=f"{letters}{string.digits}+{''.join(_STOPS)}{_ERROR}\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold if calls > ood_terms else None),
    )
    return task


def figures(
    desk: _Desk, right: bool = False, malformed: bool = False, full: bool = False
) -> dict[str, float]:
    """The parts of an episode's reward; `multi_tool`: it was right, and used every tool."""
    return {
        "correct": float(right),
        "malformed": float(malformed),
        "multi_tool": float(right and full),
        "calls": float(desk.calls),
        "failed": float(desk.failed),
    }


def _added(ledger: Mapping[str, str], body: str) -> str | None:
    return calculate(body) if _SUM.fullmatch(body) and len(body) < 100 else None


_RUN: Mapping[str, Callable[[Mapping[str, str], str], str | None]] = {
    "lookup": lambda ledger, body: ledger.get(body),
    "calculator": _added,
}
"""What a call of each tool gives; None where it cannot be run."""
