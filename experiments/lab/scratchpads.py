"""Sums that are written step by step, and process reward models from labels of two kinds."""

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
from jaxrl.data.rewards.steps import AGGREGATES
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

BASE, TERMS = 6, 5
"""Digits, and how many of them are added."""
STEPS = TERMS - 1
"""Of a solution: the sum after each term but the first."""
UNIT = 100
"""Of the models' logits in a problem's answer."""
ROLLOUTS = 4
"""Continuations that a step is labelled by, without a reference."""
PASS_COST = 3 * STEPS
"""Tokens of labels in one pass: a solution and the reference are read, labels are written."""
ROLLOUTS_COST = STEPS + ROLLOUTS * STEPS * (STEPS - 1) // 2
"""Tokens of labels by rollouts: a solution is read, and the rest is written after each step."""


@functools.cache
def scratchpads(
    *,
    skills: tuple[float, float] = (0.95, 0.5),
    slips: float = 0.1,
    labelled: int = 240,
    at_cost: bool = True,
    problems: int = 256,
) -> Task:
    """Add digits in the base `BASE`, writing each partial sum.

    Two process reward models have learned from labelled solutions to problems of the train side.
    `answer` is the right steps and then, in units of 1 / `UNIT`, the logits of both models of a
    step at each place, after each digit and for each digit written. The task's own reward takes
    solutions whose last step is right.

    Args:
      skills: probability of a right step in a demonstration, of each half of the additions.
      slips: share of the steps that the annotator with the reference labels wrongly.
      labelled: solutions that it labels.
      at_cost: rollouts label as many solutions as cost the same, else as many as it does.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 25])
        code = rng.permutation(BASE)
        skill = rng.permutation(np.repeat(skills, BASE * BASE // 2)).reshape(BASE, BASE)

        def draw(size: int) -> np.ndarray:
            return rng.integers(BASE, size=(size, TERMS))

        shown = split.repeated(draw, labelled)
        said = written(rng, shown, skill)
        once = fitted(shown, said, one_pass(rng, shown, said, slips))
        few = labelled * PASS_COST // ROLLOUTS_COST if at_cost else labelled
        often = fitted(shown[:few], said[:few], rolled_out(rng, shown[:few], said[:few], skill))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, right = len(content), sums(content)
            steps = written(rng, content, skill) if imperfect else right
            gold = np.concatenate([FIRST + code[steps], np.full((size, 1), EOS)], axis=1)
            prompt = np.concatenate([FIRST + code[content], np.full((size, 1), ASK)], axis=1)
            digits = np.argsort(code)
            models = [
                model[:, digits][np.arange(STEPS), :, content[:, 1:]][..., digits].reshape(size, -1)
                for model in (once, often)
            ]
            logits = np.round(UNIT * np.concatenate(models, axis=1))
            return as_problems(prompt, np.concatenate([code[right], logits], axis=1), gold)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        right = completion[STEPS - 1] == FIRST + answer[STEPS - 1]
        return (right & _stated(completion[None])[0]).astype(jnp.float32)

    return Task(FIRST + BASE, make, reward)


def sums(content: np.ndarray) -> np.ndarray:
    """[M, STEPS] the right steps of problems [M, TERMS]."""
    return np.cumsum(content, axis=1)[:, 1:] % BASE


def written(
    rng: np.random.Generator,
    content: np.ndarray,
    skill: np.ndarray,
    given: np.ndarray | None = None,
) -> np.ndarray:
    """[M, STEPS] steps as a policy writes them, each from the one before, be it right or wrong.

    Args:
      rng: of the errors.
      content: [M, TERMS].
      skill: [BASE, BASE], how probable the sum of two digits is right.
      given: [M, K] steps that are there already; None: none.
    """
    steps = [] if given is None else list(given.T)
    before = steps[-1] if steps else content[:, 0]
    for term in content[:, 1 + len(steps) :].T:
        wrong = rng.random(len(content)) >= skill[before, term]
        before = (before + term + wrong * rng.integers(1, BASE, len(content))) % BASE
        steps.append(before)
    return np.stack(steps, axis=1)


def one_pass(
    rng: np.random.Generator, content: np.ndarray, said: np.ndarray, slips: float
) -> np.ndarray:
    """[M, STEPS] labels by the reference: a step is right if it is the reference's.

    The annotator errs at the rate `slips`, but for the last step, whose label is the outcome's.
    """
    right = said == sums(content)
    wrongly = rng.random(said.shape) < slips
    wrongly[:, -1] = False
    return (right ^ wrongly).astype(float)


def rolled_out(
    rng: np.random.Generator, content: np.ndarray, said: np.ndarray, skill: np.ndarray
) -> np.ndarray:
    """[M, STEPS] labels without a reference solution: how many of `ROLLOUTS` continuations after a
    step end in the right answer, as a share."""
    labels = []
    for place in range(STEPS):
        ends = [written(rng, content, skill, said[:, : place + 1])[:, -1] for _ in range(ROLLOUTS)]
        labels.append(np.mean(ends == sums(content)[:, -1], axis=0))
    return np.stack(labels, axis=1)


def fitted(
    content: np.ndarray, said: np.ndarray, labels: np.ndarray, *, steps: int = 300
) -> np.ndarray:
    """A process reward model: logits [STEPS, BASE, BASE, BASE] by place, digit before, term, step.

    Cross-entropy of the labels, by gradient descent on a logit for each addition and its result and
    one for each place, with weight decay.

    Args:
      content: [M, TERMS].
      said: [M, STEPS].
      labels: [M, STEPS] from 0 to 1.
      steps: of gradient descent.
    """
    before = np.concatenate([content[:, :1], said[:, :-1]], axis=1)
    where = (before, content[:, 1:], said)
    table, places = np.zeros((BASE, BASE, BASE)), np.zeros(STEPS)
    for _ in range(steps):
        error = labels - 1 / (1 + np.exp(-(table[where] + places)))
        table *= 0.98
        np.add.at(table, where, 0.2 * error)
        places += error.mean(axis=0)
    return table + places[:, None, None, None]


def _stated(tokens: jax.Array) -> jax.Array:
    """[N] bool: whether completions [N, T] are all steps and then the end."""
    said = tokens[:, :STEPS] - FIRST
    return jnp.all((said >= 0) & (said < BASE), axis=1) & (tokens[:, STEPS] == EOS)


def chances(batch: Sampled, model: int) -> jax.Array:
    """[N, STEPS] how probable a model (0: one pass, 1: rollouts) finds each step right.

    The first digit is the prompt's first token.
    """
    said = jnp.clip(batch.tokens[:, :STEPS] - FIRST, 0, BASE - 1)
    before = jnp.concatenate([batch.problems.prompt[:, :1] - FIRST, said[:, :-1]], axis=1)
    tables = batch.problems.answer[:, STEPS:].reshape(-1, 2, STEPS, BASE, BASE)[:, model]
    rows = jnp.arange(len(said))[:, None]
    return jax.nn.sigmoid(tables[rows, jnp.arange(STEPS), before, said] / UNIT)


def _judged(batch: Sampled, model: int) -> jax.Array:
    found = AGGREGATES["product"](chances(batch, model))
    return jnp.where(_stated(batch.tokens), found, 0.0)


def by_reference(batch: Sampled) -> jax.Array:
    """[N] product of the steps' probabilities, by the model from labels of one pass."""
    return _judged(batch, 0)


def by_rollouts(batch: Sampled) -> jax.Array:
    """[N] the same, by the model from labels of rollouts."""
    return _judged(batch, 1)


def chosen(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`; and at the last time `best@8`, the share of right ones among the
    answers that the arm's reward prefers of 8 from the policies before RL; [S]."""
    figures = held_out(model, task, arm, params, start, samples=samples)
    if samples == 1:
        return figures
    written, right = attempts(model, task, arm, start, samples=samples)
    given = right
    if arm.rewards is not None:
        problems = jax.tree.map(lambda a: np.repeat(a[:, :, None], samples, axis=2), task.test)
        blank = Sampled(problems, written.tokens, *[None] * 7)
        flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[3:]), blank)
        given = np.asarray(arm.rewards(flat)).reshape(right.shape)
    best = np.argmax(given, axis=2)[..., None]
    return figures | {"best@8": np.take_along_axis(right, best, axis=2).mean(axis=(1, 2))}
