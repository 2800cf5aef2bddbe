"""Stories after Sally and Anne: an object is moved, and not everyone looks.

A prompt is where the object is at first, three moves, each with who sees it, and a question: where
it is, where Sally will look, or where Anne thinks that Sally will look. A completion is a trace,
the box that is asked for after each move, then `ASK` and the answer; it may also answer at once.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm
from experiments.lab.effect import attempts, held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, PAD, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

BOXES, EVENTS, ORDERS = 4, 3, 3
"""Boxes, moves of a story, and orders of belief: of none, of Sally, of Anne about Sally."""
NOBODY, SALLY, ANNE, BOTH = range(4)
"""Who sees a move, beside the one who makes it. Those who see it together know of each other."""
SEES = {0: (NOBODY, SALLY, ANNE, BOTH), 1: (SALLY, BOTH), 2: (BOTH,)}
"""Order -> by whom a move must be seen to change what is asked for."""


@functools.cache
def beliefs(*, skill: float = 0.8, silent: float = 0.3, problems: int = 256) -> Task:
    """A domain is an order of belief.

    The verifier asks for the form and the right answer; a trace may be wrong, short or missing.

    Args:
      skill: probability that a step of a demonstration is right, and that its answer is that of the
        trace.
      silent: share of the demonstrations that answer at once.
      problems: in the train split.
    """
    boxes, witnesses = FIRST, FIRST + BOXES
    questions = witnesses + len(SEES[0])

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 34])
        names = [rng.permutation(n) for n in (BOXES, len(SEES[0]), ORDERS)]

        def draw(size: int) -> np.ndarray:
            places = rng.integers(BOXES, size=(size, 1 + EVENTS))
            seen = rng.integers(len(SEES[0]), size=(size, EVENTS))
            return np.concatenate([places, seen, rng.integers(ORDERS, size=(size, 1))], axis=1)

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            places, seen = content[:, : 1 + EVENTS], content[:, 1 + EVENTS : -1]
            right, order = tracked(content), content[:, -1]
            said = np.concatenate([right, right[:, -1:]], axis=1)
            if imperfect:
                wrong = rng.random(said.shape) >= skill
                said = np.where(wrong, rng.integers(BOXES, size=said.shape), said)
                said[:, -1] = np.where(wrong[:, -1], said[:, -1], said[:, -2])
            place, witness, asked = (
                name[v] for name, v in zip(names, (places, seen, order), strict=True)
            )
            moves = np.stack([boxes + place[:, 1:], witnesses + witness], axis=2)
            ask = np.full((len(content), 1), ASK)
            prompt = [boxes + place[:, :1], moves.reshape(len(content), -1)]
            prompt += [questions + asked[:, None], ask]
            trace = boxes + names[0][said]
            parts = [trace[:, :-1], ask, trace[:, -1:], ask - ASK + EOS]
            gold = np.concatenate(parts, axis=1)
            if imperfect:
                at_once = np.pad(gold[:, EVENTS:], ((0, 0), (0, EVENTS)), constant_values=PAD)
                gold = np.where(rng.random((len(gold), 1)) < silent, at_once, gold)
            return as_problems(np.concatenate(prompt, axis=1), boxes + names[0][right], gold, order)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        at = jnp.argmax(completion == ASK)
        end = jnp.stack([jnp.int32(ASK), answer[-1], jnp.int32(EOS)])
        said = jax.lax.dynamic_slice(jnp.pad(completion, (0, 2)), (at,), (3,))
        traced = (completion >= boxes) & (completion < boxes + BOXES)
        formed = jnp.all(traced | (jnp.arange(len(completion)) >= at))
        return (formed & jnp.all(said == end)).astype(jnp.float32)

    return Task(questions + ORDERS, make, reward)


def tracked(content: np.ndarray) -> np.ndarray:
    """[M, EVENTS] the box that is asked for after each move.

    Args:
      content: [M, 2 + 2 EVENTS]: where the object is at first and after each move, who sees each
        move, and the order of belief.
    """
    now, steps = content[:, 0], []
    for event in range(EVENTS):
        seen = content[:, 1 + EVENTS + event]
        known = np.stack([np.isin(seen, SEES[order]) for order in range(ORDERS)])
        counts = known[content[:, -1], np.arange(len(content))]
        now = np.where(counts, content[:, 1 + event], now)
        steps.append(now)
    return np.stack(steps, axis=1)


def valid(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and `validity`, the share of the steps of a whole trace that are
    written and right; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens[:, :, 0]
    before = np.cumsum(tokens == ASK, axis=-1) == 0
    right = (tokens[..., :EVENTS] == task.test.answer) & before[..., :EVENTS]
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"validity": right.mean(axis=(1, 2))}
