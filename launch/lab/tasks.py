"""Token tasks small enough that a transformer of 20 thousand parameters learns them in seconds.

A task is arrays (problems, demonstrations) and a verifier written in JAX. Token 0 pads, 1 ends a
completion, 2 closes the prompt, 3 is a word without meaning; symbols follow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PAD, EOS, ASK, FILLER, FIRST = 0, 1, 2, 3, 4


class Problems(NamedTuple):
    """M problems; every field leads with [M]."""

    prompt: np.ndarray
    """[M, P] int32."""
    answer: np.ndarray
    """[M, A] int32: what the verifier compares with; its meaning is the task's own."""
    gold: np.ndarray
    """[M, T] int32: a completion of full reward, EOS included, then padding."""
    domain: np.ndarray
    """[M] int32."""
    shown: np.ndarray
    """[M, P] int32: the prompt of a policy that is shown the solution."""


def posed(
    prompt: np.ndarray,
    answer: np.ndarray,
    gold: np.ndarray,
    domain: np.ndarray | None = None,
    shown: np.ndarray | None = None,
) -> Problems:
    """Problems of integers of any kind; of one domain, and shown as they are, where not told."""
    domain = np.zeros(len(prompt)) if domain is None else domain
    shown = prompt if shown is None else shown
    return Problems(*(a.astype(np.int32) for a in (prompt, answer, gold, domain, shown)))


Verifier = Callable[[jax.Array, jax.Array], jax.Array]
"""(answer [A], completion [T]) -> reward of one completion; jitted and vmapped by the lab."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Problems, their judge, and what the policy imitated before the RL."""

    vocabulary: int
    train: Problems
    test: Problems
    reward: Verifier
    pupil: Problems
    """Demonstrations: `gold` is what the pupil wrote, right or wrong."""
    respond: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    """(answer [A], completion so far [T], t) -> the token that the environment writes at t, or -1
    where the policy writes. None: the policy always does."""

    @property
    def budget(self) -> int:
        """Longest completion, in tokens."""
        return self.train.gold.shape[1]


