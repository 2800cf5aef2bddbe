"""One optimizer update under one jit: forward and backward over micro-batches, then the step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import mesh, nucleus
from jaxrl.config import NucleusConfig
from jaxrl.nucleus import Nucleus, masked
from jaxrl.objective import ObjectiveConfig, couples, objective, whole_batch
from jaxrl.trainable import WHOLE, Part
from jaxrl.types import Packed, Params, TrainState, Trajectory
from models import decoder, head
from models.config import DecoderConfig
from models.remat import Remat

_LOGIT_TOKENS = 1024
"""Tokens whose logits a device holds at a time."""

Update = Callable[
    [TrainState, Trajectory, Packed, jax.Array | None], tuple[TrainState, dict[str, jax.Array]]
]


def init_state(
    params: Params, optimizer: optax.GradientTransformation, part: Part = WHOLE
) -> TrainState:
    """A state at step 0; the optimizer keeps moments of the trained part."""
    return TrainState(params, optimizer.init(part.split(params)[0]), jnp.int32(0))


def micro_states(
    model: DecoderConfig, params: Params, packed: Packed, index: jax.Array, remat: Remat
) -> jax.Array:
    """States [R, A, D] that the actions of micro-batch `index` are chosen in."""
    tokens, positions, visible_until, predictor = (
        jax.lax.dynamic_index_in_dim(a, index, keepdims=False)
        for a in (packed.tokens, packed.positions, packed.visible_until, packed.predictor)
    )
    layout = mesh.layout(model)
    hidden = decoder.hidden(
        model, params, tokens, positions, visible_until, remat=remat, layout=layout
    )
    hidden = mesh.constrain(hidden, "batch", None, None, rules=model.rules)
    return jnp.take_along_axis(hidden, predictor[..., None], axis=1)


def spread(packed: Packed, index: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Arrays [R * A, ...] of micro-batch `index` as [N, T, ...], zero elsewhere, and its mask."""
    size = packed.target[0].size
    place = packed.gather - index * size
    mask = (packed.gather >= 0) & (place >= 0) & (place < size)
    place = jnp.where(mask, place, 0)

    def lay(x: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x[place], 0.0)

    return *(lay(x) for x in arrays), mask


