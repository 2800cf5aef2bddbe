"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Problems, Splits, Task, arm, split
from experiments.lab.policy import logprobs
from experiments.lab.tasks import Verifier, as_problems
from jaxrl.launch import recipes
from jaxrl.launch.recipes.objectives.kl_rl_as_bayesian_inference import BETA, LENGTH, SYMBOLS, WORDS
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params


def score(answer: jax.Array, completion: jax.Array) -> jax.Array:
    """The share of different symbols: many answers are best."""
    return jnp.sum(jnp.any(completion[:, None] == jnp.arange(SYMBOLS), axis=0)) / LENGTH


def alike(answer: jax.Array, completion: jax.Array) -> jax.Array:
    """The share of symbols that are symbol 0: one answer is best."""
    return jnp.mean(completion[:LENGTH] == 0)


@functools.cache
def enumerable(reward: Verifier = score, *, instances: int = 8) -> Task:
    """Any 3 of 6 symbols after two words, the first of which sets the demonstrated distribution."""

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, instances])
        habits = rng.dirichlet(np.ones(SYMBOLS), (WORDS, LENGTH))

        def build(words: np.ndarray) -> Problems:
            edges = habits[words[:, 0]].cumsum(axis=2)
            gold = (rng.random((len(words), LENGTH, 1)) > edges).sum(axis=2)
            prompt = SYMBOLS + words
            return as_problems(prompt, np.zeros((len(words), 1)), np.minimum(gold, SYMBOLS - 1))

        def draw(size: int) -> np.ndarray:
            return rng.integers(WORDS, size=(size, 2))

        train = build(split.distinct(draw, 256, held_out=False))
        test = build(split.distinct(draw, split.HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096)))

    return Task(SYMBOLS + WORDS, make, reward)


def distance(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`kl_to_target`: KL(pi, pi*) in nats, exact for each of 64 held-out prompts; `reward`: the
    expected reward, among the answers of symbols. Both [S]."""
    grids = np.meshgrid(*[np.arange(SYMBOLS)] * LENGTH, indexing="ij")
    answers = np.stack([g.ravel() for g in grids], axis=1)
    rewards = jax.vmap(lambda a: task.reward(a, a))(answers)

    def one(params: Params, start: Params, prompts: jax.Array) -> tuple[jax.Array, jax.Array]:
        def after(prompt: jax.Array) -> tuple[jax.Array, jax.Array]:
            prompts = jnp.broadcast_to(prompt, (len(answers), len(prompt)))
            tokens = jnp.concatenate([prompts, answers], axis=1)
            logp, prior = (
                jax.nn.log_softmax(logprobs(model, p, tokens)[0][:, len(prompt) :].sum(axis=1))
                for p in (params, start)
            )
            target = jax.nn.log_softmax(prior + rewards / BETA)
            p = jnp.exp(logp)
            return jnp.sum(p * (logp - target)), jnp.sum(p * rewards)

        return jax.tree.map(jnp.mean, jax.lax.map(after, prompts))

    far, earned = jax.jit(jax.vmap(one))(params, start, task.test.prompt[:, :64])
    return {"kl_to_target": np.asarray(far), "reward": np.asarray(earned)}


def effect() -> Effect:
    """Exact distance to the posterior, with the KL term and without."""
    method = arm(recipes.load("kl_rl_as_bayesian_inference"), steps=150)
    bare = dataclasses.replace(method.objective, kl_coef=0.0)
    return Effect(
        claim="with its KL term, RL comes to the posterior",
        task=enumerable(),
        method=method,
        ablation=dataclasses.replace(method, objective=bare),
        statistic="kl_to_target",
        better="lower",
        minimum=0.05,
        measure=distance,
    ).also("one best answer", task=enumerable(alike, instances=9))
