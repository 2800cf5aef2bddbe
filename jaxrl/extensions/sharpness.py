"""Sharpness-aware minimisation: the gradient is taken where the parameters have a higher loss.

The parameters are moved along a first gradient, scaled by their own size, and the gradient there
changes the parameters where they were. So an update costs two gradients, and a forward pass or two
more where the radius is a divergence.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jaxrl.config import Config
from jaxrl.extensions.teacher import read_states
from jaxrl.losses.divergence.kl import forward_kl
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.run.extension import Context, Extension
from jaxrl.training.logprobs import all_logprobs
from jaxrl.training.optimizer import in_float32
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, Params, TrainState, Trajectory


@dataclasses.dataclass(frozen=True)
class SharpnessConfig:
    """How far the parameters are moved."""

    radius: float = 0.0
    """Of the ball that the loss is raised in (ASAM). 0: the mean divergence of the policy from what
    it was before its last update (TRAM), in nats."""
    scale: float = 1.0
    """Factor on that divergence."""


def sharpness(settings: SharpnessConfig) -> Extension:
    """Updates take their gradient at parameters that were moved uphill; metric `ascent_radius`.

    Formula: `grad L(theta + eps)`, see `uphill`; `d = mean_t KL(pi_(theta_(n-1)) || pi_(theta_n))`
      over the actions of the batch, with all tokens of the vocabulary
    Paper: Kwon et al. 2021, "ASAM: Adaptive Sharpness-Aware Minimization"; Sherborne et al. 2024,
      "TRAM: Bridging Trust Regions and Sharpness Aware Minimization" (TRAM-theta_(t-1))
    """

    def check(config: Config) -> None:
        if settings.radius < 0 or settings.scale <= 0:
            raise ValueError(
                f"sharpness.radius={settings.radius} with sharpness.scale={settings.scale}: use a "
                "radius of 0 or more and a scale above 0"
            )
        if config.labels and not settings.radius:
            raise ValueError(
                "sharpness.radius=0 compares distributions over tokens, and a reward model has "
                "none; set a radius, such as 0.05"
            )

    def init(ctx: Context, state: TrainState) -> TrainState:
        if settings.radius:
            return state
        copy = jax.tree.map(jnp.copy, ctx.part.split(state.params)[0])
        return state.with_extra(sharpness=copy)

    def update(ctx: Context, inner: Update) -> Update:
        def both(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            before = ctx.part.split(state.params)[0]
            state, metrics = inner(state, batch, packed, ref_logp)
            return state.with_extra(sharpness=before), metrics

        return inner if settings.radius else both

    def ascent(
        ctx: Context, state: TrainState, batch: Trajectory, packed: Packed, grads: Params
    ) -> tuple[Params, dict[str, jax.Array]]:
        trained, frozen = ctx.part.split(state.params)
        radius = jnp.float32(settings.radius)
        if not settings.radius:
            previous = ctx.part.join(state.extra["sharpness"], frozen)
            model = ctx.policy.model
            divergence, _ = all_logprobs(
                model,
                state.params,
                packed.replace(teacher=read_states(model, previous, packed)),
                temperature=1.0,
                reading=lambda logits, theirs, targets: forward_kl(logits, theirs),
            )
            acted = batch.action_mask & batch.learned[:, None] & packed.computed[:, None]
            radius = settings.scale * masked_mean(divergence, acted)
        return uphill(trained, grads, radius), {"ascent_radius": radius}

    return Extension(check=check, init=init, update=update, provides={"ascent": ascent})


def uphill(params: Params, grads: Params, radius: jax.Array) -> Params:
    """Float32 parameters moved uphill, each by its own size, to the edge of a ball.

    Formula: `theta + d theta^2 g / |theta g|`
    Paper: Kwon et al. 2021, "ASAM: Adaptive Sharpness-Aware Minimization"

    Args:
      params: theta.
      grads: g, of the same structure.
      radius: d, scalar.
    """
    params = in_float32(params)
    scaled = jax.tree.map(lambda p, g: jnp.abs(p) * g, params, grads)
    step = radius / (optax.global_norm(scaled) + 1e-12)
    return jax.tree.map(lambda p, g: p + step * p**2 * g, params, grads)
