"""A moving average of the parameters: steadier to evaluate, and a reference that follows."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.run.extension import Context, Extension, Provides
from jaxrl.training.optimizer import in_float32
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, Params, TrainState, Trajectory


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """An exponential moving average of the parameters that are trained."""

    decay: float = 0.99
    """Weight of the old average at each update, from 0 to below 1."""
    evaluate: bool = True
    """Whether evaluations measure the average."""
    reference: bool = False
    """Whether the average is the reference policy."""


def average(settings: AverageConfig) -> Extension:
    """After each update, `average <- decay * average + (1 - decay) * params`."""

    def check(config: Config) -> None:
        if not 0 <= settings.decay < 1:
            raise ValueError(f"average.decay={settings.decay}: use 0 to below 1")

    def init(ctx: Context, state: TrainState) -> TrainState:
        trained = ctx.part.split(state.params)[0]
        copy = jax.tree.map(lambda x: jnp.array(x, jnp.float32), trained)
        return state.with_extra(average=copy)

    def update(ctx: Context, inner: Update) -> Update:
        def both(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            state, metrics = inner(state, batch, packed, ref_logp)
            moved = jax.tree.map(
                lambda old, new: settings.decay * old + (1.0 - settings.decay) * new,
                state.extra["average"],
                in_float32(ctx.part.split(state.params)[0]),
            )
            return state.with_extra(average=moved), metrics

        return both

    def params(ctx: Context, state: TrainState) -> Params:
        return ctx.part.join(state.extra["average"], ctx.part.split(state.params)[1])

    provides = Provides()
    if settings.evaluate:
        provides["eval_params"] = params
    if settings.reference:
        provides["reference"] = params
    return Extension(check=check, init=init, update=update, provides=provides)
