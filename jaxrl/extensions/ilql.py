"""Implicit Q-learning (ILQL): values of tokens, added to the policy's logits in evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl.config import Config
from jaxrl.losses import value as loss
from jaxrl.losses.advantages import returns
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.mesh import mesh
from jaxrl.models import value
from jaxrl.models.config import DecoderConfig
from jaxrl.models.remat import Remat
from jaxrl.models.value import ValueConfig
from jaxrl.record import checkpoint
from jaxrl.rollout import tasks
from jaxrl.run.extension import Context, Extension
from jaxrl.sampling.logits import Guide, q_guided
from jaxrl.training import optimizer
from jaxrl.training.logprobs import micro_states, places, spread
from jaxrl.training.objective import gather_actions
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, Params, TrainState, Trajectory


@struct.dataclass
class Values:
    """What a run carries of its values."""

    params: Params
    """`decoder`, shaped as the policy less its output head; `q`, heads [H, V, D]; `value`."""
    target: Params
    """A moving average of `decoder` and `q`."""
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class IlqlConfig:
    """How values are trained, and how much they steer."""

    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-4)
    targets: Literal["td", "returns"] = "td"
    """What Q is regressed on: `td`, the reward and the next state's V, with two heads of which the
    smaller counts; or `returns`, what was earned from there on, with one head and no V."""
    discount: float = 0.99
    """gamma, from one action token to the next."""
    tau: float = 0.7
    """Expectile of V: 1/2 is the mean of Q over the actions in the data, towards 1 its maximum."""
    conservatism: float = 0.0
    """Weight of the term that pushes down actions that are not in the data (CQL)."""
    rate: float = 0.005
    """Share of the new parameters in the moving average of each update."""
    beta: float = 8.0
    """What Q is multiplied by where it is added to the logits; 0: the policy alone."""


def ilql(settings: IlqlConfig) -> Extension:
    """Q and V of tokens by a decoder of their own; evaluations sample from `pi exp(beta Q)`.

    V is constant over the next tokens, so adding `beta (Q - V)` to logits is adding `beta Q`. The
    slow copy of Q steers. An episode that its budget cut off counts as ended. `jaxrl eval RUN` has
    the policy alone; with `--search`, values choose among its turns.

    Paper: Snell et al. 2023, "Offline RL for Natural Language Generation with Implicit Language Q
    Learning"; with `returns`, the Monte-Carlo baseline of Abdulhai et al. 2023, "LMRL Gym"
    """

    def check(config: Config) -> None:
        tasks.require_turns(config, "ilql")
        tasks.require_one_agent(config, "the extension ilql")
        if config.lora.rank:
            raise ValueError(
                f"ilql with lora.rank={config.lora.rank}: values train a decoder of their own; set "
                "it to 0"
            )

    def init(ctx: Context, state: TrainState) -> TrainState:
        model = ctx.policy.model
        slow = {
            "decoder": {name: leaf for name, leaf in state.params.items() if name != "head"},
            "q": jnp.zeros((_heads(settings), model.vocab_size, model.hidden_size)),
        }
        slow = jax.tree.map(lambda x: jnp.array(x, jnp.float32), slow)
        params = jax.tree.map(jnp.copy, slow)
        params["value"] = value.init(ValueConfig(), model.hidden_size)
        optimize = optimizer.make(settings.optimizer, ctx.updates, model)
        return state.with_extra(ilql=Values(params, slow, optimize.init(params)))

    def update(ctx: Context, inner: Update) -> Update:
        model = ctx.policy.model
        optimize = optimizer.make(settings.optimizer, ctx.updates, model)
        value_update = make_update(settings, model, optimize, ctx.config.remat)

        def both(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            state, metrics = inner(state, batch, packed, ref_logp)
            values, value_metrics = value_update(state.extra["ilql"], batch, packed)
            return state.with_extra(ilql=values), metrics | value_metrics

        return both

    def steering(
        ctx: Context, state: TrainState, to_sampler: Callable[[Params], Params]
    ) -> Guide | None:
        if not settings.beta:
            return None
        slow = state.extra["ilql"].target
        q_models = tuple(to_sampler(slow["decoder"] | {"head": head}) for head in slow["q"])
        model = dataclasses.replace(ctx.policy.model, logit_softcap=None)
        beta = jnp.float32(settings.beta)
        return Guide(q_guided, beta, (model,) * len(q_models), q_models)

    return Extension(check=check, init=init, update=update, provides={"steering": steering})


def saved(directory: Path, settings: IlqlConfig, model: DecoderConfig, policy: Params) -> Params:
    """`decoder` and `q`, the slow copy, of a run's newest checkpoint, laid out on the mesh.

    Args:
      directory: of the run.
      settings: of its extension.
      model: of its policy.
      policy: the parameters of the policy.

    Raises:
      FileNotFoundError: the run holds no checkpoint.
      ValueError: the checkpoint has no such values.
    """
    everywhere = mesh.replicated(jax.sharding.get_mesh())

    def shape(sizes: tuple[int, ...], sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding)

    decoder_params = {name: leaf for name, leaf in policy.items() if name != "head"}
    heads = (_heads(settings), model.vocab_size, model.hidden_size)
    like = {
        "decoder": jax.tree.map(lambda x: shape(x.shape, x.sharding), decoder_params),
        "q": shape(heads, everywhere),
    }
    return checkpoint.restore_extra(directory, "ilql", {"target": like})["target"]


def _heads(settings: IlqlConfig) -> int:
    return 2 if settings.targets == "td" else 1


def make_update(
    settings: IlqlConfig,
    model: DecoderConfig,
    optimize: optax.GradientTransformation,
    remat: Remat,
) -> Callable[[Values, Trajectory, Packed], tuple[Values, dict[str, jax.Array]]]:
    """`(values, batch, packed) -> (values, metrics)`.

    Metrics: `value_loss`, of Q and V together, and `q_mean`, of the actions in the data.
    """

    def update(
        own: Values, batch: Trajectory, packed: Packed
    ) -> tuple[Values, dict[str, jax.Array]]:
        mask = batch.action_mask & batch.valid[:, None]
        counted = mask & packed.computed[:, None]
        tokens = jnp.maximum(jnp.sum(counted), 1)

        def known(index: jax.Array, total: tuple[jax.Array, jax.Array]) -> Any:
            q, _ = outputs(model, own.target, packed, index, "none")
            _, v = outputs(model, own.params, packed, index, "none")
            lowest = jnp.min(of_actions(q, packed.target[index].reshape(-1)), axis=0)
            *estimates, _ = spread(packed, index, lowest, v)
            return jax.tree.map(jnp.add, total, tuple(estimates))

        zero = jnp.zeros((len(packed.computed), packed.length), jnp.float32)
        expected, v = jax.lax.fori_loop(0, packed.micro_batches, known, (zero, zero))
        backed = targets(settings, batch.extra["turn_rewards"], v, mask=mask)

        def share(params: Params, index: jax.Array) -> tuple[jax.Array, jax.Array]:
            q, v = outputs(model, params, packed, index, remat)
            sequence, time = places(packed, index)
            arrays = {"counted": counted, "backed": backed, "expected": expected}
            arrays = {k: x[:, 0] for k, x in gather_actions(arrays, sequence, time).items()}
            valid = arrays.pop("counted") & (sequence >= 0)
            actions = packed.target[index].reshape(-1)
            action_losses = losses(settings, q, v, actions, **arrays)
            mean = masked_mean(jnp.mean(of_actions(q, actions), axis=0), valid, tokens)
            return masked_mean(action_losses, valid, tokens), mean

        def accumulate(index: jax.Array, carry: Any) -> Any:
            slopes = jax.value_and_grad(share, has_aux=True)(own.params, index)
            return jax.tree.map(jnp.add, carry, slopes)

        scalar = jnp.float32(0)
        zeros = ((scalar, scalar), jax.tree.map(jnp.zeros_like, own.params))
        (total, mean), grads = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)
        finite = jnp.isfinite(optax.global_norm(grads))
        updates, opt_state = optimize.update(grads, own.opt_state, own.params)
        params = optax.apply_updates(own.params, updates)
        fast = {name: params[name] for name in own.target}
        target = optax.incremental_update(fast, own.target, settings.rate)
        proposed = Values(params, target, opt_state)
        new_values = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, own)
        return new_values, {"value_loss": total, "q_mean": mean}

    return update


def outputs(
    model: DecoderConfig, params: Params, packed: Packed, index: jax.Array, remat: Remat
) -> tuple[jax.Array, jax.Array | None]:
    """Q [H, S, V] of all next tokens and V [S], in the states that the S actions of a micro-batch
    are chosen in; None for V where `params` has none."""
    states = micro_states(model, params["decoder"], packed, index, remat)
    states = states.reshape(-1, states.shape[-1]).astype(jnp.float32)
    q = jnp.einsum("sd,hvd->hsv", states, params["q"], precision=jax.lax.Precision.HIGHEST)
    return q, value.outputs(params["value"], states)[..., 0] if "value" in params else None


def of_actions(q: jax.Array, actions: jax.Array) -> jax.Array:
    """[H, S]: of Q [H, S, V], that of the actions [S]."""
    return jnp.take_along_axis(q, actions[None, :, None], axis=-1)[..., 0]


def targets(
    settings: IlqlConfig, rewards: jax.Array, v: jax.Array, *, mask: jax.Array
) -> jax.Array:
    """What Q is regressed on, [N, T].

    Args:
      settings: of the extension.
      rewards: [N, T], of a turn at its last token.
      v: [N, T], in the state before each token.
      mask: [N, T] bool, the action tokens.
    """
    bootstrapped = settings.targets == "td"
    base = v if bootstrapped else jnp.zeros_like(v)
    mixing = 0.0 if bootstrapped else 1.0
    return returns.gae(rewards, base, mask=mask, discount=settings.discount, mixing=mixing)[1]


def losses(
    settings: IlqlConfig,
    q: jax.Array,
    v: jax.Array,
    actions: jax.Array,
    *,
    backed: jax.Array,
    expected: jax.Array,
) -> jax.Array:
    """The loss of each action, [S], unreduced, as in the authors' code.

    `sum_h (Q_h(a) - y)^2 / 2 + c sum_h (log sum exp Q_h - Q_h(a)) + |tau - 1[u < 0]| u^2 / 2`, with
    `u = min_h Qbar_h(a) - V`; without its last term where Q is regressed on returns.

    Args:
      settings: of the extension.
      q: [H, S, V].
      v: [S].
      actions: [S] int32.
      backed: [S], y, from `targets`.
      expected: [S], the slow copy's `min_h Qbar_h(a)`.
    """
    every = jnp.broadcast_to(actions, q.shape[:-1])
    head_losses = loss.squared_error(of_actions(q, actions), backed)
    head_losses += settings.conservatism * loss.cql_term(q, every)
    total = jnp.sum(head_losses, axis=0)
    if settings.targets == "returns":
        return total
    return total + 0.5 * loss.expectile_loss(v, expected, tau=settings.tau)
