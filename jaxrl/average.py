"""A moving average of the parameters: steadier to evaluate, slower to move away from."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.config import AverageConfig
from jaxrl.train_step import Update
from jaxrl.trainable import Part
from jaxrl.types import Packed, Params, TrainState, Trajectory


def begun(config: AverageConfig, part: Part, state: TrainState) -> TrainState:
    """A state at step 0, with the average where the run keeps one: the trained part itself."""
    if not config.decay:
        return state
    return state.replace(average=jax.tree.map(jnp.copy, part.split(state.params)[0]))


def beside(update: Update, config: AverageConfig, part: Part) -> Update:
    """`update`, after which the average has moved on: `decay average + (1 - decay) params`."""
    if not config.decay:
        return update

    @functools.partial(jax.jit, donate_argnums=0)
    def both(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        state, metrics = update(state, batch, packed, ref_logp)
        moved = jax.tree.map(
            lambda old, new: config.decay * old + (1.0 - config.decay) * new,
            state.average,
            part.split(state.params)[0],
        )
        return state.replace(average=moved), metrics

    return both


def params(part: Part, state: TrainState) -> Params:
    """The averaged parameters, whole."""
    return part.join(state.average, part.split(state.params)[1])
