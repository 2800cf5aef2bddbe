"""A simulated user with a mood and a hidden need, whose mood moves with what is said to it."""

from __future__ import annotations

import dataclasses
import random

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

REPLIES = ("listen", "comfort", "praise", "advise", "question")
"""What can be said, by its first letter. A need is for one of them; they lie on a ring, so that
each has two that are near to it and two that are far."""

CHANGES = {
    "A": {"good": 10, "idle": 5, "bad": -10},
    "B": {"good": 15, "idle": 0, "bad": -20},
    "C": {"good": 20, "idle": 0, "bad": -10},
}
"""By how much the emotion changes in each mood."""

DIFFICULTIES = {
    "simple": ("good", "good", "idle"),
    "normal": ("good", "idle", "bad"),
    "hard": ("good", "bad", "bad"),
}
"""How users take a reply that is what they need, near to it, or far from it."""

START = 30
"""The emotion, from 0 to 100, that a conversation begins with."""
_LETTERS = "".join(name[0] for name in REPLIES)


@dataclasses.dataclass
class _User:
    need: int
    """Place in `REPLIES`."""
    hints: str
    """A digit for each message."""
    left: int
    """Turns that are left."""
    emotion: int = START

    def seen(self) -> str:
        """What the policy reads: the mood, and what the user lets slip of the need."""
        return f"{mood(self.emotion)}{self.hints[-self.left]}"


def task(
    difficulty: str = "normal",
    turns: int = 8,
    openness: float = 0.5,
    think: bool = False,
) -> Task:
    """Conversations in symbols, after the simulated users of RLVER.

    `2C4` is a user of persona 2 in mood C, who lets slip a 4. What it lets slip is, with the
    probability `openness`, its need shifted by its persona, and else any digit. A turn is the
    first letter of one of `REPLIES`. The user's emotion begins at 30; a reply that is what it
    needs raises it, others may lower it, and the next message shows the mood. At 100 the
    conversation ends well; below 10 the user leaves. The reward is a hundredth of the emotion at
    the end.

    Args:
      difficulty: simple, normal or hard: how users take what is not quite what they need.
      turns: the most that a conversation may have, 5 or more.
      openness: from 0 to 1; the ood split has half of it.
      think: a turn is a thought and a reply: a digit, the place of the need in `REPLIES`, and a
        letter. A turn of another form ends the conversation, and the reward is 0.
    """
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"difficulty={difficulty!r}: choose one of {', '.join(DIFFICULTIES)}")
    if turns < 5:
        raise ValueError(f"turns={turns}: a user needs 5 good replies; allow 5 or more")
    if not 0 <= openness <= 1:
        raise ValueError(f"openness={openness} is a probability, from 0 to 1")
    reactions = DIFFICULTIES[difficulty]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        open_ = openness / 2 if split == "ood" else openness

        def draw(stream: random.Random) -> tuple[int, int, str]:
            persona, need = (stream.randrange(len(REPLIES)) for _ in range(2))
            shifted_need = (persona + need) % len(REPLIES)
            hints = (
                shifted_need if stream.random() < open_ else stream.randrange(len(REPLIES))
                for _ in range(turns)
            )  # fmt: skip
            return persona, need, "".join(map(str, hints))

        stream = generate.rng("emotional_support", split, seed, index)
        persona, need, hints = generate.draw(draw, key=repr, stream=stream, split=split)
        prompt = f"{persona}{_User(need, hints, turns).seen()}"
        key = f"{persona}/{need}/{hints}"
        return generate.user_problem("emotional_support", key, prompt, need, hints=hints)

    def begin(problem: Problem, seed: int) -> tuple[_User, Opening]:
        user = _User(problem.answer, problem.metadata["hints"], turns)
        return user, Opening(({"role": "user", "content": problem.prompt},))

    def step(user: _User, action: str) -> Reply:
        if think:
            thought, action = action[:1], action[1:]
            if thought not in tuple("01234") or action not in tuple(_LETTERS):
                return Reply(reward=0.0, parts={**_parts(user), "emotion": 0.0}, done=True)
        how = reactions[distance(user.need, action)] if action in tuple(_LETTERS) else "bad"
        user.emotion = moved(user.emotion, how)
        user.left -= 1
        if user.emotion >= 100 or user.emotion < 10 or not user.left:
            return Reply(reward=user.emotion / 100, parts=_parts(user), done=True)
        return Reply(({"role": "user", "content": user.seen()},), parts=_parts(user))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        letter = _LETTERS[problem.answer]
        return (f"{problem.answer}{letter}" if think else letter,) * 5

    task = Task(
        name="emotional_support",
        problem=problem,
        reward=unscored,
        alphabet=f"{_LETTERS}ABC01234\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def mood(emotion: int) -> str:
    """A from 70 on, B from 40 on, else C."""
    return "A" if emotion >= 70 else "B" if emotion >= 40 else "C"


def moved(emotion: int, how: str) -> int:
    """The emotion after a reply that was good, idle or bad, from 0 to 100."""
    return min(100, max(0, emotion + CHANGES[mood(emotion)][how]))


def distance(need: int, reply: str) -> int:
    """Steps on the ring between a need and the letter of a reply: 0, 1 or 2."""
    apart = abs(need - _LETTERS.index(reply))
    return min(apart, len(REPLIES) - apart)


def _parts(user: _User) -> dict[str, float]:
    emotion = user.emotion
    return {
        "emotion": emotion / 100,
        "content": float(emotion >= 100),
        "gone": float(emotion < 10),
    }
