"""A controller of the divergence to the reference: its weight follows what is measured."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.train_step import Update
from jaxrl.types import Packed, TrainState, Trajectory
from losses.aggregate import masked_mean

_GIVEN = {"coefficient", "kl"}


def check(config: Config) -> None:
    """Refuse a rule that does not exist, or that has no weight, or two, to move.

    Raises:
      ValueError: naming the field.
    """
    if not config.kl_control.rule:
        return
    functions.resolve(config.kl_control.rule, config.kl_control.args, _GIVEN)
    weights = {
        "objective.kl_coef": config.objective.kl_coef,
        "critic.kl_coef": config.critic.kl_coef if config.critic.use else 0.0,
    }
    if sum(map(bool, weights.values())) != 1:
        told = ", ".join(f"{name}={value}" for name, value in weights.items())
        raise ValueError(
            f"kl_control.rule={config.kl_control.rule!r} with {told}: it moves one weight, which "
            "begins at the value given; set one of the two (the critic's with critic.use)"
        )


def begun(config: Config, state: TrainState) -> TrainState:
    """A state at step 0, with the weight that the controller begins at, where the run has one."""
    if not config.kl_control.rule:
        return state
    return state.replace(kl_coef=jnp.float32(config.objective.kl_coef or config.critic.kl_coef))


def beside(update: Update, config: Config) -> Update:
    """`update`, after which the weight has moved on for the next one.

    The divergence is measured on the tokens sampled, as the mean of `log pi_b - log pi_ref`
    (Ziegler et al. 2019). Metrics: `kl_coef`, the weight of this update, and `kl_sampled`, what was
    measured. A measurement that is not finite leaves the weight.
    """
    if not config.kl_control.rule:
        return update
    rule = functions.resolve(config.kl_control.rule, config.kl_control.args, _GIVEN)

    @functools.partial(jax.jit, donate_argnums=0)
    def both(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        used = state.kl_coef
        state, metrics = update(state, batch, packed, ref_logp)
        mask = batch.action_mask & batch.valid[:, None] & (packed.gather >= 0)
        kl = masked_mean(batch.behavior_logp - ref_logp, mask)
        moved = functions.call(rule, config.kl_control.args, {"coefficient": used, "kl": kl})
        state = state.replace(kl_coef=jnp.where(jnp.isfinite(moved), moved, used))
        return state, metrics | {"kl_coef": used, "kl_sampled": kl}

    return both