@functools.cache
def cipher(
    skills: tuple[tuple[int, float], ...] = ((4, 0.8), (4, 0.3)),
    mix: tuple[tuple[tuple[int, ...], float], ...] = (((2, 1), 1.0),),
    *,
    modes: int = 1,
    accepted: tuple[float, ...] = (1.0,),
    dawdle: float = 0.0,
    slack: int = 0,
    partial: bool = False,
    copying: float = 0.0,
    problems: int = 256,
) -> Task:
    """Rewrite each symbol by its code. The pupil knows some codes well and others hardly.

    Symbols come in classes, and a prompt has so many of each, in any order: with `k` symbols of
    skill `s` the policy begins at a pass rate of `s ** k`, and what it learns of a symbol in an
    easy prompt serves it in a hard one. A pupil who does not know writes the symbol's usual wrong
    code, so that the wrong answer is a habit and not noise.

    Args:
      skills: (number of symbols, chance that the pupil writes a right code) of each class.
      mix: domains: (symbols of each class in its prompts, share of the problems). Shorter prompts
        are filled up with a blank, for which nothing is written.
      modes: codes of a symbol. The pupil chooses among them evenly.
      accepted: shares of problems that accept mode 0, 1, ... alone (its number is not in the
        prompt); a single 1.0 accepts every mode of every symbol.
      dawdle: chance that the pupil writes a filler before each symbol, and before the end: lengths
        are then geometric. The verifier ignores fillers.
      slack: tokens of the completion budget beyond the longest gold one.
      partial: the reward is the share of right symbols, not 1 for all right and else 0.
      copying: share of the pupil's demonstrations that copy a shown solution.
      problems: in the train split; a quarter as many are held out.
    """
    rng = np.random.default_rng(0)
    count = sum(n for n, _ in skills)
    skill = np.repeat([s for _, s in skills], [n for n, _ in skills])
    kind = np.repeat(np.arange(len(skills)), [n for n, _ in skills])
    blank = FIRST + count
    width = max(sum(counts) for counts, _ in mix)
    budget = width + 1 + slack

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        domains = rng.choice(
            len(mix), size, p=np.array([p for _, p in mix]) / sum(p for _, p in mix)
        )
        rows = np.full((size, width), -1)
        for row, domain in zip(rows, domains, strict=True):
            symbols = np.concatenate(
                [rng.choice(np.flatnonzero(kind == c), n) for c, n in enumerate(mix[domain][0])]
            )
            row[: len(symbols)] = rng.permutation(symbols)
        return rows, domains

    def code(symbols: np.ndarray, mode: np.ndarray | int) -> np.ndarray:
        return FIRST + (symbols + 1 + mode) % count

    def write(symbols: np.ndarray, codes: np.ndarray, chance: float) -> np.ndarray:
        out = np.full((len(symbols), budget), PAD)
        for row, line, written in zip(out, symbols, codes, strict=True):
            tokens: list[int] = []
            for token in [*written[line >= 0], EOS]:
                while chance and rng.random() < chance:
                    tokens.append(FILLER)
                tokens.append(int(token))
            tokens = tokens[:budget]
            row[: len(tokens)] = tokens
        return out.astype(np.int32)

    def make(size: int, *, pupil: bool) -> Problems:
        symbols, domains = draw(size)
        ask = np.full((size, 1), ASK)
        prompt = np.concatenate([np.where(symbols >= 0, FIRST + symbols, blank), ask], axis=1)
        only = -np.ones(size, int)
        if len(accepted) > 1:
            only = rng.choice(len(accepted), size, p=accepted)
        mode = np.where(only < 0, 0, only)[:, None]
        gold = write(symbols, code(symbols, mode), 0.0)
        if pupil:
            mode = rng.integers(modes, size=symbols.shape)
            if len(accepted) > 1:
                mode = rng.choice(len(accepted), size, p=accepted)[:, None]
            right = rng.random(symbols.shape) < skill[symbols]
            gold = write(symbols, code(symbols, np.where(right, mode, modes)), dawdle)
        codes = code(symbols, 0 if pupil else mode)
        shown = np.concatenate([np.where(symbols >= 0, codes, blank), ask - ASK + FILLER], axis=1)
        if pupil:
            copies = rng.random(size) < copying
            prompt[copies], gold[copies] = shown[copies], write(symbols, codes, 0.0)[copies]
        answer = np.concatenate([symbols, only[:, None]], axis=1)
        return posed(prompt, answer, gold, domains, shown)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        symbols, only = answer[:-1], answer[-1]
        order = jnp.argsort(completion == FILLER, stable=True)
        ended = jnp.any(completion == EOS)
        kept = jnp.where(jnp.arange(budget) < jnp.sum(completion != FILLER), completion[order], PAD)
        written = kept[:width]
        mode = (written - FIRST - 1 - symbols) % count
        right = jnp.where(only < 0, mode < modes, mode == only) & (written >= FIRST)
        right = jnp.where(symbols < 0, True, right)
        length = jnp.sum(symbols >= 0)
        whole = jnp.all(right) & ended & (kept[length] == EOS)
        if not partial:
            return whole.astype(jnp.float32)
        share = jnp.sum(right & (symbols >= 0)) / length
        return jnp.where(ended & (kept[length] == EOS), share, 0.0)

    return Task(
        vocabulary=blank + 1,
        train=make(problems, pupil=False),
        test=make(max(problems // 4, 32), pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
    )


def graded() -> Task:
    """Four domains from solved to hopeless (pass rates 0.86, 0.24, 0.05, 0.02 at the start).

    They have symbols in common: what is learned in one serves in the next.
    """
    mix = (((3, 0, 0), 0.25), ((1, 2, 0), 0.25), ((0, 2, 1), 0.25), ((0, 1, 2), 0.25))
    return cipher(((4, 0.95), (4, 0.5), (4, 0.2)), mix)


def hard_prompts(*, copying: float = 0.0) -> Task:
    """Prompts that the pupil gets right every other time, and as many that it hardly ever does.

    At a pass rate of 1 in 15 thousand hardly a group has anything to teach, and what the easy
    prompts teach is no use here: they have no symbol in common. Domain 1 is the hard one.
    """
    return cipher(((6, 0.8), (4, 0.04)), (((3, 0), 0.5), ((0, 3), 0.5)), copying=copying)


@functools.cache
def lookup(
    hops: int = 2,
    *,
    keys: int = 8,
    skill: float = 0.7,
    hasty: float = 0.3,
    slack: int = 0,
    problems: int = 256,
) -> Task:
    """Follow a chain of keys through a table that the environment alone knows; say where it ends.

    The policy writes a key and the environment answers with the key that follows it in this
    problem's own table; `ASK`, then a key, then the end is an answer. The prompt gives the first
    key. The pupil asks on from the wrong key now and then, and answers too soon.

    Args:
      hops: links of the chain.
      keys: in a table.
      skill: chance that the pupil asks for the right key.
      hasty: chance at each turn that it answers instead, with the key it holds.
      slack: tokens beyond the shortest solution.
      problems: in the train split; a quarter as many are held out.
    """
    rng = np.random.default_rng(0)
    budget = 2 * hops + 3 + slack

    def make(size: int, *, pupil: bool) -> Problems:
        tables = np.stack([rng.permutation(keys) for _ in range(size)])
        start = rng.integers(keys, size=size)
        gold = np.full((size, budget), PAD)
        ends = []
        for row, table, key in zip(gold, tables, start, strict=True):
            held, turn = int(key), 0
            end = functools.reduce(lambda k, _, table=table: table[k], range(hops), held)
            ends.append(end)
            while turn < 2 * hops and not (pupil and rng.random() < hasty):
                asked = held if not pupil or rng.random() < skill else rng.integers(keys)
                held = int(table[asked])
                row[turn : turn + 2] = FIRST + asked, FIRST + held
                turn += 2
            row[turn : turn + 3] = ASK, FIRST + held, EOS
        prompt = np.stack([FIRST + start, np.full(size, ASK)], axis=1)
        answer = np.concatenate([np.array(ends)[:, None], tables], axis=1)
        return posed(prompt, answer, gold)

    def respond(answer: jax.Array, completion: jax.Array, t: jax.Array) -> jax.Array:
        asked = completion[t - 1] - FIRST
        known = jnp.where(asked >= 0, FIRST + answer[1:][asked], FILLER)
        answering = jnp.any((completion == ASK) & (jnp.arange(budget) < t))
        return jnp.where((t % 2 == 1) & ~answering, known, -1)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        at = jnp.argmax(completion == ASK)
        said = jax.lax.dynamic_slice(jnp.pad(completion, (0, 2)), (at,), (3,))
        right = jnp.stack([jnp.int32(ASK), FIRST + answer[0], jnp.int32(EOS)])
        return jnp.all(said == right).astype(jnp.float32)

    return Task(
        vocabulary=FIRST + keys,
        train=make(problems, pupil=False),
        test=make(max(problems // 4, 32), pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
        respond=respond,
    )
