"""BLEUBERI: BLEU against a reference as reward; its choice of hard prompts needs an earlier run.

Paper: Chang et al. 2025, "BLEUBERI: BLEU is a surprisingly effective reward for instruction
following"
Idea: with a good reference, plain n-gram overlap ranks responses to an instruction about as
well as a reward model, and costs nothing. Train on the instructions that the base model does worst
by it.
Formula: `r = BLEU(y, y*)`, sentence BLEU with brevity penalty and smoothing
Claim: on par with reward-model-guided RL on four benchmarks and in human eyes, and more factual.
Reading: one reference, sacrebleu with effective order. The hardest prompts are chosen by an
earlier run of the task, `--curriculum.history RUN`; without one, as in the effect, all are trained
on. The effect has one reference for answers that can be said in two ways; its ablation rewards the
reference itself and nothing else.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Effect, Sampled, arm, cipher
from experiments.lab.tasks import EOS
from jaxrl.config import Config, CurriculumConfig, RolloutConfig
from jaxrl.data.rewards import text
from jaxrl.launch.recipes import quickstart
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The quickstart on translations into a made-up language."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="bleuberi",
        task="translation",
        task_args={"metric": "bleu"},
        rollout=RolloutConfig(prompts=48, group_size=8, max_prompt_tokens=256, max_new_tokens=48),
        packing=PackingConfig(micro_batch_tokens=2048, row_length=512),
        curriculum=CurriculumConfig(score="difficulty", keep=512),
    )


def overlap(batch: Sampled) -> jax.Array:
    """BLEU of completions against the reference, tokens being words."""

    def words(row: np.ndarray) -> str:
        return " ".join(str(token) for token in row if token > EOS)

    def score(tokens: np.ndarray, gold: np.ndarray) -> np.ndarray:
        rows = zip(*(np.reshape(a, (-1, a.shape[-1])) for a in (tokens, gold)), strict=True)
        scores = [text.bleu(words(said), words(wanted)) for said, wanted in rows]
        return np.array(scores, np.float32).reshape(tokens.shape[:-1])

    shape = jax.ShapeDtypeStruct(batch.rewards.shape, jnp.float32)
    return jax.pure_callback(
        score, shape, batch.tokens, batch.problems.gold, vmap_method="expand_dims"
    )


def exact(batch: Sampled) -> jax.Array:
    """1 for the reference itself."""
    return jnp.all(batch.tokens == batch.problems.gold, axis=1).astype(jnp.float32)


def effect() -> Effect:
    """Overlap against identity, as a verifier that takes every right answer sees it."""
    method = arm(config(), steps=80, rewards=overlap)
    return Effect(
        claim="overlap with one reference teaches what identity with it cannot",
        task=cipher(((6, 0.8), (6, 0.4)), (((3, 2), 1.0),), modes=2),
        method=method,
        ablation=dataclasses.replace(method, rewards=exact),
        stands_for="translation",
        portable=True,
    )
