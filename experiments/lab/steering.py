"""How probable right answers are, exactly: of a policy, and of a large model that others steer."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.policy import all_logprobs
from experiments.lab.tasks import Task
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling.logits import Context, proxy_tuning
from jaxrl.types import Params


def _chance(task: Task, tokens: jax.Array, scores: jax.Array) -> jax.Array:
    """How probable right answers are on average, of the logits of all tokens but the last."""
    first = task.prompt_length
    logp = jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[:, 1:, None], axis=-1)
    own = jnp.where(tokens[:, first:] > 0, logp[:, first - 1 :, 0], 0.0)
    return jnp.mean(jnp.exp(jnp.sum(own, axis=1)))


def _every(task: Task) -> np.ndarray:
    return np.concatenate([task.test.prompt, task.test.gold], axis=-1)


@functools.cache
def alone(model: DecoderConfig, task: Task) -> Callable[[Params], jax.Array]:
    """`policies -> [S]`: how probable right answers to the test problems are."""

    def one(params: Params, tokens: jax.Array) -> jax.Array:
        return _chance(task, tokens, all_logprobs(model, params, tokens[:, :-1]))

    scored, every = jax.jit(jax.vmap(one)), _every(task)
    return lambda params: scored(params, every)


@functools.cache
def steered(
    model: DecoderConfig, large: DecoderConfig, task: Task, strength: float
) -> Callable[..., dict[str, jax.Array]]:
    """`(large models, small ones after RL, and before) -> figures [S]`: `pass@1` of the large model
    that the small ones steer, and of the `small` one itself."""

    def one(
        large_params: Params, tuned: Params, untuned: Params, tokens: jax.Array
    ) -> dict[str, jax.Array]:
        base = all_logprobs(large, large_params, tokens[:, :-1])
        small = tuple(all_logprobs(model, p, tokens[:, :-1]) for p in (tuned, untuned))
        context = Context(base, tokens, jnp.zeros(len(tokens), jnp.int32), small)
        return {
            "pass@1": _chance(task, tokens, proxy_tuning(base, context, strength)),
            "small": _chance(task, tokens, small[0]),
        }

    scored, every = jax.jit(jax.vmap(one)), _every(task)
    return lambda *policies: scored(*policies, every)
