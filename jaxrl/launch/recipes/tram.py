"""TRAM by the last step: sharpness-aware fine-tuning whose radius is a divergence of the policy.

Paper: Sherborne et al. 2024, "TRAM: Bridging Trust Regions and Sharpness Aware Minimization"
Idea: sharpness-aware minimisation takes the gradient where the loss is worst within a radius, which
has to be tuned. Let the radius be how far the policy moved in its last update, so that it is large
where the function is curved. What was learned before is then forgotten less.
Formula: `grad L(theta + d theta^2 g / |theta g|)`, `g = grad L(theta)`,
`d = mean KL(pi_(n-1) || pi_n)`
Claim: lower perplexity and higher accuracy on domains that fine-tuning has not seen, than Adam,
SAM, ASAM and penalties of trust regions; flatter minima.
Reading: of the paper's variants, the one by the policy before the last update. The formula is the
paper's; in the authors' code the move is `d theta^2 / |theta g|`, in which the gradient is missing.
What is fine-tuned on are solutions of the task. An update costs two gradients, and steps are equal:
plain fine-tuning has half as many. In the effect, an answer has to be marked, which solutions of
one domain teach; the other domain is held out. `sharpness` is by how much ASAM's move of 0.05
raises the held-out loss. The ablation has that radius throughout. In the control, all
demonstrations have the mark, so that nothing is left to learn of the other domain.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, held_out, policy
from experiments.lab.skills import domains
from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.sharpness import SharpnessConfig, uphill
from jaxrl.launch.recipes import quickstart
from jaxrl.models.config import DecoderConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Params

RADIUS = 0.05
"""Of ASAM, in the ablation and in the figure."""


def config() -> Config:
    """The quickstart's solutions, imitated."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="tram",
        extensions={"guidance": GuidanceConfig("expert_rows"), "sharpness": SharpnessConfig()},
        objective=ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    )


def flatness(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and `sharpness` in nats a token; [S]."""
    figures = held_out(model, task, arm, params, start, samples=samples)
    texts = np.concatenate([task.test.prompt, task.test.gold], axis=-1)
    return figures | {"sharpness": np.asarray(rise(model, task.prompt_length, params, texts))}


@functools.partial(jax.jit, static_argnums=(0, 1))
def rise(model: DecoderConfig, prompt: int, params: Params, tokens: jax.Array) -> jax.Array:
    """[S] by how much the loss on texts [S, N, L] rises under ASAM's move; the prompt is given."""

    def one(params: Params, tokens: jax.Array) -> jax.Array:
        written = (tokens > 0) & (jnp.arange(tokens.shape[1]) >= prompt)

        def loss(params: Params) -> jax.Array:
            logp, _ = policy.logprobs(model, params, tokens)
            return -jnp.sum(jnp.where(written, logp, 0.0)) / jnp.sum(written)

        before, grads = jax.value_and_grad(loss)(params)
        return loss(uphill(params, grads, RADIUS)) - before

    return jax.lax.map(lambda given: one(*given), (params, tokens))


def effect() -> Effect:
    """A radius by the divergence against a constant one, on a domain that was not trained on."""
    method = arm(config(), steps=60, weights=(1.0, 0.0))
    return Effect(
        claim="fine-tuned on one domain, a policy is better on another than by a constant radius",
        task=domains(known=True),
        method=method,
        ablation=dataclasses.replace(method, sharpness=SharpnessConfig(radius=RADIUS)),
        measure=flatness,
    ).also("control", task=domains(known=True, marked=1.0))
