"""The sampler's weights are renewed every few steps, and not at every step (KARL)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.config import Config
from jaxrl.mesh import mesh
from jaxrl.run.extension import Context, Extension
from jaxrl.types import Params, TrainState


@struct.dataclass
class Lagged:
    """What a run carries of the policy that samples."""

    params: Params
    """The trained part, as it was."""
    step: jax.Array
    """int32: its version, in optimizer updates."""


@dataclasses.dataclass(frozen=True)
class RenewalConfig:
    """When the sampler's weights are renewed."""

    every: int = 20
    """Steps after which the current policy becomes the one that samples."""


def sampler_refresh(settings: RenewalConfig) -> Extension:
    """The policy that samples is renewed every `every` steps, as where copying weights is costly.

    Tokens are recorded with the version that sampled them, so lags are measured. Evaluations are of
    the current policy. In asynchronous runs the schedule decides which weights sample.

    Paper: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
    """

    def check(config: Config) -> None:
        if settings.every < 1:
            raise ValueError(f"sampler_refresh.every={settings.every}: must be 1 or more")
        if config.asynchronous.staleness is not None:
            raise ValueError(
                f"sampler_refresh with asynchronous.staleness={config.asynchronous.staleness}: "
                "both say how old the sampler's weights may be; leave one of them out"
            )

    def init(ctx: Context, state: TrainState) -> TrainState:
        copy = jax.tree.map(jnp.copy, ctx.part.split(state.params)[0])
        return state.with_extra(sampler_refresh=Lagged(copy, jnp.copy(state.step)))

    def after(ctx: Context, state: TrainState, step: int) -> TrainState:
        return state if step % settings.every else init(ctx, state)

    def samples(ctx: Context, state: TrainState) -> tuple[Params, int]:
        lagged = state.extra["sampler_refresh"]
        params = ctx.part.join(lagged.params, ctx.part.split(state.params)[1])
        return params, int(mesh.fetch(lagged.step))

    return Extension(check=check, init=init, after=after, provides={"sampling_params": samples})
