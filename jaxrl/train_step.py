"""One optimizer update under one jit: forward and backward over micro-batches, then the step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import mesh
from jaxrl.objective import ObjectiveConfig, objective, whole_batch
from jaxrl.types import Packed, Params, TrainState, Trajectory
from models import decoder, head
from models.config import DecoderConfig
from models.remat import Remat

_LOGIT_TOKENS = 1024
"""Tokens whose logits a device holds at a time."""

Update = Callable[
    [TrainState, Trajectory, Packed, jax.Array | None], tuple[TrainState, dict[str, jax.Array]]
]


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """A state at step 0."""
    return TrainState(params, optimizer.init(params), jnp.int32(0))


def micro_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    *,
    temperature: float,
    remat: Remat,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probabilities of the actions of micro-batch `index`.

    Returns:
      logp, entropy and mask, each [N, T]: zero and False outside this micro-batch.
    """
    tokens, positions, visible_until, predictor, target = (
        jax.lax.dynamic_index_in_dim(a, index, keepdims=False)
        for a in (
            packed.tokens,
            packed.positions,
            packed.visible_until,
            packed.predictor,
            packed.target,
        )
    )
    layout = mesh.layout(model)
    hidden = decoder.hidden(
        model, params, tokens, positions, visible_until, remat=remat, layout=layout
    )
    hidden = mesh.constrain(hidden, "batch", None, None)
    table = decoder.unembedding(params)
    logp, entropy = head.token_logprobs(
        jnp.take_along_axis(hidden, predictor[..., None], axis=1),
        layout.weights({"head" if "head" in params else "embed": table}, "").popitem()[1],
        target,
        softcap=model.logit_softcap,
        process=lambda logits: logits / temperature,
        chunk=_LOGIT_TOKENS * mesh.batch_shards(jax.sharding.get_abstract_mesh()),
    )
    logp, entropy = logp.reshape(-1), entropy.reshape(-1)
    place = packed.gather - index * target.size
    mask = (packed.gather >= 0) & (place >= 0) & (place < target.size)
    place = jnp.where(mask, place, 0)
    return jnp.where(mask, logp[place], 0.0), jnp.where(mask, entropy[place], 0.0), mask


def make_score(model: DecoderConfig, *, temperature: float) -> Callable[..., jax.Array]:
    """A jitted `(params, packed) -> logp [N, T]`, e.g. for the reference policy."""

    @jax.jit
    def score(params: Params, packed: Packed) -> jax.Array:
        def body(index: jax.Array, total: jax.Array) -> jax.Array:
            return (
                total
                + micro_logprobs(
                    model, params, packed, index, temperature=temperature, remat="none"
                )[0]
            )

        start = jnp.zeros(packed.gather.shape, jnp.float32)
        return jax.lax.fori_loop(0, packed.micro_batches, body, start)

    return score


def make_update(
    model: DecoderConfig,
    config: ObjectiveConfig,
    optimizer: optax.GradientTransformation,
    *,
    temperature: float,
    max_new_tokens: int,
    remat: Remat,
) -> Update:
    """The jitted update `(state, batch, packed, ref_logp) -> (state, metrics)`; `state` is donated.

    Args:
      model: the decoder's shape.
      config: the objective.
      optimizer: as from `optimizer.make`.
      temperature: the sampling temperature, which log-probabilities are taken at.
      max_new_tokens: the completion budget, for aggregation modes that divide by it.
      remat: what the backward pass recomputes, see `models.remat`.

    A gradient that is not finite leaves the state as it was, but for the step, and sets the metric
    `skipped`.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def update(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        whole = whole_batch(config, batch, max_new_tokens)

        def loss(params: Params, index: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            logp, entropy, mask = micro_logprobs(
                model, params, packed, index, temperature=temperature, remat=remat
            )
            mask &= whole.mask
            return objective(config, batch, whole, mask, logp, entropy, ref_logp, state.step)

        gradient = jax.grad(loss, has_aux=True)

        def accumulate(index: jax.Array, carry: Any) -> Any:
            grads, metrics = carry
            more, measured = gradient(state.params, index)
            peak = jnp.maximum(metrics["logp_gap_max"], measured["logp_gap_max"])
            metrics = jax.tree.map(jnp.add, metrics, measured) | {"logp_gap_max": peak}
            return jax.tree.map(jnp.add, grads, more), metrics

        shapes = jax.eval_shape(gradient, state.params, jnp.int32(0))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        grads, metrics = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)

        norm = optax.global_norm(grads)
        finite = jnp.isfinite(norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        proposed = (optax.apply_updates(state.params, updates), opt_state)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), proposed, (state.params, state.opt_state)
        )
        metrics |= {
            "grad_norm": norm,
            "skipped": 1.0 - finite,
            "advantage_abs": jnp.mean(jnp.abs(whole.advantages)),
        }
        return TrainState(params, opt_state, state.step + 1), metrics

    return update
