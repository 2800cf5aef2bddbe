"""Questions of which half can be checked by a rule, and a judge with faults for the other half."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split, surfaces
from experiments.lab.arms import Arm, Sampled
from experiments.lab.effect import held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.surfaces import FORMS, LENGTH, VALUES, WRITTEN
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params


@functools.cache
def routes(
    *,
    skills: tuple[float, float] = (0.8, 0.4),
    seen: tuple[float, float] = (0.8, 0.5),
    forms: int = FORMS,
    problems: int = 256,
) -> Task:
    """Write the value of each symbol: in domain 0 in its first form, in domain 1 in any form.

    A prompt says which, by its first token. The judge is the verifier of `surfaces`. `answer` is
    the reference, which forms the judge takes at each of its places, then the domain. The task's
    own reward takes what is right in the problem's domain.

    Args:
      skills: probability of a right value in a demonstration, of each half of the symbols.
      seen: share of the pairs of equal forms, and of the others, that the judge has learned from.
      forms: of a value, the first ones, that references and demonstrations of domain 1 are in.
      problems: of each domain, in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 25])
        value = rng.permutation(VALUES)
        skill = rng.permutation(np.repeat(skills, VALUES // 2))
        accepts = surfaces.trained(rng, seen)

        def draw(size: int) -> np.ndarray:
            return rng.integers(VALUES, size=(size, LENGTH))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size = len(content)
            free = np.arange(size)[:, None] % 2 == 1
            right = rng.random(content.shape) < (skill[content] if imperfect else 1.0)
            stated = value[(content + ~right) % VALUES]
            written = stated * FORMS + free * rng.integers(forms, size=content.shape)
            said = FIRST + VALUES + written
            gold = np.concatenate([said, np.full((size, 1), EOS)], axis=1)
            asked = [np.where(free, FILLER, ASK), FIRST + content, np.full((size, 1), ASK)]
            answer = np.concatenate([said, accepts[written].reshape(size, -1), free], axis=1)
            return as_problems(np.concatenate(asked, axis=1), answer, gold, free[:, 0])

        train = build(split.distinct(draw, 2 * problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        said, wanted = completion[:LENGTH] - FIRST - VALUES, answer[:LENGTH] - FIRST - VALUES
        fits = jnp.where(answer[-1] == 1, said // FORMS == wanted // FORMS, said == wanted)
        return (jnp.all(fits) & (completion[LENGTH] == EOS)).astype(jnp.float32)

    return Task(FIRST + VALUES + WRITTEN, make, reward)


def by_rule(batch: Sampled) -> jax.Array:
    """[N] 1.0 for the reference as it is written, else 0.0."""
    wanted = batch.problems.answer[:, :LENGTH]
    own = jnp.all(batch.tokens[:, :LENGTH] == wanted, axis=1) & (batch.tokens[:, LENGTH] == EOS)
    return own.astype(jnp.float32)


def by_judge(batch: Sampled) -> jax.Array:
    """[N] 1.0 for what the judge takes for the reference, else 0.0."""
    return surfaces.accepted(batch.tokens, batch.problems.answer[:, :-1])[1]


def by_route(batch: Sampled) -> jax.Array:
    """[N] the rule's verdict where it can check, and the judge's elsewhere."""
    return jnp.where(batch.problems.domain == 1, by_judge(batch), by_rule(batch))


def asked(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`; `judged`, the share of rewards that a judge is asked for; [S]."""
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"judged": np.full(len(figures["pass@1"]), share_judged(task, arm))}


def share_judged(task: Task, arm: Arm) -> float:
    """Share of the training problems whose answers an arm's rewards put to the judge."""
    return {by_judge: 1.0, by_route: float(np.mean(task.train.domain))}.get(arm.rewards, 0.0)
