"""One jitted optimizer update: gradients accumulated over micro-batches, then the step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.losses.router import expert_load
from jaxrl.models.config import DecoderConfig
from jaxrl.models.remat import Remat
from jaxrl.random_streams import UpdateStream
from jaxrl.training import routers
from jaxrl.training.logprobs import (
    Noise,
    Reading,
    Reads,
    Restriction,
    all_logprobs,
    micro_logprobs,
    micro_routing,
    places,
    spread,
    state_logprobs,
)
from jaxrl.training.objective import (
    BatchStatistics,
    ObjectiveConfig,
    gather_actions,
    objective,
    scope,
    whole_batch,
)
from jaxrl.training.optimizer import apply_updates, in_float32
from jaxrl.training.trainable import WHOLE, Part
from jaxrl.types import Packed, Params, TrainState, Trajectory

_SAME = ("lr_scale",)
"""Metrics that are the same in every micro-batch."""

Update = Callable[
    [TrainState, Trajectory, Packed, jax.Array | None], tuple[TrainState, dict[str, jax.Array]]
]

Ascent = Callable[[TrainState, Trajectory, Packed, Params], tuple[Params, dict[str, jax.Array]]]
"""`(state, batch, packed, gradient of the trained part) -> (trained part, metrics)`: where the
gradient of an update is taken, in place of the parameters that it changes."""


def init_state(
    params: Params, optimizer: optax.GradientTransformation, part: Part = WHOLE
) -> TrainState:
    """A state at step 0; the optimizer keeps moments of the trained part, as of float32."""
    trained = in_float32(part.split(params)[0])
    return TrainState(params, optimizer.init(trained), jnp.int32(0))


def make_measure(
    model: DecoderConfig,
    config: ObjectiveConfig,
    *,
    temperature: float,
    max_new_tokens: int,
    restriction: Callable[[TrainState], Restriction | None] = lambda state: None,
    reading: Reading | None = None,
    seed: int = 0,
) -> Callable[..., dict[str, jax.Array]]:
    """A jitted `(state, batch, packed, ref_logp) -> metrics`: those of an update, without one.

    Args:
      model, config, temperature, max_new_tokens, restriction, reading, seed: see `make_update`.
    """

    @jax.jit
    def measure(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> dict[str, jax.Array]:
        statistics = whole_batch(
            config, batch, max_new_tokens, packed.computed[:, None], state.step
        )
        logp, entropy = all_logprobs(
            model,
            state.params,
            packed,
            temperature=temperature,
            restriction=restriction(state),
            reading=reading,
        )
        rest = (ref_logp, state.step, state.coefficients, seed)
        return objective(config, batch, statistics, statistics.mask, logp, entropy, *rest)[1]

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
    reading: Reading | None = None,
    noise: float = 0.0,
    seed: int = 0,
    weights: bool = False,
    router: routers.Terms | None = None,
    ascent: Ascent | None = None,
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
      reading: what takes the place of log-probabilities in the objective; None: nothing does.
      noise: length of the noise on embeddings, see `Noise`; 0: none.
      seed: of that noise, of what the objective draws, if it does, and of stochastic rounding.
      weights: measure `ess`, the effective sample size of the importance weights.
      router: what is done for the routers of a mixture of experts; None: nothing. The metric `loss`
        is without their losses.
      ascent: moves the parameters, by a first gradient, to where the gradient of the update is
        taken; None: it is taken where they are. Other metrics than `grad_norm` are of the first.

    If the gradient is not finite, the update is skipped: only the step counter changes, and the
    metric `skipped` is 1. Where the objective returns `lr_scale`, the optimizer's update is
    multiplied by it, weight decay included, as if the learning rate of this update were.

    Gradients are summed, and an update is computed, in float32; bfloat16 parameters are then
    rounded stochastically.

    An objective of scope `token` is computed on the tokens of each micro-batch. Where a loss looks
    at tokens that may lie in other micro-batches, its gradient in the log-probabilities is taken on
    the whole batch first, after one forward pass more, and each micro-batch carries its part back
    (gradient caching, Gao et al. 2021).
    """
    loss_scope = scope(config)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        is_split = packed.tokens.shape[0] > 1
        needs_batch_gradient = is_split and (
            loss_scope == "batch" or (loss_scope == "sequence" and packed.cut)
        )
        statistics = whole_batch(
            config, batch, max_new_tokens, packed.computed[:, None], state.step
        )
        trained, frozen = part.split(state.params)
        allowed = restriction(state)
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        embedding_noise = (
            Noise(jax.random.fold_in(key, UpdateStream.NOISE.value), noise) if noise else None
        )
        logprob_args: Reads = {
            "temperature": temperature,
            "restriction": allowed,
            "reading": reading,
        }
        if router is not None:
            counted = jnp.any(statistics.mask, axis=1)
            totals = routers.totals(packed, counted)

        def micro_loss(
            logp: jax.Array,
            entropy: jax.Array,
            mask: jax.Array,
            batch: Trajectory,
            statistics: BatchStatistics,
            ref_logp: jax.Array | None,
        ) -> tuple[jax.Array, dict[str, jax.Array]]:
            rest = (ref_logp, state.step, state.coefficients, seed)
            if reading is not None:  # is no log-probability to compare with the sampler's
                batch = batch.replace(behavior_logp=jax.lax.stop_gradient(logp))
            return objective(config, batch, statistics, mask, logp, entropy, *rest, weights=weights)

        def gradients(trained: Params, params: Params) -> tuple[Params, dict[str, jax.Array]]:
            """Of the whole batch, with its metrics; `params` has the frozen part too."""
            load = None
            if router is not None and is_split and router.level == "batch" and router.balance:
                load = _load(model, params, packed, counted, embedding_noise)
            if needs_batch_gradient:
                slopes, batch_metrics = jax.grad(micro_loss, argnums=(0, 1), has_aux=True)(
                    *all_logprobs(model, params, packed, noise=embedding_noise, **logprob_args),
                    statistics.mask,
                    batch,
                    statistics,
                    ref_logp,
                )

            def loss(trained: Params, index: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
                params = part.join(trained, frozen)
                if router is None:
                    logp, entropy = micro_logprobs(
                        model,
                        params,
                        packed,
                        index,
                        remat=remat,
                        noise=embedding_noise,
                        **logprob_args,
                    )
                    return of_actions(logp, entropy, index)
                states, routing = micro_routing(
                    model, params, packed, index, remat, embedding_noise
                )
                logp, entropy = state_logprobs(model, params, packed, index, states, **logprob_args)
                value, metrics = of_actions(logp, entropy, index)
                arguments = (routing, packed, index, counted, totals, load)
                router_loss, router_metrics = routers.share(router, model, *arguments)
                return value + router_loss, metrics | router_metrics

            def of_actions(
                logp: jax.Array, entropy: jax.Array, index: jax.Array
            ) -> tuple[jax.Array, dict[str, jax.Array]]:
                if loss_scope == "token":
                    sequence, time = places(packed, index)
                    action_arrays = gather_actions((batch, statistics, ref_logp), sequence, time)
                    micro_mask = action_arrays[1].mask & (sequence >= 0)[:, None]
                    return micro_loss(logp[:, None], entropy[:, None], micro_mask, *action_arrays)
                logp, entropy, micro_mask = spread(packed, index, logp, entropy, rules=model.rules)
                if needs_batch_gradient:
                    return jnp.vdot(slopes[0], logp) + jnp.vdot(slopes[1], entropy), {}
                return micro_loss(
                    logp, entropy, micro_mask & statistics.mask, batch, statistics, ref_logp
                )

            def gradient(index: jax.Array) -> tuple[Params, dict[str, jax.Array]]:
                grads, metrics = jax.grad(loss, has_aux=True)(trained, index)
                return in_float32(grads), metrics

            def accumulate(index: jax.Array, carry: Any) -> Any:
                grads, metrics = carry
                micro_grads, micro_metrics = gradient(index)
                metrics = {
                    name: (jnp.maximum if name in _SAME or name.endswith("_max") else jnp.add)(
                        metrics[name], value
                    )
                    for name, value in micro_metrics.items()
                }
                return jax.tree.map(jnp.add, grads, micro_grads), metrics

            if not is_split:  # a sum from zero would pass over all gradients twice more
                grads, metrics = gradient(jnp.int32(0))
            else:
                shapes = jax.eval_shape(gradient, jnp.int32(0))
                zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
                grads, metrics = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)
            return grads, effective_share(
                batch_metrics | metrics if needs_batch_gradient else metrics
            )

        grads, metrics = gradients(trained, state.params)
        if ascent is not None:
            moved, ascent_metrics = ascent(state, batch, packed, grads)
            grads, metrics = gradients(moved, part.join(moved, frozen))[0], metrics | ascent_metrics
        norm = optax.global_norm(grads)
        finite = jnp.isfinite(norm)
        values = in_float32(trained)
        updates, opt_state = optimizer.update(grads, state.opt_state, values)
        if "lr_scale" in metrics:
            updates = jax.tree.map(lambda u: u * metrics["lr_scale"].astype(u.dtype), updates)
        rounding = jax.random.fold_in(key, UpdateStream.ROUNDING.value)
        proposed = (apply_updates(trained, updates, rounding), opt_state)
        trained, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), proposed, (trained, state.opt_state)
        )
        metrics |= {
            "grad_norm": norm,
            "skipped": 1.0 - finite,
            "advantage_abs": jnp.mean(jnp.abs(statistics.advantages)),
            **lag(batch, state.step),
        }
        params = part.join(trained, frozen)
        if router is not None:
            received = metrics.pop("router/load")
            metrics["router/busiest"] = routers.busiest(received)
            if router.bias_speed:
                params = routers.steered(params, received * finite, router.bias_speed)
        return state.replace(params=params, opt_state=opt_state, step=state.step + 1), metrics

    return update


