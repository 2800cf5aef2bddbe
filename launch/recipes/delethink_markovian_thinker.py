"""Delethink: think in chunks, and carry over only the end of the last into the next.

Paper: Aghajohari et al. 2025, "The Markovian Thinker"
Idea: a chain of thought is its own context, so its cost grows with its square. Begin the context
anew every so many tokens with the question and the last few of them. RL teaches the policy to write
down what it must not forget, cost is linear, memory constant, and thinking may go on for longer at
test time than it did in training.
Formula: chunk k sees `q` and the last m tokens of chunk k - 1 and adds `C - m`; one advantage for
all tokens of all chunks, each under its own chunk's context
Claim: with chunks of 8K, a 1.5B model thinks up to 24K and is as good as or better than RL on whole
contexts; it goes on improving beyond that at test time, where the other stays where it was.
Reading: `m = C / 2` (recalled), tokens weigh alike. `jaxrl eval` thinks in chunks too, in more of
them with a larger `--max-new-tokens`. The ablation has one context.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.chunks import WHOLE, Chunks
from jaxrl.config import Config, RolloutConfig
from launch.lab import Effect, Problems, Task, arm
from launch.lab.tasks import ASK, EOS, FILLER, FIRST, PAD
from launch.recipes import quickstart

SYMBOLS, TRAINED, LONGEST = 8, 4, 8
CHUNKS = Chunks(size=6, carry=2)


def config() -> Config:
    """Sums of five digits, worked out: the end of the work is all that matters."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="delethink_markovian_thinker",
        task_args={"digits": 1, "terms": 5, "operators": "+", "worked": True, "slips": 0.65},
        rollout=RolloutConfig(
            prompts=48,
            group_size=8,
            max_prompt_tokens=16,
            max_new_tokens=48,
            chunks=Chunks(size=16, carry=10),
        ),
    )


def walk() -> Task:
    """From a symbol, go on by its code so many times, saying each and how many are left.

    Training asks for up to 4 steps and the test for 5 to 8. The pupil knows the way from anywhere,
    but never saw more of it at once than a chunk holds.
    """
    rng = np.random.default_rng(0)
    skill = np.where(np.arange(SYMBOLS) < SYMBOLS // 2, 0.9, 0.5)
    count = FIRST + SYMBOLS

    def make(size: int, low: int, high: int, *, pupil: bool) -> Problems:
        gold = np.full((size, 2 * LONGEST + 2), PAD)
        prompt = np.full((size, 5), FILLER)
        symbol, steps = rng.integers(SYMBOLS, size=size), rng.integers(low, high + 1, size=size)
        for n in range(size):
            now, written = symbol[n], []
            for left in range(steps[n])[::-1]:
                known = not pupil or rng.random() < skill[now]
                now = (now + (1 if known else 2)) % SYMBOLS
                written += [FIRST + now, count + left]
            asked = [FIRST + symbol[n], count + steps[n], ASK]
            if pupil:  # from somewhere on, as much as a chunk holds
                start = 2 * rng.integers(steps[n]) * rng.integers(2)
                asked += written[max(start - CHUNKS.carry, 0) : start]
                written = [*written[start:], EOS][: CHUNKS.size - min(start, CHUNKS.carry)]
            else:
                written.append(EOS)
            prompt[n, 5 - len(asked) :] = asked
            gold[n, : len(written)] = written
        answer = np.stack([symbol, steps], axis=1)
        fields = (prompt, answer, gold, np.zeros(size), prompt)
        return Problems(*(a.astype(np.int32) for a in fields))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        symbol, steps = answer
        place = jnp.arange(len(completion))
        step = place // 2 + 1
        said = jnp.where(place % 2 == 0, FIRST + (symbol + step) % SYMBOLS, count + steps - step)
        wanted = jnp.where(step <= steps, said, jnp.where(place == 2 * steps, EOS, PAD))
        return jnp.all(completion == wanted).astype(jnp.float32)

    return Task(
        vocabulary=count + LONGEST + 1,
        train=make(256, 1, TRAINED, pupil=False),
        test=make(64, TRAINED + 1, LONGEST, pupil=False),
        reward=reward,
        pupil=make(4096, 1, LONGEST, pupil=True),
    )


def effect() -> Effect:
    """Chunks against whole contexts, on problems that take longer than any of training."""
    method = arm(config(), steps=80, max_new_tokens=2 * TRAINED + 2, chunks=CHUNKS)
    return Effect(
        claim="thinking in chunks goes on where training stopped",
        task=walk(),
        method=method,
        ablation=dataclasses.replace(method, chunks=WHOLE),
    )
