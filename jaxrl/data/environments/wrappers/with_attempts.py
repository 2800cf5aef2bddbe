"""Any environment, in which the policy answers from attempts of its own.

An episode is some attempts at the problem, each in a context of its own, and then one more, which
reads the answers of all of them before it begins (parallel thinking). It may act in the environment
like the others, so it can check what they say.

Recalled from: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
"""

from __future__ import annotations

import dataclasses
import string
from collections import Counter
from collections.abc import Mapping
from typing import Any

from jaxrl.data.environments import Environment, Opening, Reply, Written
from jaxrl.data.environments.wrappers import inner
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Task

HEADING = "\n\nAnswers of earlier attempts, which may be wrong:\n"


@dataclasses.dataclass
class _Attempts:
    problem: Problem
    seed: int
    state: Any
    """Of the environment, in the attempt that is under way."""
    answers: list[str] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    """Of each attempt that is over."""
    reward: float = 0.0
    """Of the attempt that is under way, so far."""


def task(
    name: str = "calculator",
    args: Mapping[str, Any] | str = "{}",
    attempts: int = 4,
    share: float = 0.5,
    symbols: bool = False,
) -> Task:
    """An environment that is played several times before the answer that counts.

    Parts of the reward are `attempts`, the mean reward of the attempts; `best`, the largest;
    `vote`, the reward of the first attempt that gives the most frequent answer; and `last`, the
    reward of the last one, which has read their answers.

    Args:
      name: of the task.
      args: its parameters, as a mapping or JSON.
      attempts: before the last one. They differ if the policy is sampled, not if it is greedy.
      share: of the reward, which is for the attempts in equal parts; the rest is for the last one.
        Without any, nothing keeps the attempts good once the last one does not need them.
      symbols: without words around the answers, each of which is the last symbol of its attempt.
    """
    plain = inner.task(name, args, words=HEADING + string.digits, symbols=symbols)
    if attempts < 1:
        raise ValueError(f"attempts={attempts} must be 1 or more")
    if not 0 <= share < 1:
        raise ValueError(f"share={share} is a part of the reward, from 0 to less than 1")
    return dataclasses.replace(
        plain,
        name="with_attempts",
        description=__doc__,
        turns=environment(plain.turns, attempts, share, symbols=symbols),
    )


def environment(
    single: Environment, attempts: int, share: float = 0.5, *, symbols: bool = False
) -> Environment:
    """The environment that is played `attempts` times, and once more with the answers.

    Its demonstrations make every attempt as those of `single` do.

    Args:
      single: of the task.
      attempts: before the last one.
      share: of the reward, for them.
      symbols: see `task`.
    """

    def begin(problem: Problem, seed: int) -> tuple[_Attempts, Opening]:
        state, opening = single.begin(problem, seed)
        return _Attempts(problem, seed, state), opening

    def step(play: _Attempts, action: str) -> Reply:
        reply = single.step(play.state, action)
        if reply.error is not None:
            return reply
        last = len(play.answers) == attempts
        part = 1 - share if last else share / attempts
        play.reward += reply.reward or 0.0
        if reply.reward is not None:
            reply = reply._replace(reward=part * reply.reward)
        if last and reply.done:
            return reply._replace(parts={**reply.parts, **figures(play)})
        if last and reply.opening is not None:
            return reply._replace(opening=informed(play, reply.opening))
        if not reply.done:
            return reply
        if reply.answer is not None:
            return Reply(
                error="attempts: this task's answers are judged outside of its environment"
            )
        answer = extract.spoken(action).strip()
        play.answers.append(answer[-1:] if symbols else answer)
        play.rewards.append(play.reward)
        play.reward = 0.0
        over, (play.state, opening) = play.state, single.begin(play.problem, play.seed)
        single.close(over)
        if opening.error is not None:
            return Reply(error=opening.error, calls=reply.calls)
        if len(play.answers) == attempts:
            opening = informed(play, opening)
        return Reply(reward=reply.reward, calls=reply.calls, opening=opening)

    def informed(play: _Attempts, opening: Opening) -> Opening:
        numbered = "\n".join(f"{i}. {answer}" for i, answer in enumerate(play.answers, 1))
        text = "\n" + "".join(play.answers) if symbols else HEADING + numbered
        return opening._replace(messages=inner.extended(opening.messages, text))

    def figures(play: _Attempts) -> dict[str, float]:
        (favourite, _), *_ = Counter(play.answers).most_common()
        return {
            "attempts": sum(play.rewards) / attempts,
            "best": max(play.rewards),
            "vote": play.rewards[play.answers.index(favourite)],
            "last": play.reward,
        }

    def seconds(problem: Problem, action: str) -> float:
        opening = single.seconds(problem, "")  # an attempt that ends opens the next one
        return single.seconds(problem, action) + opening if action else opening

    def reads(play: _Attempts, written: Written) -> None:
        single.reads(play.state, written)

    return single._replace(
        begin=begin,
        step=step,
        gold=(lambda p, seed: single.gold(p, seed) * (attempts + 1)) if single.gold else None,
        close=lambda play: single.close(play.state),
        reads=reads if single.reads else None,
        seconds=seconds if single.seconds else None,
        arrays=None,
        against=None,
    )
