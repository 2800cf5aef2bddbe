"""One jitted optimizer update: gradients accumulated over micro-batches, then the step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl.mesh import layouts, mesh
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.models.remat import Remat
from jaxrl.sampling.logits import Guide, Processor, keep
from jaxrl.training.objective import (
    ObjectiveConfig,
    Whole,
    at_actions,
    effective_share,
    objective,
    scope,
    whole_batch,
)
from jaxrl.training.trainable import WHOLE, Part
from jaxrl.types import Packed, Params, TrainState, Trajectory

_LOGIT_TOKENS = 1024
"""Tokens whose logits a device holds at a time."""

_SAME = ("lr_scale",)
"""Metrics that are the same in every micro-batch."""

Update = Callable[
    [TrainState, Trajectory, Packed, jax.Array | None], tuple[TrainState, dict[str, jax.Array]]
]


@struct.dataclass
class Restriction:
    """Tokens that the policy may choose among, by what another policy finds likely."""

    params: Params
    """Of the other policy."""
    mask: Callable[..., jax.Array] = struct.field(pytree_node=False)
    """`(logits, the other's logits, targets, args) -> logits`, -inf outside, in training."""
    process: Processor = struct.field(pytree_node=False)
    """The same in sampling, see `jaxrl.sampling.logits`."""
    args: Any = struct.field(pytree_node=False, default=())
    """Of both."""


def guide_of(
    model: DecoderConfig,
    restriction: Restriction | None,
    to_sampler: Callable[[Params], Params],
) -> Guide:
    """The guide that applies a restriction in the sampler.

    Args:
      model: the decoder's shape.
      restriction: of the state; None: the sampler is not steered.
      to_sampler: parameters to the form that the sampler reads.
    """
    if restriction is None:
        return Guide(keep)
    params = to_sampler(restriction.params)
    return Guide(restriction.process, restriction.args, (model,), (params,))


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
    layout = layouts.layout(model)
    hidden = decoder.hidden(
        model, params, tokens, positions, visible_until, remat=remat, layout=layout
    )
    hidden = mesh.constrain(hidden, "batch", None, None, rules=model.rules)
    return jnp.take_along_axis(hidden, predictor[..., None], axis=1)


def places(packed: Packed, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sequence and time of the actions of micro-batch `index`, [R * A] each; -1 where none is."""
    sequence, time = (
        jax.lax.dynamic_index_in_dim(a, index, keepdims=False).reshape(-1)
        for a in (packed.sequence, packed.time)
    )
    return sequence, time


def spread(
    packed: Packed, index: jax.Array, *arrays: jax.Array, rules: mesh.Rules = ()
) -> tuple[jax.Array, ...]:
    """Arrays [R * A, ...] of micro-batch `index` as [N, T, ...], zero elsewhere, and its mask.

    On a mesh they are split over N, where that divides.
    """
    sequence, time = places(packed, index)
    count = len(packed.computed)
    row = jnp.where(sequence < 0, count, sequence)  # beyond the array: dropped

    def lay(x: jax.Array) -> jax.Array:
        zeros = jnp.zeros((count, packed.length, *x.shape[1:]), x.dtype)
        laid = zeros.at[row, time].add(x, mode="drop")
        return mesh.constrain(laid, "batch", *[None] * (laid.ndim - 1), rules=rules)

    return *(lay(x) for x in arrays), lay(jnp.ones_like(row)) > 0


