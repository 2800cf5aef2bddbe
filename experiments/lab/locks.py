"""Dials that must be set by trying, for what a policy does when it is told that it is wrong.

The prompt names the dials, and says no more than which settings are likely. The environment answers
each setting with YES or NO. A policy that goes on after NO has lost; one that goes back can try
another setting. So no policy without backtracking passes more often than its guesses are right.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, Problems, Splits, Task, as_problems

NAMES, SETTINGS, DIALS = 12, 3, 3
"""Names that a dial may have, settings of each dial, and dials of a problem."""
LIKELY = (0.5, 0.3, 0.2)
"""The default of `likely`."""
CHOICE = FIRST + NAMES
"""The token of setting 0."""
BACK, WAIT, YES, NO = range(CHOICE + SETTINGS, CHOICE + SETTINGS + 4)
"""Two more choices, and what the environment says of a setting; of the others it says `FILLER`."""


class Trace(NamedTuple):
    """What the solutions of a domain show."""

    mistakes: int
    """Wrong settings, each followed by going back; at most `DIALS * (SETTINGS - 1)`."""
    waits: int = 0
    """Pairs of turns that do nothing, for solutions of equal length."""


@functools.cache
def locks(
    traces: tuple[Trace, ...],
    *,
    likely: tuple[float, float, float] = LIKELY,
    problems: int = 256,
) -> Task:
    """Set three dials. Demonstrations of the warm start set each once, whatever the answer.

    A turn is a choice and the environment's answer. A setting moves on to the next dial, `BACK`
    to the one before, `WAIT` stays. Each instance has its own order of likely settings for each
    name. `gold` is a trace as the domain of the problem has it, and `answer` the right settings.

    Args:
      traces: one for each domain.
      likely: how often the first, second and third choice of settings for a name is right.
      problems: in the train split, shared out evenly among the domains.
    """
    turns = DIALS + 2 * max(trace.mistakes + trace.waits for trace in traces)
    budget = 2 * turns + 1

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 9])
        order = np.stack([rng.permutation(SETTINGS) for _ in range(NAMES)])

        def draw(size: int) -> np.ndarray:
            names = rng.integers(NAMES, size=(size, DIALS))
            return np.concatenate([names, guesses(names)], axis=1)

        def guesses(names: np.ndarray) -> np.ndarray:
            return order[names, rng.choice(SETTINGS, names.shape, p=likely)]

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            names, answer = content[:, :DIALS], content[:, DIALS:]
            domain = rng.integers(len(traces), size=len(content))
            gold = np.full((len(content), budget), PAD)
            for row, right, d, own in zip(gold, answer, domain, guesses(names), strict=True):
                choices = CHOICE + own if imperfect else written(rng, traces[d], right)
                row[: 2 * len(choices)] = spoken(choices, right)
                row[2 * len(choices)] = EOS
            prompt = np.concatenate([FIRST + names, np.full((len(names), 1), ASK)], axis=1)
            return as_problems(prompt, answer, gold, domain)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def respond(answer: jax.Array, completion: jax.Array, t: jax.Array) -> jax.Array:
        _, _, replies = played(answer, completion)
        return jnp.where(t % 2 == 1, replies[t // 2], -1)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        place, opened, _ = played(answer, completion)
        end = jnp.argmax(completion == EOS)
        closed = (completion[end] == EOS) & (end % 2 == 0)
        return (closed & (place == DIALS) & jnp.all(opened)).astype(jnp.float32)

    return Task(NO + 1, make, reward, respond)


def played(answer: jax.Array, completion: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The dial that is next, which dials are open [DIALS], and the answer to each choice."""

    def turn(state: tuple, choice: jax.Array) -> tuple[tuple, jax.Array]:
        place, opened = state
        setting = choice - CHOICE
        sets = (setting >= 0) & (setting < SETTINGS)
        here = jnp.arange(DIALS) == place
        right = jnp.any(here & (answer == setting))
        opened = jnp.where(sets & here, right, opened)
        step = jnp.where(sets, 1, jnp.where(choice == BACK, -1, 0))
        reply = jnp.where(sets, jnp.where(right, YES, NO), FILLER)
        return (jnp.maximum(place + step, 0), opened), reply

    start = (jnp.int32(0), jnp.zeros(DIALS, bool))
    (place, opened), replies = jax.lax.scan(turn, start, completion[0:-1:2])
    return place, opened, replies


def written(rng: np.random.Generator, trace: Trace, answer: np.ndarray) -> np.ndarray:
    """The choices of a solution."""
    spare = np.repeat(np.arange(DIALS), SETTINGS - 1)
    mistakes = np.bincount(rng.permutation(spare)[: trace.mistakes], minlength=DIALS)
    waits = np.bincount(rng.integers(DIALS, size=trace.waits), minlength=DIALS)
    choices: list[int] = []
    for dial, right in enumerate(answer):
        wrong = rng.permutation(np.delete(np.arange(SETTINGS), right))
        choices += [WAIT] * (2 * waits[dial])
        for setting in wrong[: mistakes[dial]]:
            choices += [CHOICE + setting, BACK]
        choices.append(CHOICE + right)
    return np.array(choices)


def spoken(choices: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Choices and the environment's answers, one after the other; as `played` gives them."""
    tokens, place = [], 0
    for choice in choices:
        sets = CHOICE <= choice < CHOICE + SETTINGS
        right = sets and place < DIALS and answer[place] == choice - CHOICE
        tokens += [choice, (YES if right else NO) if sets else FILLER]
        place = max(place + (1 if sets else -1 if choice == BACK else 0), 0)
    return np.array(tokens)


def backtracking(tokens: np.ndarray) -> np.ndarray:
    """[...] how often completions [..., T] go back right after they were told NO."""
    return np.sum((tokens[..., 2::2] == BACK) & (tokens[..., 1:-1:2] == NO), axis=-1)
