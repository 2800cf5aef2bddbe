"""Rewards made of rewards. Each combinator works for plain and coroutine rewards alike."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence

from jaxrl.data.types import Problem, Reward, Score, exact_sum


def join(
    rewards: Sequence[Reward], combine: Callable[[Problem, str, list[Score]], Score]
) -> Reward:
    """A reward that combines others' scores; the first error among them is its own.

    Args:
      rewards: all are asked, those that are coroutines at once.
      combine: (problem, completion, scores without error, in order) -> score.
    """

    def finish(problem: Problem, completion: str, scores: list[Score]) -> Score:
        for score in scores:
            if score.error is not None:
                return Score(None, error=score.error)
        return combine(problem, completion, scores)

    def reward(problem: Problem, completion: str) -> Score:
        results = [scorer(problem, completion) for scorer in rewards]
        if not any(map(inspect.isawaitable, results)):
            return finish(problem, completion, results)

        async def later() -> Score:
            waited = await asyncio.gather(*(r for r in results if inspect.isawaitable(r)))
            scores = iter(waited)
            done = [next(scores) if inspect.isawaitable(r) else r for r in results]
            return finish(problem, completion, done)

        return later()

    return reward


def weighted_sum(rewards: Mapping[str, tuple[float, Reward]]) -> Reward:
    """`sum_i w_i r_i`; each r_i is a part under its name.

    Args:
      rewards: name to (weight, reward).
    """
    names = list(rewards)
    weights = [rewards[name][0] for name in names]

    def total(problem: Problem, completion: str, scores: list[Score]) -> Score:
        value = exact_sum(w * s.value for w, s in zip(weights, scores, strict=True))
        return Score(value, _parts(names, scores))

    return join([rewards[name][1] for name in names], total)


def heads(
    rewards: Mapping[str, Reward], weights: Callable[[Problem], Mapping[str, float]]
) -> Reward:
    """A weighted mean whose weights depend on the problem, such as on its domain.

    Args:
      rewards: by name.
      weights: problem -> weight by name; a name left out has weight 0, and at least one has not.
    """
    names = list(rewards)

    def mean(problem: Problem, completion: str, scores: list[Score]) -> Score:
        chosen = weights(problem)
        unknown = set(chosen) - set(names)
        total = exact_sum(chosen.values())
        if unknown or total <= 0:
            raise ValueError(f"weights {dict(chosen)}: must be over {names} with a positive sum")
        parts = [chosen.get(n, 0.0) * s.value for n, s in zip(names, scores, strict=True)]
        return Score(exact_sum(parts) / total, _parts(names, scores))

    return join([rewards[name] for name in names], mean)


def gate(
    condition: Reward, reward: Reward, *, threshold: float = 1.0, closed: float = 0.0
) -> Reward:
    """`reward` where `condition`, such as the format, reaches the threshold, else `closed`."""

    def pick(problem: Problem, completion: str, scores: list[Score]) -> Score:
        opened = scores[0].value >= threshold
        parts = _parts(["gate", "gated"], scores)
        return Score(scores[1].value if opened else closed, parts)

    return join([condition, reward], pick)


def veto(reward: Reward, against: Reward, *, threshold: float = 1.0, value: float = -1.0) -> Reward:
    """`reward`, but `value` where `against` (a detector of cheating, say) reaches the threshold."""

    def pick(problem: Problem, completion: str, scores: list[Score]) -> Score:
        vetoed = scores[1].value >= threshold
        parts = {**scores[0].parts, "vetoed": float(vetoed)}
        return Score(value if vetoed else scores[0].value, parts)

    return join([reward, against], pick)


def mapped(reward: Reward, function: Callable[[float], float]) -> Reward:
    """`function(r)`; the raw value stays as part `raw`. See `clip`, `saturate`."""

    def apply(problem: Problem, completion: str, scores: list[Score]) -> Score:
        return Score(function(scores[0].value), {**scores[0].parts, "raw": scores[0].value})

    return join([reward], apply)


def clip(low: float, high: float) -> Callable[[float], float]:
    """`min(max(r, low), high)`."""
    if low > high:
        raise ValueError(f"low={low} must not exceed high={high}")
    return lambda value: min(max(value, low), high)


def saturate(scale: float) -> Callable[[float], float]:
    """`tanh(r / scale)`: near r for small r, never beyond 1."""
    if scale <= 0:
        raise ValueError(f"scale={scale} must be positive")
    return lambda value: math.tanh(value / scale)


def noise(reward: Reward, *, seed: int, gaussian: float = 0.0, flip: float = 0.0) -> Reward:
    """A corrupted reward, to study robustness; the same completion always gets the same noise.

    Args:
      reward: in [0, 1] if it is to be flipped.
      seed: of the corruption.
      gaussian: standard deviation of what is added.
      flip: probability of `1 - r`.
    """
    if gaussian < 0 or not 0 <= flip <= 1:
        raise ValueError(f"gaussian={gaussian} must be >= 0 and flip={flip} in [0, 1]")

    def corrupt(problem: Problem, completion: str, scores: list[Score]) -> Score:
        text = f"{seed}\0{problem.id}\0{completion}".encode(errors="surrogatepass")
        stream = random.Random(hashlib.blake2b(text, digest_size=16).digest())
        value = scores[0].value
        flipped = stream.random() < flip
        value = (1.0 - value if flipped else value) + stream.gauss(0.0, gaussian)
        return Score(value, {**scores[0].parts, "clean": scores[0].value})

    return join([reward], corrupt)


async def score_all(
    reward: Reward, items: Sequence[tuple[Problem, str]], *, concurrency: int = 64
) -> list[Score]:
    """Score many completions, coroutine rewards `concurrency` at a time.

    What a reward raises becomes that item's error, and no other item notices.
    """
    turn = asyncio.Semaphore(concurrency)

    async def score_completion(problem: Problem, completion: str) -> Score:
        async with turn:
            try:
                score = reward(problem, completion)
                return await score if inspect.isawaitable(score) else score
            except Exception as error:
                return Score(None, error=f"exception: {type(error).__name__}: {error}")

    return list(await asyncio.gather(*(score_completion(*item) for item in items)))


def _parts(names: Sequence[str], scores: Sequence[Score]) -> dict[str, float]:
    """The values by name, and their parts by name/part."""
    parts: dict[str, float] = {}
    for name, score in zip(names, scores, strict=True):
        parts[name] = score.value
        parts |= {f"{name}/{part}": value for part, value in score.parts.items()}
    return parts