def _load(
    model: DecoderConfig,
    params: Params,
    packed: Packed,
    counted: jax.Array,
    noise: Noise | None,
) -> jax.Array:
    """Tokens [L, E] for each expert of a whole batch, as its load-balancing loss counts them."""

    assert model.experts is not None
    num_experts = model.experts.num_experts

    def load_of(index: jax.Array) -> jax.Array:
        _, routing = micro_routing(model, params, packed, index, "none", noise)
        weights = routers.token_weights(packed, index, routers.ends(packed, index, counted))
        chosen = routers.preferred(model, routing)[1]
        return expert_load(chosen, weights, num_experts=num_experts)

    zero = jnp.zeros(jax.eval_shape(load_of, jnp.int32(0)).shape, jnp.float32)
    return jax.lax.fori_loop(0, packed.micro_batches, lambda i, load: load + load_of(i), zero)


def lag(batch: Trajectory, step: jax.Array) -> dict[str, jax.Array]:
    """Updates between the policy that sampled a token and the one that learns from it.

    Mean and maximum over the tokens that the policy chose and learns from; 0 on-policy. Tokens that
    an expert wrote are left out.
    """
    mask = batch.action_mask & batch.learned[:, None]
    if batch.expert is not None:
        mask &= ~batch.expert[:, None]
    age = jnp.where(mask, step - batch.policy_version, 0).astype(jnp.float32)
    return {
        "lag/mean": jnp.sum(age) / jnp.maximum(jnp.sum(mask), 1),
        "lag/max": jnp.max(age),
    }


def effective_share(metrics: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The metrics with `ess` in place of what `objective` gave of `weights`, if it did.

    `ess` is the effective sample size of the importance weights as a share of the tokens,
    `E[w]^2 / E[w^2]`: 1 on-policy, and less the more the weights differ (Kong 1992).
    """
    rest = {k: v for k, v in metrics.items() if k not in ("weight_mean", "weight_square")}
    if len(rest) == len(metrics):
        return rest
    mean, square = metrics["weight_mean"], metrics["weight_square"]
    return rest | {"ess": jnp.where(square > 0, mean**2 / jnp.where(square > 0, square, 1.0), 1.0)}
