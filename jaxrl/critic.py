"""PPO's critic: a decoder with a value head, trained beside the policy on the same packed rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl import optimizer
from jaxrl.config import CriticConfig
from jaxrl.train_step import Update, micro_states, spread
from jaxrl.types import Packed, Params, TrainState, Trajectory
from losses import advantages, returns
from losses import value as loss
from losses.aggregate import masked_mean
from models import lora, value
from models.config import DecoderConfig
from models.remat import Remat


@struct.dataclass
class Critic:
    """What a run carries of its critic."""

    params: Params
    """`decoder`, shaped as the policy less its output head, and `value`, the head."""
    opt_state: Any


def begun(
    config: CriticConfig, model: DecoderConfig, updates: int, state: TrainState
) -> TrainState:
    """A state at step 0 of a run of so many updates, with a critic where the run has one.

    It is a copy of the policy's decoder, with a head that expects the same of every state.
    """
    if not config.use:
        return state
    optimize = optimizer.make(config.optimizer, updates, model)
    decoder = {name: leaf for name, leaf in lora.fold(state.params).items() if name != "head"}
    params = {
        "decoder": jax.tree.map(jnp.copy, decoder),
        "value": value.init(config.head, model.hidden_size),
    }
    return state.replace(critic=Critic(params, optimize.init(params)))


def make_values(config: CriticConfig, model: DecoderConfig) -> Callable[..., jax.Array]:
    """A jitted `(params, packed) -> values [N, T]` of the states that actions are chosen in."""

    @jax.jit
    def values(params: Params, packed: Packed) -> jax.Array:
        def body(index: jax.Array, total: jax.Array) -> jax.Array:
            out, mask = _outputs(model, params, packed, index, "none")
            return total + jnp.where(mask, value.values(config.head, out), 0.0)

        zero = jnp.zeros(packed.gather.shape, jnp.float32)
        return jax.lax.fori_loop(0, packed.micro_batches, body, zero)

    return values


def estimate(
    config: CriticConfig,
    batch: Trajectory,
    values: jax.Array,
    ref_logp: jax.Array | None,
    kl_coef: jax.Array | None = None,
) -> Trajectory:
    """The batch with generalised advantages, returns and the values that they were made with.

    Args:
      config: of the critic.
      batch: N sequences; the reward of one stands on its last action.
      values: [N, T], from `make_values`.
      ref_logp: [N, T], for a penalty on the reward; None where there is none.
      kl_coef: its weight, where a controller moves it; None: the config's.
    """
    weight = config.kl_coef if kl_coef is None else kl_coef
    given = {"discount": config.discount, "mixing": config.mixing, "kl_coef": weight}
    made, target = _estimate(batch, values, ref_logp, whiten=config.whiten, **given)
    return batch.replace(advantages=made, returns=target, values=values)


@functools.partial(jax.jit, static_argnames="whiten")
def _estimate(
    batch: Trajectory,
    values: jax.Array,
    ref_logp: jax.Array | None,
    *,
    discount: float,
    mixing: float,
    kl_coef: float | jax.Array,
    whiten: bool,
) -> tuple[jax.Array, jax.Array]:
    mask = batch.action_mask & batch.valid[:, None]
    kl = None if ref_logp is None else batch.behavior_logp - ref_logp
    rewards = returns.token_rewards(batch.rewards, mask=mask, kl=kl, beta=kl_coef)
    made, target = returns.gae(rewards, values, mask=mask, discount=discount, mixing=mixing)
    return (advantages.whiten(made, mask=mask) if whiten else made), target


def beside(
    policy_update: Update, config: CriticConfig, model: DecoderConfig, updates: int, remat: Remat
) -> Update:
    """The policy's update, and where there is a critic one of the critic on the same batch.

    Metrics of the critic: `value_loss`, and `explained_variance`, of the returns by the values that
    they were made with.
    """
    if not config.use:
        return policy_update
    optimize = optimizer.make(config.optimizer, updates, model)
    critic_update = _make_update(config, model, optimize, remat)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        state, metrics = policy_update(state, batch, packed, ref_logp)
        state, more = critic_update(state, batch, packed)
        return state, metrics | more

    return update


def _make_update(
    config: CriticConfig, model: DecoderConfig, optimize: optax.GradientTransformation, remat: Remat
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """`(state, batch, packed) -> (state, metrics)`."""

    def update(
        state: TrainState, batch: Trajectory, packed: Packed
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        whole = batch.action_mask & batch.valid[:, None] & (packed.gather >= 0)
        tokens = jnp.maximum(jnp.sum(whole), 1)

        def share(params: Params, index: jax.Array) -> jax.Array:
            out, mask = _outputs(model, params, packed, index, remat)
            return masked_mean(losses(config, out, batch), mask & whole, tokens)

        def accumulate(index: jax.Array, carry: tuple[jax.Array, Params]) -> Any:
            return jax.tree.map(jnp.add, carry, jax.value_and_grad(share)(critic.params, index))

        critic = state.critic
        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, critic.params))
        value_loss, grads = jax.lax.fori_loop(0, packed.micro_batches, accumulate, zeros)
        finite = jnp.isfinite(optax.global_norm(grads))
        updates, opt_state = optimize.update(grads, critic.opt_state, critic.params)
        proposed = Critic(optax.apply_updates(critic.params, updates), opt_state)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, critic)
        left = _variance(batch.returns - batch.values, whole) / _variance(batch.returns, whole)
        metrics = {"value_loss": value_loss, "explained_variance": 1.0 - left}
        return state.replace(critic=kept), metrics

    return update


def losses(config: CriticConfig, out: jax.Array, batch: Trajectory) -> jax.Array:
    """[N, T] of what the head said, [N, T, bins], to the returns of a batch from `estimate`."""
    if config.head.bins > 1:
        target = loss.hl_gauss(batch.returns, value.support(config.head))
        return loss.categorical_loss(out, target)
    if config.clip:
        return loss.clipped_value(out[..., 0], batch.values, batch.returns, clip=config.clip)[0]
    return loss.squared_error(out[..., 0], batch.returns)


def _outputs(
    model: DecoderConfig, params: Params, packed: Packed, index: jax.Array, remat: Remat
) -> tuple[jax.Array, jax.Array]:
    states = micro_states(model, params["decoder"], packed, index, remat)
    out = value.outputs(params["value"], states)
    return spread(packed, index, out.reshape(-1, out.shape[-1]))


def _variance(x: jax.Array, mask: jax.Array) -> jax.Array:
    mean = masked_mean(x, mask)
    return masked_mean(jnp.square(x - mean), mask) + 1e-8
