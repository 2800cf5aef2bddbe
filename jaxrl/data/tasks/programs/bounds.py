"""Short programs that read lists: is one access out of bounds, and in which line?

After Li et al. 2026, "From SFT to RL: Demystifying the Post-Training Pipeline for LLM-based
Vulnerability Detection": what is rewarded, the verdict alone or with its cause, decides what is
learned.
"""

from __future__ import annotations

import random
import re

from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

LEVELS = ("label", "cause")
_ANSWER = re.compile(
    r"(?:(safe)|(flawed)(?:[:,]? *(?:in )?(?:line )?([0-9]{1,3}))?)\.?", re.IGNORECASE
)


def task(
    lines: int = 3,
    longest: int = 9,
    level: str = "cause",
    slips: float = 0.0,
    ood_lines: int | None = None,
    template: str = "",
) -> Task:
    """Programs of which half read past the end of a list, in one line.

    The answer is `safe` or, as in `flawed: 2`, the line. The part `label` is whether the verdict is
    right, `cause` whether the line is as well.

    Args:
      lines: of a program in train and test, each of which reads one of two lists.
      longest: items that a list may have.
      level: what the reward is for: `cause`, or the `label` alone.
      slips: share of the solutions to imitate that name another line.
      ood_lines: the same for the ood split; None means one more than `lines`.
      template: prompt with `{question}` in it; empty asks for the answer between tags.
    """
    ood_lines = lines + 1 if ood_lines is None else ood_lines
    if not 1 <= lines < ood_lines <= 99:
        raise ValueError(f"lines={lines}, ood_lines={ood_lines}: need 1 <= lines < ood_lines <= 99")
    if longest < 4:
        raise ValueError(f"longest={longest}: must be 4 or more")
    if level not in LEVELS:
        raise ValueError(f"level={level!r}: choose one of {', '.join(LEVELS)}")
    if not 0 <= slips < 1:
        raise ValueError(f"slips={slips}: must be 0 or more and below 1")
    template = template or extract.INSTRUCTIONS["tags"]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_lines if split == "ood" else lines
        program, flawed = generate.draw(
            lambda stream: _program(stream, count, longest),
            key=lambda sample: sample[0],
            stream=generate.rng("bounds", split, seed, index),
            split=split,
        )
        question = f"{program}Is an access out of bounds? Answer safe, or flawed: LINE."
        return generate.user_problem(
            "bounds", program, extract.fill(template, question), flawed, lines=count
        )

    def gold(problem: Problem) -> str:
        stream = generate.rng("slip", problem.id)
        line = problem.answer
        if line and stream.random() < slips:
            line = 1 + (line - 1 + stream.randrange(1, lines + 1)) % problem.metadata["lines"]
        return extract.write_answer("tags", f"flawed: {line}" if line else "safe")

    def reward(problem: Problem, completion: str) -> Score:
        match = _ANSWER.fullmatch((extract.answer_tag(completion) or "").strip(" *`"))
        verdict = "" if match is None else "safe" if match[1] else "flawed"
        label = float(verdict == ("flawed" if problem.answer else "safe"))
        line_correct = match is not None and int(match[3] or 0) == problem.answer
        cause = float(label == 1 and line_correct)
        parts = {"label": label, "cause": cause, "format": float(bool(verdict))}
        return Score(parts[level], parts)

    task = Task(
        name="bounds",
        problem=problem,
        reward=reward,
        gold=gold,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def _program(stream: random.Random, lines: int, longest: int) -> tuple[str, int]:
    """A program, and the line that reads past the end of a list; 0 where none does."""
    sizes = {name: stream.randint(3, longest) for name in "ab"}
    flawed = stream.randint(1, lines) if stream.random() < 0.5 else 0
    text = "".join(f"{name} has {size} items, from 0.\n" for name, size in sizes.items())
    for line in range(1, lines + 1):
        name = stream.choice("ab")
        past = stream.randint(0, 2) + sizes[name]
        at = past if line == flawed else stream.randrange(sizes[name])
        text += f"{line}: read {name}[{at}]\n"
    return text, flawed
