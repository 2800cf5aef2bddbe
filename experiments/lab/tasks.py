"""Token tasks small enough that a transformer of 20 thousand parameters learns them in seconds.

A task is arrays (problems, demonstrations) and a verifier written in JAX. Each seed has an instance
of its own: other symbols, codes, problems and demonstrations under one verifier. Token 0 pads, 1
ends a completion, 2 closes the prompt, 3 is a word without meaning; symbols follow.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.split import HELD_OUT

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


def as_problems(
    prompt: np.ndarray,
    answer: np.ndarray,
    gold: np.ndarray,
    domain: np.ndarray | None = None,
    shown: np.ndarray | None = None,
) -> Problems:
    """Problems of integers of any kind; by default of one domain, and shown without changes."""
    domain = np.zeros(len(prompt)) if domain is None else domain
    shown = prompt if shown is None else shown
    return Problems(*(a.astype(np.int32) for a in (prompt, answer, gold, domain, shown)))


Verifier = Callable[[jax.Array, jax.Array], jax.Array]
"""(answer [A], completion [T]) -> reward of one completion; jitted and vmapped by the lab."""


class Splits(NamedTuple):
    """One instance of a task."""

    train: Problems
    test: Problems
    """Held out: no prompt of theirs is in `train`."""
    demonstrations: Problems
    """Of the warm start: `gold` is a demonstrated completion, which may be wrong."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Problems, their verifier, and demonstrations for the warm start before RL.

    `train`, `test` and `demonstrations` are those of seed 0; `over` gives those of several seeds.
    """

    vocabulary: int
    make: Callable[[int], Splits]
    """The instance of a seed."""
    reward: Verifier
    respond: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    """(answer [A], completion so far [T], t) -> the token that the environment writes at t, or -1
    where the policy writes. None: the policy always does."""
    seeds: tuple[int, ...] = ()
    """Empty: one instance. Else fields of `train`, `test`, `demonstrations` are [S, M, ...]."""

    @functools.cached_property
    def _splits(self) -> Splits:
        if not self.seeds:
            return self.make(0)
        each = [self.make(seed) for seed in self.seeds]
        return jax.tree.map(lambda *a: np.stack(a), *each)

    @property
    def train(self) -> Problems:
        """What the RL trains on."""
        return self._splits.train

    @property
    def test(self) -> Problems:
        """What statistics are measured on."""
        return self._splits.test

    @property
    def demonstrations(self) -> Problems:
        """Demonstrations of the warm start."""
        return self._splits.demonstrations

    def over(self, seeds: Sequence[int]) -> Task:
        """The instances of these seeds, stacked; the same object for the same seeds."""
        return _over(self, tuple(seeds))

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt."""
        return self.train.prompt.shape[-1]

    @property
    def budget(self) -> int:
        """Longest completion, in tokens."""
        return self.train.gold.shape[-1]

    def digest(self) -> str:
        """Of the instances of seeds 0 and 1: what a plan names the task by."""
        return _digest(self)


@functools.cache
def _digest(task: Task) -> str:
    made = hashlib.blake2b(str(task.vocabulary).encode(), digest_size=8)
    for seed in (0, 1):
        for leaf in jax.tree.leaves(task.make(seed)):
            made.update(np.ascontiguousarray(leaf).tobytes())
    return made.hexdigest()


@functools.cache
def verdicts(task: Task) -> str:
    """Digest of how a task's verifier judges: solutions, those of other problems, demonstrations.

    Rewards count to four decimals, which differ on no machine.
    """
    made, judge = hashlib.blake2b(digest_size=8), jax.jit(jax.vmap(task.reward))
    for seed in (0, 1):
        splits = task.make(seed)
        for problems in (splits.train, splits.demonstrations):
            answer, gold = problems.answer[:64], problems.gold[:64]
            for completions in (gold, np.roll(gold, 1, axis=0)):
                rewards = np.asarray(judge(answer, completions), np.float64)
                made.update((np.round(rewards, 4) + 0.0).tobytes())
    return made.hexdigest()


@functools.lru_cache(maxsize=12)
def _over(task: Task, seeds: tuple[int, ...]) -> Task:
    return dataclasses.replace(task, seeds=seeds)


def taken(problems: Problems, rows: np.ndarray) -> Problems:
    """Problems [S, N, ...] at rows [S, N]; of each seed's own instance where there are several."""
    if problems.domain.ndim == 1:
        return jax.tree.map(lambda a: a[rows], problems)
    each = np.arange(len(rows))[:, None]
    return jax.tree.map(lambda a: a[each, rows], problems)


def of_seed(problems: Problems, place: int) -> Problems:
    """The problems of one seed, [M, ...]: the `place`-th of those stacked."""
    return problems if problems.domain.ndim == 1 else jax.tree.map(lambda a: a[place], problems)


