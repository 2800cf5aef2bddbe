"""NLPO's mask: the policy chooses among the tokens that an earlier copy of it finds likely."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.losses.policy import mixed
from jaxrl.run.extension import Context, Extension
from jaxrl.sampling.logits import nucleus_of
from jaxrl.training.logprobs import Restriction
from jaxrl.types import TrainState


@dataclasses.dataclass(frozen=True)
class NucleusConfig:
    """Which tokens may be chosen."""

    mass: float = 0.9
    """Probability of the smallest set of the copy's most likely tokens, above 0 and below 1."""
    every: int = 10
    """Steps after which the current policy becomes the copy."""


def nucleus(settings: NucleusConfig) -> Extension:
    """Sampling and the update's log-softmax leave out the tokens outside the copy's nucleus.

    Ratios therefore compare the distributions that were sampled from. Evaluations sample without
    the mask.

    Paper: Ramamurthy et al. 2023, "Is Reinforcement Learning (Not) for Natural Language Processing"
    """

    def check(config: Config) -> None:
        if not 0 < settings.mass < 1 or settings.every < 1:
            raise ValueError(
                f"nucleus.mass={settings.mass} with nucleus.every={settings.every}: use a mass "
                "above 0 and below 1, and a positive number of steps"
            )

    def init(ctx: Context, state: TrainState) -> TrainState:
        copy = jax.tree.map(jnp.copy, ctx.part.split(state.params)[0])
        return state.with_extra(nucleus=copy)

    def after(ctx: Context, state: TrainState, step: int) -> TrainState:
        return state if step % settings.every else init(ctx, state)

    def restriction(ctx: Context, state: TrainState) -> Restriction:
        params = ctx.part.join(state.extra["nucleus"], ctx.part.split(state.params)[1])
        return Restriction(params, masked, nucleus_of, settings.mass)

    return Extension(check=check, init=init, after=after, provides={"restriction": restriction})


def masked(logits: jax.Array, likely: jax.Array, targets: jax.Array, mass: float) -> jax.Array:
    """Logits with -inf outside the nucleus, but at the targets.

    A target was sampled, so it was inside. That it stays keeps it from falling out by rounding, and
    keeps tokens that the policy did not choose, or chose from an older nucleus, at a probability.

    Args:
      logits: [..., V], the policy's.
      likely: [..., V], the logits of the copy.
      targets: [...] int32.
      mass: of the nucleus.
    """
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jnp.where(chosen, logits, mixed.nlpo_logits(logits, likely, top_p=mass))
