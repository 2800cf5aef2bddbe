"""Sums that are answered, checked and answered again, in one turn and without help."""

from __future__ import annotations

import re

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.rewards.judged import reflection
from jaxrl.data.sources import generate
from jaxrl.data.tasks.math import arithmetic
from jaxrl.data.types import Problem, Task

WRONG, FINE = "!", "~"
"""What a reflection says of the attempt before it."""
_CHAIN = re.compile(r"[0-9]{1,99}(?:[!~][0-9]{1,99})+")


def task(
    digits: int = 2, ood_digits: int | None = None, slips: float = 0.5, shaped: bool = True
) -> Task:
    """Sums with an attempt, a reflection of one sign, another attempt, and so on.

    `17+8=` may be answered `15!25`: an attempt, the judgement that it is wrong, and another. `~`
    says that it is fine. The chain has two attempts or more, and its last is the answer; nothing
    says whether an attempt is right. The reward is that of ReflexiCoder, see
    `jaxrl.data.rewards.judged.reflection`, and 0 for a text of another form.

    Chains to imitate have two attempts, each with a chance of a slip, and a sign at random: the
    form is shown and the judgement is left to be learned.

    Args:
      digits: most digits of an operand in train and test problems.
      ood_digits: of the ood split; None means one more than `digits`.
      slips: share of the attempts to imitate that leave out every carry.
      shaped: whether the reward looks at all attempts; else it is 1 for the form and 1 for the
        answer.
    """
    base_task = arithmetic.task(digits=digits, operators="+", slips=slips, ood_digits=ood_digits)

    def begin(problem: Problem, seed: int) -> tuple[Problem, Opening]:
        return problem, Opening(({"role": "user", "content": problem.prompt},))

    def step(problem: Problem, action: str) -> Reply:
        if not _CHAIN.fullmatch(action):
            return Reply(reward=0.0, parts=figures([], ""), done=True)
        attempts, signs = re.findall("[0-9]+", action), re.sub("[0-9]", "", action)
        scores = [float(int(attempt) == problem.answer) for attempt in attempts]
        reward = reflection.chain(scores) if shaped else 1 + scores[-1]
        return Reply(reward=reward, parts=figures(scores, signs), done=True)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        stream = generate.rng("revision", problem.id, seed)

        def attempt() -> str:
            slip = stream.random() < slips
            return str((arithmetic.without_carry if slip else arithmetic.evaluate)(problem.prompt))

        return (f"{attempt()}{stream.choice(WRONG + FINE)}{attempt()}",)

    return Task(
        name="revision",
        problem=base_task.problem,
        reward=unscored,
        alphabet=f"0123456789+={WRONG}{FINE}\n",
        splits=base_task.splits,
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )


def figures(scores: list[float], signs: str) -> dict[str, float]:
    """The parts of the reward.

    `fixed` and `broken` are whether the last attempt turned a wrong first one right, or a right one
    wrong; `judged`, the share of reflections whose sign is true.

    Args:
      scores: of the attempts; empty where the form is wrong.
      signs: of the reflections.
    """
    first, last = (scores[0], scores[-1]) if scores else (0.0, 0.0)
    true = [sign == (FINE if score else WRONG) for sign, score in zip(signs, scores, strict=False)]
    return {
        "correct": last,
        "first": first,
        "fixed": float(last > first),
        "broken": float(last < first),
        "judged": sum(true) / len(true) if true else 0.0,
        "reflections": float(len(signs)),
        "format": float(bool(scores)),
    }