def micro_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    *,
    temperature: float,
    remat: Remat,
    nucleus: Nucleus | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probabilities of the actions of micro-batch `index`, among what a nucleus holds, if any.

    Returns:
      logp, entropy and mask, each [N, T]: zero and False outside this micro-batch.
    """
    states = micro_states(model, params, packed, index, remat)
    target = jax.lax.dynamic_index_in_dim(packed.target, index, keepdims=False)
    beside = () if nucleus is None else (
        target, micro_states(model, nucleus.params, packed, index, "none")
    )  # fmt: skip

    def unembedding(params: Params) -> jax.Array:
        tables = {name: params[name] for name in ("embed", "head") if name in params}
        return decoder.unembedding(mesh.layout(model).weights(tables, ""))

    def logprobs(
        weights: Sequence[jax.Array], states: jax.Array, target: jax.Array, *beside: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def process(logits: jax.Array, *beside: jax.Array) -> jax.Array:
            if beside:
                chosen, others = beside
                likely = head.logits(others, weights[1], softcap=model.logit_softcap)
                logits = masked(logits, likely, chosen, nucleus.mass)
            return logits / temperature

        return head.token_logprobs(
            states,
            weights[0],
            target,
            softcap=model.logit_softcap,
            process=process,
            beside=beside,
            chunk=_LOGIT_TOKENS,
        )

    weights = [unembedding(p) for p in ([params] if nucleus is None else [params, nucleus.params])]
    logp, entropy = mesh.by_rows(logprobs, rules=model.rules)(weights, states, target, *beside)
    return spread(packed, index, logp.reshape(-1), entropy.reshape(-1))


def make_score(model: DecoderConfig, *, temperature: float) -> Callable[..., jax.Array]:
    """A jitted `(params, packed, nucleus=None) -> logp [N, T]`, e.g. for the reference policy."""

    @jax.jit
    def score(params: Params, packed: Packed, nucleus: Nucleus | None = None) -> jax.Array:
        return all_logprobs(model, params, packed, temperature=temperature, nucleus=nucleus)[0]

    return score


def all_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    *,
    temperature: float,
    nucleus: Nucleus | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of all actions and entropies, each [N, T], without their gradients."""

    def body(index: jax.Array, total: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logp, entropy, _ = micro_logprobs(
            model, params, packed, index, temperature=temperature, remat="none", nucleus=nucleus
        )
        return total[0] + logp, total[1] + entropy

    zero = jnp.zeros(packed.gather.shape, jnp.float32)
    if packed.tokens.shape[0] == 1:
        return body(jnp.int32(0), (zero, zero))
    return jax.lax.fori_loop(0, packed.micro_batches, body, (zero, zero))


def make_update(
    model: DecoderConfig,
    config: ObjectiveConfig,
    optimizer: optax.GradientTransformation,
    *,
    temperature: float,
    max_new_tokens: int,
    remat: Remat,
    part: Part = WHOLE,
    mask: NucleusConfig = NucleusConfig(),
) -> Update:
    """The jitted update `(state, batch, packed, ref_logp) -> (state, metrics)`; `state` is donated.

    Args:
      model: the decoder's shape.
      config: the objective.
      optimizer: as from `optimizer.make`.
      temperature: the sampling temperature, which log-probabilities are taken at.
      max_new_tokens: the completion budget, for aggregation modes that divide by it.
      remat: what the backward pass recomputes, see `models.remat`.
      part: which parameters are trained.
      mask: of the tokens that there are to choose from, where the state holds who says so.

    A gradient that is not finite leaves the state as it was, but for the step, and sets the metric
    `skipped`.

    Where the objective couples sequences that may lie in different micro-batches, its gradient in
    the log-probabilities is taken on the whole batch first, after one forward pass more, and each
    micro-batch carries its part back (gradient caching, Gao et al. 2021).
    """
    coupled = couples(config)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        whole = whole_batch(config, batch, max_new_tokens, packed.gather >= 0, state.step)
        trained, frozen = part.split(state.params)
        allowed = nucleus.of(mask, part, state)

        def loss(trained: Params, index: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            logp, entropy, mask = micro_logprobs(
                model,
                part.join(trained, frozen),
                packed,
                index,
                temperature=temperature,
                remat=remat,
                nucleus=allowed,
            )
            if coupled:
                return jnp.vdot(slopes[0], logp) + jnp.vdot(slopes[1], entropy), {}
            return share(logp, entropy, mask & whole.mask)

        def share(
            logp: jax.Array, entropy: jax.Array, mask: jax.Array
        ) -> tuple[jax.Array, dict[str, jax.Array]]:
            told = (ref_logp, state.step, state.kl_coef)
            return objective(config, batch, whole, mask, logp, entropy, *told)

        if coupled:
            computed = whole.mask & (packed.gather >= 0)
            slopes, measured = jax.grad(share, argnums=(0, 1), has_aux=True)(
                *all_logprobs(
                    model, state.params, packed, temperature=temperature, nucleus=allowed
                ),
                computed,
            )
        gradient = jax.grad(loss, has_aux=True)

        def accumulate(index: jax.Array, carry: Any) -> Any:
            grads, metrics = carry
            more, measured = gradient(trained, index)
            metrics = {
                name: (jnp.maximum if name.endswith("_max") else jnp.add)(metrics[name], value)
                for name, value in measured.items()
            }
            return jax.tree.map(jnp.add, grads, more), metrics

        if packed.tokens.shape[0] == 1:  # a sum from zero would pass over all gradients twice more
            grads, metrics = gradient(trained, jnp.int32(0))
        else:
            shapes = jax.eval_shape(gradient, trained, jnp.int32(0))
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            grads, metrics = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)
        metrics = measured if coupled else metrics

        norm = optax.global_norm(grads)
        finite = jnp.isfinite(norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        proposed = (optax.apply_updates(trained, updates), opt_state)
        trained, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), proposed, (trained, state.opt_state)
        )
        metrics |= {
            "grad_norm": norm,
            "skipped": 1.0 - finite,
            "advantage_abs": jnp.mean(jnp.abs(whole.advantages)),
            **staleness(batch, state.step),
        }
        return state.replace(
            params=part.join(trained, frozen), opt_state=opt_state, step=state.step + 1
        ), metrics

    return update


def staleness(batch: Trajectory, step: jax.Array) -> dict[str, jax.Array]:
    """Updates between the policy that sampled a token and the one that learns from it.

    Mean and maximum over the tokens that the policy chose; 0 on-policy. What an expert wrote has no
    age.
    """
    own = batch.action_mask
    if batch.expert is not None:
        own &= ~batch.expert[:, None]
    age = jnp.where(own, step - batch.policy_version, 0).astype(jnp.float32)
    return {
        "staleness": jnp.sum(age) / jnp.maximum(jnp.sum(own), 1),
        "staleness_max": jnp.max(age),
    }
