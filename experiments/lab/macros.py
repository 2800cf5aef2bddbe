"""Texts whose lines follow one hidden pattern, and an optional plan before each line.

A prompt shows a symbol with its code, which gives the pattern away, and the symbols of the lines. A
line is the codes of its symbols under the pattern. Before each line stands a plan: `FILLER` keeps
the plan in force, any other token announces one. In the domain `TEXT` the lines are given and only
plans are written; in `TARGET` the policy writes all, and the verifier reads the lines alone.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Sampled
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.extensions import latents
from jaxrl.extensions.latents import LatentsConfig

SYMBOLS, PATTERNS, LINES, WIDTH = 6, 3, 2, 2
"""Symbols, patterns, lines of a text and codes of a line."""
TEXT, TARGET = range(2)
"""Domains: given texts, and prompts to do RL on."""
BUDGET = LINES * (WIDTH + 1) + 1
BROKEN = -10.0
"""Reward of a text in which a plan is the end of the text."""
_SLOT = np.arange(BUDGET) % (WIDTH + 1) == 0
_SLOT[-1] = False


@functools.cache
def patterned(
    *, skill: float = 0.8, planned: float = 0.5, right: float = 0.6, problems: int = 256
) -> Task:
    """Each instance has its own codes, symbols and plans.

    Args:
      skill: chance that a code of a demonstration follows the pattern, or the plan where there is
        one; else it is that of a random pattern.
      planned: share of the demonstrations that announce a plan before the first line.
      right: chance that this plan is that of the prompt's pattern, else of a random one.
      problems: of `TARGET`, in the train split; there are eight times as many texts.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 18])
        name, place, ring = (rng.permutation(SYMBOLS) for _ in range(3))
        plan = rng.permutation(PATTERNS)

        def draw(size: int) -> np.ndarray:
            symbols = rng.integers(SYMBOLS, size=(size, LINES * WIDTH + 1))
            return np.concatenate([rng.integers(PATTERNS, size=(size, 1)), symbols], axis=1)

        def code(symbols: np.ndarray, pattern: np.ndarray) -> np.ndarray:
            return FIRST + ring[(place[symbols] + pattern) % SYMBOLS]

        def build(content: np.ndarray, domain: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, pattern, example = len(content), content[:, :1], content[:, 1:2]
            symbols, followed = content[:, 2:], pattern
            plans = np.full((size, LINES), FILLER)
            if imperfect:
                other = rng.integers(PATTERNS, size=(size, 1))
                said = np.where(rng.random((size, 1)) < right, pattern, other)
                announces = rng.random((size, 1)) < planned
                plans[:, :1] = np.where(announces, FIRST + SYMBOLS + plan[said], FILLER)
                followed = np.where(announces, said, pattern)
                known = rng.random(symbols.shape) < skill
                followed = np.where(known, followed, rng.integers(PATTERNS, size=symbols.shape))
            codes = code(symbols, followed)
            lines = np.concatenate([plans[..., None], codes.reshape(size, LINES, WIDTH)], axis=2)
            mark, end = np.full((size, 1), ASK), np.full((size, 1), EOS)
            shown = [FIRST + name[example], code(example, pattern), FIRST + name[symbols], mark]
            answer = np.concatenate([codes, domain[:, None]], axis=1)
            gold = np.concatenate([lines.reshape(size, -1), end], axis=1)
            return as_problems(np.concatenate(shown, axis=1), answer, gold, domain)

        content = split.distinct(draw, 9 * problems, held_out=False)
        train = build(content, np.repeat([TEXT, TARGET], [8 * problems, problems]))
        test = build(split.distinct(draw, HELD_OUT, held_out=True), np.full(HELD_OUT, TARGET))
        demonstrated = split.repeated(draw, 4096)
        return Splits(train, test, build(demonstrated, np.full(4096, TARGET), imperfect=True))

    def given(answer: jax.Array) -> jax.Array:
        """The tokens of the lines and the end, [BUDGET]; -1 where a plan stands."""
        lines = answer[: LINES * WIDTH].reshape(LINES, WIDTH)
        lines = jnp.pad(lines, ((0, 0), (1, 0)), constant_values=-1)
        return jnp.append(lines.reshape(-1), EOS)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all((completion == given(answer)) | _SLOT).astype(jnp.float32)

    def respond(answer: jax.Array, completion: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.where(answer[-1] == TEXT, given(answer)[t], -1)

    return Task(FIRST + SYMBOLS + PATTERNS, make, reward, respond)


def read(batch: Sampled) -> jax.Array:
    """The rewards [N]: RA3's bound for texts, and the verifier's for the rest."""
    settings, prompt = LatentsConfig(), batch.problems.prompt
    slot = jnp.broadcast_to(_SLOT, batch.tokens.shape)
    kept = jnp.where(slot, FILLER, batch.tokens)
    scores = [
        batch.score(jnp.concatenate([prompt, tokens], axis=1))[:, prompt.shape[1] :]
        for tokens in (batch.tokens, kept)
    ]
    value = latents.bound(
        *scores,
        line=~slot,
        slot=slot,
        announced=slot & (batch.tokens != FILLER),
        stay=settings.stay,
        choices=PATTERNS,
        beta=settings.beta,
    )
    broken = jnp.any(slot & (batch.tokens <= EOS), axis=1)
    text = batch.problems.domain == TEXT
    return jnp.where(text, jnp.where(broken, BROKEN, value), batch.rewards)
