"""PPO's critic: a decoder with a value head, trained beside the policy on the same packed rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.losses import value as loss
from jaxrl.losses.advantages import batch_advantages, returns
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.mesh import mesh
from jaxrl.models import lora, value
from jaxrl.models.config import DecoderConfig
from jaxrl.models.remat import Remat
from jaxrl.models.value import ValueConfig
from jaxrl.rollout import tasks
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import objective, optimizer
from jaxrl.training.logprobs import micro_states, places, spread
from jaxrl.training.objective import gather_actions
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, Params, TrainState, Trajectory


@struct.dataclass
class Critic:
    """What a run carries of its critic."""

    params: Params
    """What is trained: `value`, the head, and `decoder`, shaped as the policy less its output head;
    where the policy trains adapters, adapters of the critic's own on the same frozen parameters."""
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """A value function whose advantages take the place of a group's (PPO)."""

    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
    head: ValueConfig = ValueConfig()
    """Scalar; with more bins, a distribution trained by cross-entropy to HL-Gauss targets."""
    discount: float = 1.0
    """gamma, from one token to the next."""
    mixing: float = 0.95
    """lambda of the generalised advantage estimate."""
    credit: Literal["gae", "turn_gae", "bilevel_gae"] = "gae"
    """How advantages are estimated, see `jaxrl.losses.advantages.returns`: `gae` from the reward
    at the end of a response; of episodes, `turn_gae` or `bilevel_gae` from the rewards of their
    turns."""
    turn_discount: float = 1.0
    """gamma from one turn to the next, with `bilevel_gae`."""
    turn_mixing: float = 0.95
    """lambda from one turn to the next, with `bilevel_gae`."""
    bootstrap: bool = True
    """Whether a response that its budget cut off is worth, beyond its reward, the value of the
    state after its last token; otherwise that state is worth 0, as after a response that ended."""
    kl_coef: float = 0.0
    """Weight of a penalty on each token's reward: the log-ratio to the reference."""
    clip: float = 0.2
    """How far a scalar value may move in one update; 0 does not clip."""
    whiten: bool = True
    """Advantages of a batch have mean 0 and deviation 1."""


