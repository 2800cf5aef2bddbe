"""Users, items and what they buy, put into prompts by templates, for three tasks.

A user has a taste, an item a kind and a shelf. A rating says whether the item's kind is the user's
taste; an explanation names the kind and the taste. What a user buys after an item is of their taste
and from the next shelf. A template is a wording and an order of user and item.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import policy, split
from experiments.lab.arms import Arm
from experiments.lab.effect import held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, PAD, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

USERS, KINDS, SHELVES, WORDINGS = 24, 4, 6, 3
ITEMS = KINDS * SHELVES
RATING, EXPLANATION, NEXT = range(3)
"""Tasks, which are domains. `NEXT` alone is held out, in the last wording, which is not among its
texts for training."""
TASKS = FIRST
WORDED, USER = TASKS + 3, TASKS + 3 + WORDINGS
ITEM, KIND, YES = USER + USERS, USER + USERS + ITEMS, USER + USERS + ITEMS + KINDS
"""First tokens of tasks, wordings, users, items and kinds, and of no and yes."""


@functools.cache
def shop(*, texts: tuple[int, int, int] = (256, 256, 64)) -> Task:
    """Pairs of a user and an item. Demonstrations of the warm start repeat both.

    Args:
      texts: of each task, in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 35])
        taste, place = rng.integers(KINDS, size=USERS), rng.permutation(ITEMS)

        def draw(size: int) -> np.ndarray:
            return np.stack([rng.integers(n, size=size) for n in (USERS, ITEMS)], axis=1)

        def build(
            pairs: np.ndarray,
            task: int,
            wordings: tuple[int, int],
            turned: np.ndarray | None = None,
            *,
            repeats: bool = False,
        ) -> Problems:
            (user, item), full = pairs.T, np.full(len(pairs), EOS)
            fields = np.stack([USER + user, ITEM + item], axis=1)
            turned = rng.random(len(pairs)) < 0.5 if turned is None else turned
            fields = np.where(turned[:, None], fields[:, ::-1], fields)
            worded = WORDED + rng.integers(*wordings, size=len(pairs))
            parts = [worded, *fields.T, full - EOS + TASKS + task, full - EOS + ASK]
            said = [*fields.T, full] if repeats else answers(taste[user], item, place, task)
            gold = np.stack(said, axis=1)
            return as_problems(np.stack(parts, axis=1), gold, gold, full - EOS + task)

        ranges = [(0, WORDINGS), (0, WORDINGS), (0, WORDINGS - 1)]
        train = [
            build(split.distinct(draw, count, held_out=False), task, ranges[task])
            for task, count in enumerate(texts)
        ]
        half = HELD_OUT // 2  # pairs, each in both orders
        pairs = np.tile(split.distinct(draw, half, held_out=True), (2, 1))
        test = build(pairs, NEXT, (WORDINGS - 1, WORDINGS), np.arange(HELD_OUT) < half)
        shown = [
            build(split.repeated(draw, 1365), task, ranges[task], repeats=True) for task in range(3)
        ]
        train, shown = (jax.tree.map(lambda *a: np.concatenate(a), *p) for p in (train, shown))
        return Splits(train, test, shown)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all(completion == answer).astype(jnp.float32)

    return Task(YES + 2, make, reward)


def answers(taste: np.ndarray, item: np.ndarray, place: np.ndarray, task: int) -> list[np.ndarray]:
    """The three tokens of each completion of a task, each [M].

    Args:
      taste: [M] the kind that the user likes.
      item: [M].
      place: [ITEMS] of each item, `kind * SHELVES + shelf`.
      task: which.
    """
    kind, shelf = np.divmod(place[item], SHELVES)
    end, none = np.full(len(item), EOS), np.full(len(item), PAD)
    if task == RATING:
        return [YES + (kind == taste), end, none]
    if task == EXPLANATION:
        return [KIND + kind, KIND + taste, end]
    bought = np.argsort(place)[taste * SHELVES + (shelf + 1) % SHELVES]
    return [ITEM + bought, end, none]


def hits(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and `hit@3`, the share of problems whose item is among the three
    that are most likely to be said first; [S]."""
    chances = np.asarray(policy.probabilities(model, params, task.test.prompt)[:, :, -1])
    right = np.take_along_axis(chances, task.test.answer[..., :1], axis=-1)
    found = (chances > right).sum(axis=-1) < 3
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"hit@3": found.mean(axis=1)}
