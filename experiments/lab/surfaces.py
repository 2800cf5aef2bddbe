"""Answers with many surface forms, and a small verifier that has learned which ones are equal."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm, Sampled
from experiments.lab.effect import attempts, held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

VALUES, FORMS, LENGTH = 12, 3, 3
"""Values of the task, ways to write each, and symbols of a prompt."""
WRITTEN = VALUES * FORMS
"""Tokens that stand for a value: token `FIRST + VALUES + w` for value `w // FORMS`."""


@functools.cache
def surfaces(
    *,
    skills: tuple[float, float] = (0.8, 0.4),
    seen: tuple[float, float] = (0.8, 0.5),
    forms: int = FORMS,
    problems: int = 256,
) -> Task:
    """Write the value of each symbol, in any of its forms; the reference has one of them.

    The verifier of an instance is trained on pairs of forms. `answer` is the reference, then, for
    each of its places, which forms the verifier takes there. The task's own reward takes all forms
    of the right values and nothing else.

    Args:
      skills: probability of a right value in a demonstration, of each half of the symbols.
      seen: share of the pairs of equal forms, and of the others, that the verifier has learned
        from.
      forms: of a value, the first ones, that references and demonstrations are in.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 15])
        value = rng.permutation(VALUES)
        skill = rng.permutation(np.repeat(skills, VALUES // 2))
        accepts = trained(rng, seen)

        def draw(size: int) -> np.ndarray:
            return rng.integers(VALUES, size=(size, LENGTH))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size = len(content)
            right = rng.random(content.shape) < (skill[content] if imperfect else 1.0)
            stated = value[(content + ~right) % VALUES]
            written = stated * FORMS + rng.integers(forms, size=content.shape)
            said = FIRST + VALUES + written
            gold = np.concatenate([said, np.full((size, 1), EOS)], axis=1)
            prompt = np.concatenate([FIRST + content, np.full((size, 1), ASK)], axis=1)
            answer = np.concatenate([said, accepts[written].reshape(size, -1)], axis=1)
            return as_problems(prompt, answer, gold)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        places = answer.shape[0] // (WRITTEN + 1)
        value = (completion[:places] - FIRST - VALUES) // FORMS
        right = jnp.all(value == (answer[:places] - FIRST - VALUES) // FORMS)
        return (right & (completion[places] == EOS)).astype(jnp.float32)

    return Task(FIRST + VALUES + WRITTEN, make, reward)


def trained(
    rng: np.random.Generator, seen: tuple[float, float], *, size: int = 12, steps: int = 400
) -> np.ndarray:
    """A verifier: which forms it takes for which, [WRITTEN, WRITTEN] bool.

    Logistic regression on the product of two embeddings, one for each form, by gradient descent.

    Args:
      rng: of the pairs seen and of the first embeddings.
      seen: share of the pairs of equal forms, and of the others, that it learns from.
      size: of an embedding.
      steps: of gradient descent.
    """
    equal = np.arange(WRITTEN)[:, None] // FORMS == np.arange(WRITTEN) // FORMS
    learned = np.triu(rng.random(equal.shape) < np.where(equal, *seen))
    learned |= learned.T
    weight = np.where(equal, 1 / (learned & equal).sum(), 1 / (learned & ~equal).sum()) * learned
    made, bias = rng.normal(0, 0.3, (WRITTEN, size)), 0.0
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-(made @ made.T + bias)))
        error = weight * (chance - equal)
        made, bias = made - 10 * (error @ made + 1e-3 * made / WRITTEN), bias - error.sum()
    return made @ made.T + bias > 0


def accepted(tokens: jax.Array, answers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether completions [..., T] state values at all, and whether the verifier takes these.

    Answers are [..., A], each result [...], 1.0 or 0.0.
    """
    places = answers.shape[-1] // (WRITTEN + 1)
    written = tokens[..., :places] - FIRST - VALUES
    stated = jnp.all((written >= 0) & (written < WRITTEN), axis=-1) & (tokens[..., places] == EOS)
    rows = answers[..., places:].reshape(*answers.shape[:-1], places, WRITTEN)
    rows = jnp.broadcast_to(rows, (*written.shape, WRITTEN))
    taken = jnp.take_along_axis(rows, jnp.clip(written, 0, WRITTEN - 1)[..., None], axis=-1)
    passed = stated & jnp.all(taken[..., 0] == 1, axis=-1)
    return stated.astype(jnp.float32), passed.astype(jnp.float32)


def same(batch: Sampled) -> jax.Array:
    """[N] 1.0 for the reference itself, else 0.0."""
    places = batch.tokens.shape[-1] - 1
    wanted = batch.problems.answer[:, :places]
    own = (batch.tokens[:, :places] == wanted) & (batch.tokens[:, places:] == EOS)
    return jnp.all(own, axis=1).astype(jnp.float32)


def verified(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`; `refused`, the share of right answers that the verifier does not
    take, and `hacked`, the share of wrong ones among those that it takes; [S]."""
    written, right = attempts(model, task, arm, params, samples=1)
    passed = np.asarray(accepted(written.tokens, task.test.answer[:, :, None])[1])
    missed, wrong = (right * (1 - passed)).sum((1, 2)), ((1 - right) * passed).sum((1, 2))
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {
        "refused": missed / np.maximum(right.sum((1, 2)), 1),
        "hacked": wrong / np.maximum(passed.sum((1, 2)), 1),
    }
