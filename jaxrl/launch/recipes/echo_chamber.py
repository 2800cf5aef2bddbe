"""Echo chamber: of the formats that pre-training has shown, RL leaves one.

Paper: Zhao et al. 2025, "Echo Chamber: RL Post-training Amplifies Behaviors Learned in Pretraining"
Idea: pre-train on a known mixture of formats, do RL, and count formats as it goes on. RL does not
mix them: it raises one, and answers in the others vanish, for expert iteration, PPO and GRPO alike.
Formula: expert iteration `-1[r = 1] log pi(y)`; the share of the commonest format among right
answers
Claim: RL converges to one format of pre-training, which one depends on scale; pass@1 rises and
diversity falls.
Reading: expert iteration is the method and GRPO a baseline, as the claim is of both. Two formats
write every symbol in one of two codes, seven demonstrations in ten in the first; the verifier takes
either. The ablation is the policy as pre-training left it. In the task `even formats`, the
demonstrations have both equally often.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, attempts, cipher
from jaxrl.config import Config
from jaxrl.launch.recipes import quickstart
from jaxrl.models.config import DecoderConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Params

MIXTURE = (0.7, 0.3)


def config() -> Config:
    """The quickstart with expert iteration."""
    objective = ObjectiveConfig(policy="expert_iteration")
    return dataclasses.replace(quickstart.config(), recipe="echo_chamber", objective=objective)


@functools.cache
def two_formats(mixture: tuple[float, float] = MIXTURE) -> Task:
    """A cipher whose demonstrations keep to one of two codes, and whose verifier takes both."""
    task = cipher(((12, 0.8), (8, 0.4)), (((2, 1), 1.0),), modes=2, accepted=mixture)

    def either(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return task.reward(jnp.asarray(answer).at[-1].set(-1), completion)

    return dataclasses.replace(task, reward=either)


def formats(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`dominance`, the share of the commonest format among right answers, and `pass@1`; [S].

    Right answers that mix the formats are of neither. With several samples also `pass@8`.
    """
    written, rewards = attempts(model, task, arm, params, samples=samples)
    codes = task.test.answer[..., :-1].reshape(*task.test.answer.shape[:-1], 2, -1)
    said = written.tokens[..., None, : codes.shape[-1]]
    right = (rewards == 1)[..., None] & np.all(said == codes[:, :, None], axis=-1)
    passed = rewards == 1
    count = np.maximum(passed.sum(axis=(1, 2)), 1)
    figures = {
        "dominance": right.sum(axis=(1, 2)).max(axis=-1) / count,
        "pass@1": passed.mean(axis=(1, 2)),
    }
    return figures | ({"pass@8": passed.any(axis=2).mean(axis=1)} if samples > 1 else {})


def effect() -> Effect:
    """The commonest format after expert iteration, and before it."""
    method = arm(config(), steps=80)
    return Effect(
        claim="RL leaves one of the formats that pre-training has shown",
        task=two_formats(),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        statistic="dominance",
        minimum=0.05,
        measure=formats,
    ).also("even formats", task=two_formats((0.5, 0.5)))
