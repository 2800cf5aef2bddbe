"""A controller of the divergence to the reference: its weight follows what is measured."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.rollout import tasks
from jaxrl.run.extension import Context, Extension
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, TrainState, Trajectory

_GIVEN = {"coefficient", "kl"}


@dataclasses.dataclass(frozen=True)
class KLControlConfig:
    """A controller of the weight of the divergence to the reference."""

    rule: str = "proportional_kl_coefficient"
    """Gives the next weight from the present one and the measured divergence."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, such as the target in nats a token."""


def kl_control(settings: KLControlConfig) -> Extension:
    """The weight of the divergence is moved after each update.

    The divergence is measured on the tokens sampled, as the mean of `log pi_b - log pi_ref`
    (Ziegler et al. 2019). Metrics: `kl_coef`, the weight of this update, and `kl_sampled`, what was
    measured. A measurement that is not finite leaves the weight.
    """

    def check(config: Config) -> None:
        functions.resolve(settings.rule, settings.args, _GIVEN)
        tasks.require_sampling(config, "kl_control")
        weights = _weights(config)
        if sum(map(bool, weights.values())) != 1:
            assignments = ", ".join(f"{name}={value}" for name, value in weights.items())
            raise ValueError(
                f"kl_control.rule={settings.rule!r} with {assignments}: it moves one weight, which "
                "begins at the value given; set one of the two (the critic's with a critic)"
            )

    def init(ctx: Context, state: TrainState) -> TrainState:
        name, weight = _moved(ctx.config)
        return state.with_coefficients(**{name: jnp.float32(weight)})

    def update(ctx: Context, inner: Update) -> Update:
        rule = functions.resolve(settings.rule, settings.args, _GIVEN)
        name, _ = _moved(ctx.config)

        def both(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            used = state.coefficients[name]
            state, metrics = inner(state, batch, packed, ref_logp)
            sampled = batch.valid if batch.expert is None else batch.valid & ~batch.expert
            mask = batch.action_mask & sampled[:, None] & packed.computed[:, None]
            kl = masked_mean(batch.behavior_logp - ref_logp, mask)
            moved = functions.call(rule, settings.args, {"coefficient": used, "kl": kl})
            moved = jnp.where(jnp.isfinite(moved), moved, used)
            return state.with_coefficients(**{name: moved}), metrics | {
                "kl_coef": used,
                "kl_sampled": kl,
            }

        return both

    return Extension(check=check, init=init, update=update)


def _weights(config: Config) -> dict[str, float]:
    critic = config.extensions.get("critic")
    return {
        "objective.kl_coef": config.objective.kl_coef,
        "critic.kl_coef": critic.kl_coef if critic is not None else 0.0,
    }


def _moved(config: Config) -> tuple[str, float]:
    """Name and first value of the coefficient that is moved."""
    weights = _weights(config)
    if weights["objective.kl_coef"]:
        return "kl_coef", weights["objective.kl_coef"]
    return "critic_kl_coef", weights["critic.kl_coef"]
