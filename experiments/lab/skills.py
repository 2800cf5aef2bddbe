"""Two domains with one skill: codes of other symbols, behind the same mark.

What is known of a domain are its codes; the skill is to mark an answer. Demonstrations of both
domains have most codes right and forget the mark at times.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.lab import split
from experiments.lab.policy import logprobs
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, LENGTH = 12, 3
"""Of each domain, and of a prompt."""


@functools.cache
def domains(*, marked: float = 0.3, known: bool = False, problems: int = 256) -> Task:
    """Codes behind a mark. Domain 0 is the source; domain 1 the target, which alone is held out.

    Solutions of the source have the mark, those of the target as often as demonstrations do.

    Args:
      marked: share of the demonstrations that mark their answer.
      known: whether the demonstrations of the warm start are of both domains, or of the source.
      problems: of the target, in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 11])
        code = rng.permutation(2 * SYMBOLS)

        def build(symbols: np.ndarray, right: float, share: float) -> Problems:
            codes, shape = FIRST + code[symbols], symbols.shape
            wrong = FIRST + rng.integers(2 * SYMBOLS, size=shape)
            said = np.where(rng.random(shape) < right, codes, wrong)
            end = np.full((len(symbols), 1), EOS)
            with_mark = np.concatenate([np.full_like(end, FILLER), said, end], axis=1)
            without = np.concatenate([said, end, 0 * end], axis=1)
            gold = np.where(rng.random(end.shape) < share, with_mark, without)
            prompt = np.concatenate([FIRST + symbols, np.full_like(end, ASK)], axis=1)
            return as_problems(prompt, codes, gold, symbols[:, 0] >= SYMBOLS)

        def draw(size: int, first: int) -> np.ndarray:
            return first + rng.integers(SYMBOLS, size=(size, LENGTH))

        source, target = (functools.partial(draw, first=first) for first in (0, SYMBOLS))
        own = build(split.distinct(source, 256, held_out=False), 1.0, 1.0)
        read = build(split.distinct(target, problems, held_out=False), 1.0, marked)
        train = jax.tree.map(lambda *a: np.concatenate(a), own, read)
        test = build(split.distinct(target, split.HELD_OUT, held_out=True), 1.0, 1.0)
        shown = [split.repeated(draw, 4096) for draw in ([source, target] if known else [source])]
        return Splits(train, test, build(np.concatenate(shown), 0.9, marked))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        wanted = jnp.concatenate([jnp.array([FILLER]), answer, jnp.array([EOS])])
        return jnp.all(completion == wanted).astype(jnp.float32)

    return Task(FIRST + 2 * SYMBOLS, make, reward)


@functools.partial(jax.jit, static_argnums=(0, 1))
def read(model: DecoderConfig, steps: int, params: Params, tokens: jax.Array) -> Params:
    """Policies [S, ...] after supervised steps on texts [S, N, L], their prompts included."""

    def one(params: Params, tokens: jax.Array) -> Params:
        optimizer = optax.adam(1e-3)

        def loss(params: Params) -> jax.Array:
            logp, _ = logprobs(model, params, tokens)
            written = (tokens > 0) & (jnp.arange(tokens.shape[1]) > LENGTH)
            return -jnp.sum(jnp.where(written, logp, 0.0)) / jnp.sum(written)

        def step(state: tuple, _: None) -> tuple[tuple, None]:
            updates, moments = optimizer.update(jax.grad(loss)(state[0]), state[1])
            return (optax.apply_updates(state[0], updates), moments), None

        return jax.lax.scan(step, (params, optimizer.init(params)), None, steps)[0][0]

    return jax.lax.map(lambda given: one(*given), (params, tokens))