def critic(settings: CriticConfig) -> Extension:
    """A decoder with a value head, trained on the same batches; it starts as a copy of the policy.

    Where the policy trains adapters, the critic has adapters of its own on the same frozen decoder.

    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"
    """
    values: Callable[..., jax.Array] | None = None

    def check(config: Config) -> None:
        if settings.credit != "gae":
            asked_by = f"critic.credit={settings.credit!r}"
            tasks.require_turns(config, asked_by, of_all=False, or_else=", or credit gae")
        tasks.require_one_agent(config, "the extension critic")

    def init(ctx: Context, state: TrainState) -> TrainState:
        model = ctx.policy.model
        adapters, base = lora.detach(state.params)
        copied = adapters or {name: leaf for name, leaf in base.items() if name != "head"}
        params = {
            "decoder": jax.tree.map(lambda x: jnp.array(x, jnp.float32), copied),
            "value": value.init(settings.head, model.hidden_size),
        }
        optimize = optimizer.make(settings.optimizer, ctx.updates, model)
        return state.with_extra(critic=Critic(params, optimize.init(params)))

    def prepare(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
        nonlocal values
        values = values or make_values(settings, ctx.policy.model)
        params = whole(state.params, state.extra["critic"].params)
        ref_logp = last = None

        def packed(rows: Trajectory) -> Packed:
            return placement.pack(rows, ctx.config, batch.trained)[0]

        if settings.kl_coef:
            ref_logp = ctx.score(ctx.reference(state), packed(batch))
        if settings.bootstrap:
            token_values = mesh.fetch(values(params, packed(with_last_states(batch))))
            token_values, last = token_values[:, :-1], last_values(batch, token_values)
        else:
            token_values = values(params, packed(batch))
        kl_coef = state.coefficients.get("critic_kl_coef")
        shaped = objective.shaped(ctx.config.objective, batch, jax.device_get(state.step))
        estimates = estimate(
            settings, jax.device_get(shaped), token_values, ref_logp, kl_coef, last
        )
        estimates = batch.replace(
            advantages=estimates.advantages, returns=estimates.returns, values=estimates.values
        )
        return mesh.fetch(estimates)

    def update(ctx: Context, inner: Update) -> Update:
        model = ctx.policy.model
        optimize = optimizer.make(settings.optimizer, ctx.updates, model)
        critic_update = _make_update(settings, model, optimize, ctx.config.remat)

        def both(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            state, metrics = inner(state, batch, packed, ref_logp)
            state, critic_metrics = critic_update(state, batch, packed)
            return state, metrics | critic_metrics

        return both

    def shapes(batch: Trajectory) -> Trajectory:
        per_token = batch.behavior_logp
        return batch.replace(advantages=per_token, values=per_token, returns=per_token)

    return Extension(
        check=check,
        init=init,
        prepare=prepare,
        update=update,
        provides={"shapes": shapes, "needs_reference": bool(settings.kl_coef)},
    )


def whole(policy: Params, own: Params) -> Params:
    """The critic's `decoder` and `value`; differentiable in its own parameters.

    Args:
      policy: the policy's parameters, whose frozen part the critic shares under LoRA.
      own: `Critic.params`.
    """
    if not lora.detach(policy)[0]:
        return own
    decoder = lora.replace(policy, own["decoder"])
    return own | {"decoder": {name: leaf for name, leaf in decoder.items() if name != "head"}}


def with_last_states(batch: Trajectory) -> Trajectory:
    """The batch as [N, T + 1], with one action more behind each response that its budget cut off.

    That makes the state after the last token one that an action is chosen in, so that packing keeps
    it and `make_values` gives its value. Values are of no token, so that no support is needed.
    """
    tokens, mask = (np.pad(a, ((0, 0), (0, 1))) for a in (batch.tokens, batch.action_mask))
    cut, after = _cut(batch)
    mask[cut, after[cut]] = True
    extra = dict(batch.extra)
    if "parent" in extra:
        last = np.full((len(tokens), 1), tokens.shape[1] - 2, np.int32)
        extra["parent"] = np.concatenate([extra["parent"], last], axis=1)
    return batch.replace(tokens=tokens, action_mask=mask, support=None, extra=extra)


def last_values(batch: Trajectory, values: np.ndarray) -> np.ndarray:
    """[N]: values of the states after cut responses, 0 after those that ended.

    Args:
      batch: N sequences.
      values: [N, T + 1], of `with_last_states(batch)`.
    """
    cut, after = _cut(batch)
    return np.where(cut, values[np.arange(len(values)), after], 0.0).astype(np.float32)


def _cut(batch: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """[N] which responses were cut off, and [N] the positions after their last actions."""
    mask = np.asarray(batch.action_mask)
    after = mask.shape[1] - np.argmax(mask[:, ::-1], axis=1)
    return ~np.asarray(batch.stopped) & mask.any(axis=1), after


def make_values(config: CriticConfig, model: DecoderConfig) -> Callable[..., jax.Array]:
    """A jitted `(params, packed) -> values [N, T]` of the states that actions are chosen in.

    `params` are from `whole`.
    """

    @jax.jit
    def values(params: Params, packed: Packed) -> jax.Array:
        def body(index: jax.Array, total: jax.Array) -> jax.Array:
            out = _outputs(model, params, packed, index, "none")
            return total + spread(packed, index, value.values(config.head, out))[0]

        zero = jnp.zeros((len(packed.computed), packed.length), jnp.float32)
        return jax.lax.fori_loop(0, packed.micro_batches, body, zero)

    return values


def require_before_critic(config: Config, extension: str) -> None:
    """Refuse an extension that changes a batch after the critic has estimated its advantages.

    Args:
      config: in force.
      extension: name of one of its extensions.

    Raises:
      ValueError: the critic is listed first.
    """
    names = [functions.extension_name(reference) for reference in config.extensions]
    if "critic" in names[: names.index(extension)]:
        raise ValueError(
            f"{extension} after critic: list it first, as the critic estimates the advantages of "
            f"the batch that {extension} makes; in a config file, extensions: {{{extension}: {{}}, "
            "critic: {}}"
        )


def estimate(
    config: CriticConfig,
    batch: Trajectory,
    values: jax.Array,
    ref_logp: jax.Array | None,
    kl_coef: jax.Array | None = None,
    last_value: jax.Array | None = None,
) -> Trajectory:
    """The batch with generalised advantages, returns and the values that they were made with.

    Args:
      config: of the critic.
      batch: N sequences; the reward of one stands on its last action.
      values: [N, T], from `make_values`.
      ref_logp: [N, T], for a penalty on the reward; None where there is none.
      kl_coef: its weight, where a controller moves it; None: the config's.
      last_value: [N], from `last_values`; None: every response has ended.
    """
    weight = config.kl_coef if kl_coef is None else kl_coef
    between = {"discount": config.discount, "mixing": config.mixing}
    if config.credit == "bilevel_gae":
        between |= {"turn_discount": config.turn_discount, "turn_mixing": config.turn_mixing}
    advantages, target = _estimate(
        batch, values, ref_logp, last_value, between, weight,
        credit=config.credit, whiten=config.whiten,
    )  # fmt: skip
    return batch.replace(advantages=advantages, returns=target, values=values)


@functools.partial(jax.jit, static_argnames=("credit", "whiten"))
def _estimate(
    batch: Trajectory,
    values: jax.Array,
    ref_logp: jax.Array | None,
    last_value: jax.Array | None,
    between: dict[str, float],
    kl_coef: float | jax.Array,
    *,
    credit: str,
    whiten: bool,
) -> tuple[jax.Array, jax.Array]:
    # rows that are not trained on, as replayed ones may be, are left out of the whitening
    mask = batch.action_mask & (batch.valid & batch.learned)[:, None]
    kl = None if ref_logp is None else batch.behavior_logp - ref_logp
    function, turns = getattr(returns, credit), ()
    if credit == "gae":
        rewards = returns.token_rewards(batch.rewards, mask=mask, kl=kl, beta=kl_coef)
    else:
        rewards, turns = batch.extra["turn_rewards"], (batch.extra["turn"],)
        rewards = rewards if kl is None else rewards - kl_coef * kl
    advantages, target = function(
        rewards, values, *turns, mask=mask, last_value=last_value, **between
    )
    return (batch_advantages.whiten(advantages, mask=mask) if whiten else advantages), target


def _make_update(
    config: CriticConfig, model: DecoderConfig, optimize: optax.GradientTransformation, remat: Remat
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """`(state, batch, packed) -> (state, metrics)`.

    Metrics: `value_loss`, and `explained_variance`, of the returns by the values that they were
    made with.
    """

    def update(
        state: TrainState, batch: Trajectory, packed: Packed
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        counted = batch.action_mask & batch.valid[:, None] & packed.computed[:, None]
        tokens = jnp.maximum(jnp.sum(counted), 1)

        def share(params: Params, index: jax.Array) -> jax.Array:
            out = _outputs(model, whole(state.params, params), packed, index, remat)[:, None]
            sequence, time = places(packed, index)
            arrays = {"counted": counted, "values": batch.values, "returns": batch.returns}
            arrays = gather_actions(arrays, sequence, time)
            mask = arrays.pop("counted") & (sequence >= 0)[:, None]
            return masked_mean(losses(config, out, **arrays), mask, tokens)

        def accumulate(index: jax.Array, carry: tuple[jax.Array, Params]) -> Any:
            return jax.tree.map(jnp.add, carry, jax.value_and_grad(share)(critic.params, index))

        critic = state.extra["critic"]
        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, critic.params))
        value_loss, grads = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)
        finite = jnp.isfinite(optax.global_norm(grads))
        updates, opt_state = optimize.update(grads, critic.opt_state, critic.params)
        proposed = Critic(optax.apply_updates(critic.params, updates), opt_state)
        new_critic = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, critic)
        left = _variance(batch.returns - batch.values, counted)
        left /= _variance(batch.returns, counted)
        metrics = {"value_loss": value_loss, "explained_variance": 1.0 - left}
        return state.with_extra(critic=new_critic), metrics

    return update


def losses(
    config: CriticConfig, out: jax.Array, *, values: jax.Array, returns: jax.Array
) -> jax.Array:
    """The critic's loss of each action, unreduced.

    Args:
      config: of the critic.
      out: [B, T, bins], of the head in the states that actions are chosen in.
      values: [B, T], of the same states before the update.
      returns: [B, T], from `estimate`.

    Returns:
      [B, T] float32.
    """
    if config.head.bins > 1:
        return loss.categorical_loss(out, loss.hl_gauss(returns, value.support(config.head)))
    if config.clip:
        return loss.clipped_value(out[..., 0], values, returns, clip=config.clip)[0]
    return loss.squared_error(out[..., 0], returns)


def _outputs(
    model: DecoderConfig, params: Params, packed: Packed, index: jax.Array, remat: Remat
) -> jax.Array:
    """[R * A, bins], of the head in the states that the actions of a micro-batch are chosen in."""
    states = micro_states(model, params["decoder"], packed, index, remat)
    out = value.outputs(params["value"], states)
    return out.reshape(-1, out.shape[-1])


def _variance(x: jax.Array, mask: jax.Array) -> jax.Array:
    mean = masked_mean(x, mask)
    return masked_mean(jnp.square(x - mean), mask) + 1e-8
