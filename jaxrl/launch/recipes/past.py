"""PaST: what RL changed on one domain is added to a policy that has read another by imitation.

Paper: Tang et al. 2026, "Knowledge is Not Enough: Injecting RL Skills for Continual Adaptation"
Idea: imitation adds knowledge, RL adds skills, and the two change weights in nearly orthogonal
directions. So the difference that RL makes on a source domain is a vector of its skill, and can be
added to a policy that has only imitated texts of a new domain.
Formula: `theta = theta_SFT(target) + lambda (theta_RL(source) - theta_SFT(source))`
Claim: SQuAD rises by up to 9.9 points over imitation of self-edited texts, LooGLE by 8.0, tool use
without examples by 10.3.
Reading: formula recalled; lambda is 1. `config()` is the RL on the source, and `jaxrl merge` with
the method task-arithmetic adds its difference to another run. In the effect, the skill is to mark
an answer as such, which demonstrations of both domains often forget, and the knowledge is codes of
other symbols. The ablation adds nothing. In the control, all demonstrations have the mark.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, held_out
from experiments.lab.skills import domains, read
from jaxrl.config import Config
from jaxrl.launch.recipes import quickstart
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

READING_STEPS = 60


def config() -> Config:
    """The quickstart, whose difference is the skill."""
    return dataclasses.replace(quickstart.config(), recipe="past")


def injected(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`held_out` of the target's reader with the skill added, and `cosine`, of the skill and what
    reading changed; [S]. After the last step alone."""
    if samples == 1:
        return {}
    texts = np.concatenate([task.train.prompt, task.train.gold], axis=-1)
    rows = np.stack([row[d == 1] for row, d in zip(texts, task.train.domain, strict=True)])
    reader = read(model, READING_STEPS, start, rows)
    skill, knowledge = (jax.tree.map(jnp.subtract, p, start) for p in (params, reader))

    def product(a: Params, b: Params) -> jax.Array:
        parts = jax.tree.map(lambda x, y: jnp.sum(x * y, axis=tuple(range(1, x.ndim))), a, b)
        return sum(jax.tree.leaves(parts))

    norms = jnp.sqrt(product(skill, skill) * product(knowledge, knowledge))
    cosine = product(skill, knowledge) / jnp.maximum(norms, 1e-12)
    both = jax.tree.map(jnp.add, reader, skill)
    figures = held_out(model, task, arm, both, start, samples=samples)
    return figures | {"cosine": np.asarray(cosine)}


def effect() -> Effect:
    """The target's reader with the skill of the source, and without."""
    method = arm(config(), steps=60, weights=(1.0, 0.0))
    return Effect(
        claim="a skill that RL has taught on one domain serves another that was only read",
        task=domains(),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        measure=injected,
    ).also("control", task=domains(marked=1.0))
