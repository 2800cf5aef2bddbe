"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Sampled, Splits, Task, arm, cipher
from experiments.lab.effect import SAMPLES, held_out
from experiments.lab.variants import wrong_verdicts
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

TRAINED, BENCHMARK, LEAKED = 256, 32, 0.5
"""Problems of the RL and of the benchmark; the benchmark's share of the demonstrations."""


SKILLS, MIX = ((12, 0.8), (6, 0.3)), (((2, 1), 1.0),)


def by_chance(batch: Sampled) -> jax.Array:
    """A coin for each completion."""
    return jax.random.bernoulli(batch.key, 0.5, batch.rewards.shape).astype(jnp.float32)


def effect() -> Effect:
    """Partial credit, as in the continuous reward, against coins."""
    method = arm(recipes.load("randomcalculation"), steps=60)
    return Effect(
        claim="on clean problems a true reward teaches and a random one does not",
        task=cipher(SKILLS, MIX, partial=True),
        method=method,
        ablation=dataclasses.replace(method, rewards=by_chance),
        further={"inverted": rewarded(upside_down), "a fifth inverted": rewarded(noisy)},
        statistic="score",
    ).also("contaminated", task=contaminated(), measure=with_benchmark, statistic="benchmark score")


@functools.cache
def contaminated(*, benchmark: bool = False) -> Task:
    """Problems as in the regime, where the demonstrations hold a benchmark with its right answers.

    Neither the RL nor the held-out split has a problem of the benchmark.

    Args:
      benchmark: the test split is the benchmark itself, to measure what was leaked.
    """
    clean = cipher(SKILLS, MIX, partial=True, problems=TRAINED + BENCHMARK)

    def make(seed: int) -> Splits:
        train, test, demonstrations = clean.make(seed)
        leaked = jax.tree.map(lambda a: a[TRAINED:], train)
        rng = np.random.default_rng([seed, 9])
        count = len(demonstrations.domain)
        which = count + rng.integers(BENCHMARK, size=count)
        rows = np.where(rng.random(count) < LEAKED, which, np.arange(count))
        shown = jax.tree.map(lambda a, b: np.concatenate([a, b])[rows], demonstrations, leaked)
        trained = jax.tree.map(lambda a: a[:TRAINED], train)
        return Splits(trained, leaked if benchmark else test, shown)

    return dataclasses.replace(clean, make=make)


def with_benchmark(
    model: DecoderConfig,
    task: Task,
    arm: Arm,
    params: Params,
    start: Params,
    samples: int = SAMPLES,
) -> dict[str, np.ndarray]:
    """Figures on held-out problems, and `benchmark score`, the mean reward on the benchmark [S]."""
    leaked = contaminated(benchmark=True).over(task.seeds)
    fresh, old = (
        held_out(model, each, arm, params, start, samples=samples) for each in (task, leaked)
    )
    return fresh | {"benchmark score": old["score"]}


def rewarded(rewards: Callable[[Sampled], jax.Array]) -> Callable[[Arm], Arm]:
    """The method's arm with these rewards."""
    return lambda method: dataclasses.replace(method, rewards=rewards)


def upside_down(batch: Sampled) -> jax.Array:
    """1 less the reward [N]: the higher, the worse the answer is."""
    return 1.0 - batch.rewards


def noisy(batch: Sampled) -> jax.Array:
    """The reward [N], turned around with probability 0.2."""
    return wrong_verdicts(batch, 0.2)
