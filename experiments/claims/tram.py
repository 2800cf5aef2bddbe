"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, held_out, policy
from experiments.lab.skills import domains
from jaxrl.extensions.sharpness import SharpnessConfig, uphill
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

RADIUS = 0.05
"""Of ASAM, in the ablation and in the figure."""


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
    method = arm(recipes.load("tram"), steps=60, weights=(1.0, 0.0))
    return Effect(
        claim="fine-tuned on one domain, a policy is better on another than by a constant radius",
        task=domains(known=True),
        method=method,
        ablation=dataclasses.replace(method, sharpness=SharpnessConfig(radius=RADIUS)),
        measure=flatness,
    ).also("control", task=domains(known=True, marked=1.0))