@functools.cache
def cipher(
    skills: tuple[tuple[int, float], ...] = ((10, 0.8), (10, 0.3)),
    mix: tuple[tuple[tuple[int, ...], float], ...] = (((2, 1), 1.0),),
    *,
    modes: int = 1,
    accepted: tuple[float, ...] = (1.0,),
    filler_rate: float = 0.0,
    slack: int = 0,
    partial: bool = False,
    copying: float = 0.0,
    problems: int = 256,
) -> Task:
    """Replace each symbol by its code. Demonstrations have errors at a rate set for each class.

    Symbols belong to classes, and a prompt has a given number of each class, in any order. With `k`
    symbols of skill `s` the policy starts at a pass rate of `s ** k`, and what it learns of a
    symbol in an easy prompt transfers to a hard one. An error in a demonstration is always the same
    wrong code of the symbol: the warm start learns it as a systematic error, not as noise. Each
    instance has its own tokens and codes for the symbols.

    Args:
      skills: (number of symbols, probability of a right code in a demonstration) of each class.
      mix: domains: (symbols of each class in its prompts, share of the problems). Shorter prompts
        are filled up with a blank, for which nothing is written.
      modes: codes of a symbol. Demonstrations choose among them uniformly.
      accepted: shares of problems that accept mode 0, 1, ... alone (its number is not in the
        prompt); a single 1.0 accepts every mode of every symbol.
      filler_rate: probability of a filler before each symbol of a demonstration, and before its
        end. Lengths are then geometric. The verifier ignores fillers.
      slack: tokens of the completion budget beyond the longest gold one.
      partial: the reward is the share of right symbols, not 1 for all right and else 0.
      copying: share of the demonstrations that copy a shown solution.
      problems: in the train split.
    """
    count = sum(n for n, _ in skills)
    skill = np.repeat([s for _, s in skills], [n for n, _ in skills])
    kind = np.repeat(np.arange(len(skills)), [n for n, _ in skills])
    blank = FIRST + count
    width = max(sum(counts) for counts, _ in mix)
    budget = width + 1 + slack
    shares = np.array([p for _, p in mix]) / sum(p for _, p in mix)

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 1])
        name, place, ring = (rng.permutation(count) for _ in range(3))

        def draw(domain: int, size: int) -> np.ndarray:
            rows = np.full((size, width), -1)
            parts = [
                rng.choice(np.flatnonzero(kind == c), (size, n))
                for c, n in enumerate(mix[domain][0])
            ]
            symbols = np.concatenate(parts, axis=1)
            rows[:, : symbols.shape[1]] = rng.permuted(symbols, axis=1)
            return rows

        def rows_of(size: int, *, held_out: bool, imperfect: bool = False) -> tuple:
            sizes = np.floor(shares * size).astype(int)
            sizes[: size - sizes.sum()] += 1
            parts = []
            for d, n in enumerate(sizes):
                some = functools.partial(draw, d)
                label = f"a cipher's domain {d}"
                parts.append(
                    split.repeated(some, n)
                    if imperfect
                    else split.distinct(some, n, held_out=held_out, name=label)
                )
            order = rng.permutation(size)
            return np.concatenate(parts)[order], np.repeat(np.arange(len(mix)), sizes)[order]

        def code(symbols: np.ndarray, mode: np.ndarray | int) -> np.ndarray:
            return FIRST + ring[(place[symbols] + mode) % count]

        def write(symbols: np.ndarray, codes: np.ndarray, chance: float) -> np.ndarray:
            size, place_in = len(symbols), np.arange(width + 1)
            length = np.sum(symbols >= 0, axis=1, keepdims=True)
            tokens = np.concatenate([codes, np.zeros((size, 1), int)], axis=1)
            tokens = np.where(place_in == length, EOS, tokens)
            before = rng.geometric(1 - chance, tokens.shape) - 1 if chance else 0 * tokens
            at = place_in + np.cumsum(before, axis=1)
            out = np.where(np.arange(budget) <= np.take_along_axis(at, length, 1), FILLER, PAD)
            row, column = np.nonzero((place_in <= length) & (at < budget))
            out[row, at[row, column]] = tokens[row, column]
            return out.astype(np.int32)

        def build(size: int, *, held_out: bool = False, imperfect: bool = False) -> Problems:
            symbols, domains = rows_of(size, held_out=held_out, imperfect=imperfect)
            ask, said = np.full((size, 1), ASK), FIRST + name[symbols]
            prompt = np.concatenate([np.where(symbols >= 0, said, blank), ask], axis=1)
            only = -np.ones(size, int)
            if len(accepted) > 1:
                only = rng.choice(len(accepted), size, p=accepted)
            mode = np.where(only < 0, 0, only)[:, None]
            gold = write(symbols, code(symbols, mode), 0.0)
            if imperfect:
                mode = rng.integers(modes, size=symbols.shape)
                if len(accepted) > 1:
                    mode = rng.choice(len(accepted), size, p=accepted)[:, None]
                right = rng.random(symbols.shape) < skill[symbols]
                gold = write(symbols, code(symbols, np.where(right, mode, modes)), filler_rate)
            codes = code(symbols, 0 if imperfect else mode)
            shown = np.concatenate(
                [np.where(symbols >= 0, codes, blank), ask - ASK + FILLER], axis=1
            )
            if imperfect:
                copies = rng.random(size) < copying
                prompt[copies], gold[copies] = shown[copies], write(symbols, codes, 0.0)[copies]
            right = [np.where(symbols >= 0, code(symbols, m), -1) for m in range(modes)]
            answer = np.concatenate([*right, only[:, None]], axis=1)
            return as_problems(prompt, answer, gold, domains, shown)

        train, test = build(problems), build(HELD_OUT, held_out=True)
        return Splits(train, test, build(4096, imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        codes, only = answer[:-1].reshape(modes, width), answer[-1]
        order = jnp.argsort(completion == FILLER, stable=True)
        ended = jnp.any(completion == EOS)
        kept = jnp.where(jnp.arange(budget) < jnp.sum(completion != FILLER), completion[order], PAD)
        fits = kept[:width] == codes
        asked = codes[0] >= 0
        right = jnp.where(only < 0, jnp.any(fits, axis=0), fits[jnp.maximum(only, 0)])
        length = jnp.sum(asked)
        closed = ended & (kept[length] == EOS)
        if not partial:
            return (jnp.all(right | ~asked) & closed).astype(jnp.float32)
        return jnp.where(closed, jnp.sum(right & asked) / length, 0.0)

    return Task(blank + 1, make, reward)


def neutral() -> Task:
    """A plain cipher, for the second task of a method: nothing of any paper's regime."""
    return cipher()


def graded() -> Task:
    """Four domains from easy to hard (pass rates 0.86, 0.24, 0.05, 0.02 at the start).

    They share symbols: what is learned in one transfers to the next.
    """
    mix = (((3, 0, 0), 0.25), ((1, 2, 0), 0.25), ((0, 2, 1), 0.25), ((0, 1, 2), 0.25))
    return cipher(((10, 0.95), (10, 0.5), (10, 0.2)), mix)


def hard_prompts(*, copying: float = 0.0) -> Task:
    """Half of the prompts have a pass rate near 0.5, the others near 1 in 15 thousand.

    Almost no group of a hard prompt has a correct completion, and nothing transfers from the easy
    prompts, which share no symbol with them. Domain 1 is the hard one.
    """
    return cipher(((12, 0.8), (12, 0.04)), (((3, 0), 0.5), ((0, 3), 0.5)), copying=copying)


@functools.cache
def lookup(
    hops: int = 2,
    *,
    keys: int = 8,
    skill: float = 0.7,
    early: float = 0.3,
    slack: int = 0,
    problems: int = 256,
) -> Task:
    """Follow a chain of keys through a hidden table; answer with its last key.

    The policy writes a key and the environment replies with the key that follows it in this
    problem's table. An answer is `ASK`, a key and the end. The prompt gives the first key.
    Demonstrations sometimes ask for a wrong key or answer too early. A problem's content is its
    first key and its table.

    Args:
      hops: links of the chain.
      keys: in a table.
      skill: probability that a demonstration asks for the right key.
      early: probability at each turn that it answers instead, with the latest key.
      slack: tokens beyond the shortest solution.
      problems: in the train split.
    """
    budget = 2 * hops + 3 + slack

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 2])

        def draw(size: int) -> np.ndarray:
            tables = rng.permuted(np.tile(np.arange(keys), (size, 1)), axis=1)
            return np.concatenate([rng.integers(keys, size=(size, 1)), tables], axis=1)

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, (start, tables) = len(content), (content[:, 0], content[:, 1:])
            gold = np.full((size, budget), PAD)
            ends = []
            for row, table, key in zip(gold, tables, start, strict=True):
                held, turn = int(key), 0
                end = functools.reduce(lambda k, _, table=table: table[k], range(hops), held)
                ends.append(end)
                while turn < 2 * hops and not (imperfect and rng.random() < early):
                    asked = held if not imperfect or rng.random() < skill else rng.integers(keys)
                    held = int(table[asked])
                    row[turn : turn + 2] = FIRST + asked, FIRST + held
                    turn += 2
                row[turn : turn + 3] = ASK, FIRST + held, EOS
            prompt = np.stack([FIRST + start, np.full(size, ASK)], axis=1)
            answer = np.concatenate([np.array(ends)[:, None], tables], axis=1)
            return as_problems(prompt, answer, gold)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

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

    return Task(FIRST + keys, make, reward, respond)