def micro_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    index: jax.Array,
    *,
    temperature: float,
    remat: Remat,
    restriction: Restriction | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of the actions of micro-batch `index`, among the tokens of a restriction,
    if any.

    Returns:
      logp and entropy, each [R * A].
    """
    states = micro_states(model, params, packed, index, remat)
    target = jax.lax.dynamic_index_in_dim(packed.target, index, keepdims=False)
    beside = () if restriction is None else (
        target, micro_states(model, restriction.params, packed, index, "none")
    )  # fmt: skip

    def unembedding(params: Params) -> jax.Array:
        tables = {name: params[name] for name in ("embed", "head") if name in params}
        return decoder.unembedding(layouts.layout(model).weights(tables, ""))

    def logprobs(
        weights: Sequence[jax.Array], states: jax.Array, target: jax.Array, *beside: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def process(logits: jax.Array, *beside: jax.Array) -> jax.Array:
            if beside:
                chosen, others = beside
                likely = head.logits(others, weights[1], softcap=model.logit_softcap)
                logits = restriction.mask(logits, likely, chosen, restriction.args)
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

    readers = [params] if restriction is None else [params, restriction.params]
    weights = [unembedding(p) for p in readers]
    logp, entropy = layouts.by_rows(logprobs, rules=model.rules)(weights, states, target, *beside)
    return logp.reshape(-1), entropy.reshape(-1)


def make_score(model: DecoderConfig, *, temperature: float) -> Callable[..., jax.Array]:
    """A jitted `(params, packed, restriction=None) -> logp [N, T]`, e.g. for the reference
    policy."""

    @jax.jit
    def score(params: Params, packed: Packed, restriction: Restriction | None = None) -> jax.Array:
        return all_logprobs(
            model, params, packed, temperature=temperature, restriction=restriction
        )[0]

    return score


def all_logprobs(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    *,
    temperature: float,
    restriction: Restriction | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of all actions and entropies, each [N, T], without their gradients."""

    def body(index: jax.Array, total: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        scored = micro_logprobs(
            model,
            params,
            packed,
            index,
            temperature=temperature,
            remat="none",
            restriction=restriction,
        )
        logp, entropy, _ = spread(packed, index, *scored, rules=model.rules)
        return total[0] + logp, total[1] + entropy

    zero = jnp.zeros((len(packed.computed), packed.length), jnp.float32)
    zero = mesh.constrain(zero, "batch", None, rules=model.rules)
    if packed.tokens.shape[0] == 1:
        return body(jnp.int32(0), (zero, zero))
    return jax.lax.fori_loop(0, packed.micro_batches, body, (zero, zero))


def make_measure(
    model: DecoderConfig,
    config: ObjectiveConfig,
    *,
    temperature: float,
    max_new_tokens: int,
    restriction: Callable[[TrainState], Restriction | None] = lambda state: None,
    seed: int = 0,
) -> Callable[..., dict[str, jax.Array]]:
    """A jitted `(state, batch, packed, ref_logp) -> metrics`: those of an update, without one.

    Args:
      model, config, temperature, max_new_tokens, restriction, seed: see `make_update`.
    """

    @jax.jit
    def measure(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> dict[str, jax.Array]:
        whole = whole_batch(config, batch, max_new_tokens, packed.computed[:, None], state.step)
        logp, entropy = all_logprobs(
            model,
            state.params,
            packed,
            temperature=temperature,
            restriction=restriction(state),
        )
        told = (ref_logp, state.step, state.coefficients, seed)
        return objective(config, batch, whole, whole.mask, logp, entropy, *told)[1]

    return measure


def make_update(
    model: DecoderConfig,
    config: ObjectiveConfig,
    optimizer: optax.GradientTransformation,
    *,
    temperature: float,
    max_new_tokens: int,
    remat: Remat,
    part: Part = WHOLE,
    restriction: Callable[[TrainState], Restriction | None] = lambda state: None,
    seed: int = 0,
    weights: bool = False,
) -> Update:
    """The jitted update `(state, batch, packed, ref_logp) -> (state, metrics)`; `state` is donated.

    Args:
      model: the decoder's shape.
      config: the objective.
      optimizer: as from `optimizer.make`.
      temperature: the sampling temperature, which log-probabilities are taken at.
      max_new_tokens: the completion budget, for aggregation modes that divide by it.
      remat: what the backward pass recomputes, see `jaxrl.models.remat`.
      part: which parameters are trained.
      restriction: which tokens there are to choose from in a state; None: all.
      seed: of what the objective draws, if it does.
      weights: measure `ess`, the effective sample size of the importance weights.

    A gradient that is not finite leaves the state as it was, but for the step, and sets the metric
    `skipped`. Where the objective returns `lr_scale`, the optimizer's update is multiplied by it,
    weight decay included, as if the learning rate of this update were.

    An objective of scope `token` is computed on the tokens of each micro-batch. Where a loss looks
    at tokens that may lie in other micro-batches, its gradient in the log-probabilities is taken on
    the whole batch first, after one forward pass more, and each micro-batch carries its part back
    (gradient caching, Gao et al. 2021).
    """
    looks = scope(config)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        several = packed.tokens.shape[0] > 1
        coupled = several and (looks == "batch" or (looks == "sequence" and packed.cut))
        whole = whole_batch(config, batch, max_new_tokens, packed.computed[:, None], state.step)
        trained, frozen = part.split(state.params)
        allowed = restriction(state)

        def loss(trained: Params, index: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            logp, entropy = micro_logprobs(
                model,
                part.join(trained, frozen),
                packed,
                index,
                temperature=temperature,
                remat=remat,
                restriction=allowed,
            )
            if looks == "token":
                sequence, time = places(packed, index)
                own = at_actions((batch, whole, ref_logp), sequence, time)
                here = own[1].mask & (sequence >= 0)[:, None]
                return share(logp[:, None], entropy[:, None], here, *own)
            logp, entropy, here = spread(packed, index, logp, entropy, rules=model.rules)
            if coupled:
                return jnp.vdot(slopes[0], logp) + jnp.vdot(slopes[1], entropy), {}
            return share(logp, entropy, here & whole.mask, batch, whole, ref_logp)

        def share(
            logp: jax.Array,
            entropy: jax.Array,
            mask: jax.Array,
            batch: Trajectory,
            whole: Whole,
            ref_logp: jax.Array | None,
        ) -> tuple[jax.Array, dict[str, jax.Array]]:
            told = (ref_logp, state.step, state.coefficients, seed)
            return objective(config, batch, whole, mask, logp, entropy, *told, weights=weights)

        if coupled:
            slopes, measured = jax.grad(share, argnums=(0, 1), has_aux=True)(
                *all_logprobs(
                    model, state.params, packed, temperature=temperature, restriction=allowed
                ),
                whole.mask,
                batch,
                whole,
                ref_logp,
            )
        gradient = jax.grad(loss, has_aux=True)

        def accumulate(index: jax.Array, carry: Any) -> Any:
            grads, metrics = carry
            more, measured = gradient(trained, index)
            metrics = {
                name: (jnp.maximum if name in _SAME or name.endswith("_max") else jnp.add)(
                    metrics[name], value
                )
                for name, value in measured.items()
            }
            return jax.tree.map(jnp.add, grads, more), metrics

        if not several:  # a sum from zero would pass over all gradients twice more
            grads, metrics = gradient(trained, jnp.int32(0))
        else:
            shapes = jax.eval_shape(gradient, trained, jnp.int32(0))
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            grads, metrics = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)
        metrics = effective_share(measured if coupled else metrics)

        norm = optax.global_norm(grads)
        finite = jnp.isfinite(norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        if "lr_scale" in metrics:
            updates = jax.tree.map(lambda u: u * metrics["lr_scale"].astype(u.dtype), updates)
        proposed = (optax.apply_updates(trained, updates), opt_state)
        trained, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), proposed, (trained, state.opt_state)
        )
        metrics |= {
            "grad_norm": norm,
            "skipped": 1.0 - finite,
            "advantage_abs": jnp.mean(jnp.abs(whole.advantages)),
            **lag(batch, state.step),
        }
        return state.replace(
            params=part.join(trained, frozen), opt_state=opt_state, step=state.step + 1
        ), metrics

    return update


def lag(batch: Trajectory, step: jax.Array) -> dict[str, jax.Array]:
    """Updates between the policy that sampled a token and the one that learns from it.

    Mean and maximum over the tokens that the policy chose; 0 on-policy. What an expert wrote has no
    age.
    """
    own = batch.action_mask
    if batch.expert is not None:
        own &= ~batch.expert[:, None]
    age = jnp.where(own, step - batch.policy_version, 0).astype(jnp.float32)
    return {
        "lag/mean": jnp.sum(age) / jnp.maximum(jnp.sum(own), 1),
        "lag/max": jnp.max(age),
    }
