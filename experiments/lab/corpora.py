"""Texts for pre-training: many that say wrong things at times, and few of a small domain."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import policy, split
from experiments.lab.arms import Arm
from experiments.lab.effect import held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems
from jaxrl.launch.recipes.skills.domain_upsampling import BASE
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

WEB, SMALL = 32, 12
"""Symbols of the web and of the small domain."""
LENGTH = 3
"""Symbols of a prompt."""


@functools.cache
def corpora(*, wrong: float = 0.1, texts: int = 2048, few: int = 64) -> Task:
    """Codes of three symbols. Domain 0 is the web, domain 1 the small one; no symbol is in both.

    Half of the held-out problems are of the web, whose right codes alone count there.
    Demonstrations of the warm start are the first texts of the mixture `BASE`.

    Args:
      wrong: share of the codes in texts of the web that are another one.
      texts: of the web, in the train split.
      few: texts of the small domain there.
    """
    symbols = WEB + SMALL

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 32])
        code = rng.permutation(symbols)

        def draw(size: int, domain: int) -> np.ndarray:
            low, high = ((0, WEB), (WEB, symbols))[domain]
            return rng.integers(low, high, size=(size, LENGTH))

        def build(content: np.ndarray, *, noisy: bool) -> Problems:
            right = code[content]
            slips = (content < WEB) & (rng.random(content.shape) < (wrong if noisy else 0.0))
            said = np.where(slips, rng.integers(symbols, size=content.shape), right)
            end = np.full((len(content), 1), EOS)
            prompt = np.concatenate([FIRST + content, np.full_like(end, ASK)], axis=1)
            gold = np.concatenate([FIRST + said, end], axis=1)
            return as_problems(prompt, FIRST + right, gold, content[:, 0] >= WEB)

        web, small = (functools.partial(draw, domain=domain) for domain in (0, 1))

        def of_both(sizes: tuple[int, int], *, held_out: bool) -> np.ndarray:
            pairs = zip((web, small), sizes, strict=True)
            return np.concatenate([split.distinct(d, n, held_out=held_out) for d, n in pairs])

        train = build(of_both((texts, few), held_out=False), noisy=True)
        half = HELD_OUT // 2
        test = build(of_both((half, half), held_out=True), noisy=False)
        early = [
            split.repeated(d, round(4096 * share))
            for d, share in zip((web, small), BASE, strict=True)
        ]
        return Splits(train, test, build(np.concatenate(early), noisy=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all(completion == jnp.append(answer, EOS)).astype(jnp.float32)

    return Task(FIRST + symbols, make, reward)


def general(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and `web_loss`, nats a token of right texts of the web; [S]."""
    figures = held_out(model, task, arm, params, start, samples=samples)
    texts = np.concatenate([task.test.prompt, task.test.gold], axis=-1)
    loss = _loss(model, task.prompt_length, params, texts, task.test.domain == 0)
    return figures | {"web_loss": np.asarray(loss)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _loss(
    model: DecoderConfig, prompt: int, params: Params, texts: jax.Array, counted: jax.Array
) -> jax.Array:
    """[S] mean loss a token of the counted ones [S, N] of texts [S, N, L]; the prompt is given."""

    def one(params: Params, texts: jax.Array, counted: jax.Array) -> jax.Array:
        logp, _ = policy.logprobs(model, params, texts)
        said = counted[:, None] & (jnp.arange(texts.shape[1]) >= prompt) & (texts > 0)
        return -jnp.sum(jnp.where(said, logp, 0.0)) / jnp.sum(said)

    return jax.lax.map(lambda given: one(*given), (params, texts, counted))
