"""The tasks that a method is measured on: that of its regime, and others where it can be had."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Sampled
from experiments.lab.effect import Effect
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems, neutral

WRONG = 0.1
"""Share of wrong verdicts on the hostile task."""
SUMS_WARM_STEPS = 500
"""Supervised steps after which a policy writes half of the sums right."""


def variants(effect: Effect) -> dict[str, Effect]:
    """Name of a task -> the experiment on it.

    `regime` is the paper's. `neutral` is a plain cipher with the verifier's rewards, where pass@k
    and `distinct` are pass@1; a method that shares prompts out among domains has as many there,
    between which nothing differs. A method has none if it is about certain domains, chunks or
    lengths, if rewards or figures of its own need its task, or if the experiment says that it does
    nothing elsewhere (`Effect.own_task`). A method that is compared on the real model, or was once
    chosen for it, also has `carries`, sums whose demonstrations forget carries, and `hostile`, the
    neutral task with wrong verdicts. The tasks of `Effect.elsewhere` follow. `Effect.further` is
    compared in the regime alone.
    """
    own = {name: dataclasses.replace(e, further={}) for name, e in effect.elsewhere.items()}
    out, plain = {"regime": effect}, _anywhere(effect)
    if plain is None:
        return out | own
    statistic = plain.statistic.partition("/")[0]
    if statistic.startswith("pass@") or statistic == "distinct":
        statistic = "pass@1"  # with more samples all arms solve all problems there
    plain = dataclasses.replace(plain, further={})
    count = len(plain.method.weights)
    task = dealt(count) if count else neutral()
    out["neutral"] = dataclasses.replace(plain, task=task, statistic=statistic)
    if effect.on_real_model:
        out["carries"] = dataclasses.replace(
            out["neutral"], task=sums(), warm_steps=SUMS_WARM_STEPS
        )
        doubtful = {
            name: dataclasses.replace(getattr(effect, name), rewards=wrong_verdicts)
            for name in ("method", "ablation")
        }
        out["hostile"] = dataclasses.replace(out["neutral"], **doubtful)
    return out | own


def _anywhere(effect: Effect) -> Effect | None:
    """The experiment without its regime's rewards; None if it can be done on its own task alone.

    Rewards in units of their history stay, as the method is what becomes of them.
    """
    method, ablation = effect.method, effect.ablation
    phases = [arm.at(start) for arm in (method, ablation) for start, _ in arm.stages or ((0, {}),)]
    about = any(len({*p.weights}) > 1 or p.chunks.size or p.max_new_tokens for p in phases)
    if about or effect.own_task:
        return None
    own = method.rewards is not None and method.rewards != ablation.rewards
    if (own or effect.measure) and not effect.portable:
        return None
    if own or method.renormalise or ablation.rewards is None or method.rewards is None:
        return effect
    verified = [dataclasses.replace(each, rewards=None) for each in (method, ablation)]
    return dataclasses.replace(effect, method=verified[0], ablation=verified[1])


@functools.cache
def dealt(domains: int) -> Task:
    """The neutral task, its problems dealt out to domains in turn: none differs from another."""
    plain = neutral()

    def make(seed: int) -> Splits:
        own = plain.make(seed)
        each = [np.arange(len(p.domain), dtype=np.int32) % domains for p in own]
        return Splits(*(p._replace(domain=d) for p, d in zip(own, each, strict=True)))

    return dataclasses.replace(plain, make=make)


def wrong_verdicts(batch: Sampled, share: float = WRONG) -> jax.Array:
    """The verifier's rewards [N], each turned around with probability `share`."""
    wrong = jax.random.bernoulli(batch.key, share, batch.rewards.shape)
    return jnp.where(wrong, 1.0 - batch.rewards, batch.rewards)


@functools.cache
def sums(base: int = 6, digits: int = 2, slips: float = 0.5, problems: int = 256) -> Task:
    """Add two numbers, lowest digit first. Demonstrations forget carries.

    The prompt shows the digits of both numbers in pairs. The completion is the digits of the sum,
    one more than a number has, and the end. An instance has its own token for each digit. A
    held-out sum may be one of training with its operands or columns swapped.

    Args:
      base: of the numbers.
      digits: of each number.
      slips: probability that a demonstration forgets a carry.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 3])
        token = FIRST + rng.permutation(base)

        def draw(size: int) -> np.ndarray:
            return rng.integers(base, size=(size, 2 * digits))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, carry, columns = len(content), np.zeros(len(content), int), []
            for pair in content.reshape(size, digits, 2).transpose(1, 0, 2):
                total = pair.sum(axis=1) + carry
                columns.append(total % base)
                carry = total // base
                if imperfect:
                    carry = np.where(rng.random(size) < slips, 0, carry)
            answer = token[np.stack([*columns, carry], axis=1)]
            prompt = np.concatenate([token[content], np.full((size, 1), ASK)], axis=1)
            return as_problems(
                prompt, answer, np.concatenate([answer, np.full((size, 1), EOS)], axis=1)
            )

        train = build(split.distinct(draw, problems, held_out=False, name="sums"))
        test = build(split.distinct(draw, HELD_OUT, held_out=True, name="sums"))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        wanted = jnp.append(answer, EOS)
        return jnp.all(completion[: len(wanted)] == wanted).astype(jnp.float32)

    return Task(FIRST + base, make, reward)
