"""Questions to pass on: experts differ in what they can answer, and in what they charge.

The experts are programs. What each can answer and charges stands in the question, and differs from
problem to problem, so a policy has to read it and cannot remember it.
"""

from __future__ import annotations

import dataclasses
import math
import random
import string

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task


@dataclasses.dataclass
class _Desk:
    level: int
    """Of the question."""
    answer: str
    experts: dict[str, int]
    """The level of each, which is also its price."""
    left: int
    """Calls that are left."""
    seed: int
    spent: int = 0
    asked: int = 0


def task(
    experts: int = 3,
    ood_experts: int | None = None,
    calls: int = 2,
    price: float = 0.5,
    unseen: str = "",
) -> Task:
    """Questions with a level, and experts of levels from 1, all in symbols.

    `a2b1c3?2` offers experts a, b and c of levels 2, 1 and 3, and a question of level 2. A turn is
    one symbol. A letter asks that expert, who says a digit: the answer if the expert's level is the
    question's or above, else another digit. A digit is the answer and ends the episode.

    The reward is that of Router-R1: -1 for a turn of another form or a call too many, 0 for a wrong
    answer, else `(1 - price) + price c`, where `c` is 1 if nothing was spent, and falls to 0 with
    the square root of what was spent. An expert charges its level for each call.

    Args:
      experts: in train and test problems.
      ood_experts: in the ood split; None means one more than `experts`.
      calls: that an episode may have.
      price: weight of the cost in the reward of a right answer.
      unseen: an expert and its level, as `a3`: who is in every problem of the other splits, and in
        none of the train split; empty: nobody.
    """
    ood_experts = experts + 1 if ood_experts is None else ood_experts
    if not 2 <= experts < ood_experts <= 9:
        raise ValueError(
            f"experts={experts}, ood_experts={ood_experts}: need 2 <= experts < ood_experts <= 9"
        )
    if calls < 1:
        raise ValueError(f"calls={calls}: allow one or more")
    if not 0 <= price <= 1:
        raise ValueError(f"price={price} is a weight, from 0 to 1")
    choices = [f"{a}{n}" for a in string.ascii_lowercase[:experts] for n in range(1, experts + 1)]
    if unseen and unseen not in choices:
        raise ValueError(f"unseen={unseen!r}: choose one of {', '.join(choices)}")

    def expert_names(levels: list[int]) -> list[str]:
        return [f"{a}{n}" for a, n in zip(string.ascii_lowercase, levels, strict=False)]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_experts if split == "ood" else experts

        def draw(stream: random.Random) -> tuple[list[int], int, int]:
            while True:
                levels = stream.sample(range(1, count + 1), count)
                if not unseen or (unseen in expert_names(levels)) == (split != "train"):
                    break
            return levels, stream.randint(1, count), stream.randrange(10)

        stream = generate.rng("routing", split, seed, index)
        levels, level, answer = generate.draw(draw, key=repr, stream=stream, split=split)
        names = dict(zip(string.ascii_lowercase, levels, strict=False))
        prompt = f"{''.join(expert_names(levels))}?{level}"
        return generate.user_problem(
            "routing", f"{prompt}/{answer}", prompt, str(answer), experts=names, level=level
        )

    def begin(problem: Problem, seed: int) -> tuple[_Desk, Opening]:
        metadata = problem.metadata
        desk = _Desk(metadata["level"], problem.answer, dict(metadata["experts"]), calls, seed)
        return desk, Opening(({"role": "user", "content": problem.prompt},))

    def parts(desk: _Desk, correct: bool, malformed: bool) -> dict[str, float]:
        return {
            "correct": float(correct),
            "malformed": float(malformed),
            "spent": float(desk.spent),
        }

    def step(desk: _Desk, action: str) -> Reply:
        if action in desk.experts and desk.left:
            desk.left -= 1
            desk.asked += 1
            desk.spent += desk.experts[action]
            message = {"role": "user", "content": _said(desk, desk.experts[action])}
            return Reply((message,), parts=parts(desk, False, False), calls=1)
        malformed = not (len(action) == 1 and action in string.digits)
        correct = action == desk.answer
        most = calls * max(desk.experts.values())
        earned = (1 - price) + price * (1 - math.sqrt(desk.spent / most))
        reward = -1.0 if malformed else earned * correct
        return Reply(reward=reward, parts=parts(desk, correct, malformed), done=True)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        able = {level: name for name, level in problem.metadata["experts"].items()}
        return able[problem.metadata["level"]], problem.answer

    task = Task(
        name="routing",
        problem=problem,
        reward=unscored,
        alphabet=f"{string.ascii_lowercase[:ood_experts]}{string.digits}?\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def _said(desk: _Desk, level: int) -> str:
    """What an expert of a level says."""
    if level >= desk.level:
        return desk.answer
    wrong_digits = [digit for digit in string.digits if digit != desk.answer]
    return random.Random(f"{desk.seed}/{desk.asked}").choice(wrong_digits)
