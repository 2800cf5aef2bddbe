"""Where batches and state lie on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxrl import mesh, packing
from jaxrl.config import Config
from jaxrl.train_step import init_state
from jaxrl.types import Packed, Params, TrainState, Trajectory
from models import decoder
from models.config import DecoderConfig


def pack(batch: Trajectory, config: Config) -> tuple[Packed, dict[str, float]]:
    """Packed micro-batches on the mesh, rows split over its batch axes, and what packing cost."""
    the_mesh = jax.sharding.get_mesh()
    packed, cost = packing.pack(batch, config.packing, row_multiple=mesh.batch_shards(the_mesh))
    everywhere, split = mesh.replicated(the_mesh), mesh.rows(the_mesh)
    where = Packed(split, split, split, split, split, everywhere, everywhere)
    return jax.device_put(packed, where), cost


def abstract_state(model: DecoderConfig, optimize: optax.GradientTransformation) -> TrainState:
    """Shapes and shardings of the train state: moments lie where their parameters lie."""
    the_mesh = jax.sharding.get_mesh()
    shapes = jax.eval_shape(lambda p: init_state(p, optimize), decoder.abstract(model)[0])
    where = mesh.param_shardings(model, the_mesh)
    everywhere = mesh.replicated(the_mesh)

    def place(shape: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    opt_state = optax.tree.map_params(
        optimize,
        place,
        shapes.opt_state,
        where,
        transform_non_params=lambda s: place(s, everywhere),
    )
    return TrainState(
        jax.tree.map(place, shapes.params, where), opt_state, place(shapes.step, everywhere)
    )


def shardings(like: Any) -> Any:
    """The shardings of a tree of sharded shapes."""
    return jax.tree.map(lambda leaf: leaf.sharding, like)


def fresh_state(
    params: Params, optimize: optax.GradientTransformation, like: TrainState
) -> TrainState:
    """A state at step 0, laid out as `like`: a run and its continuation compile one program."""
    return jax.device_put(init_state(params, optimize), shardings(like))


def settled(update: Callable[..., Any], like: TrainState) -> Callable[..., Any]:
    """`update`, with its new state laid out as `like` again."""
    where = shardings(like)

    def settle(state: TrainState, *args: Any) -> tuple[TrainState, Any]:
        state, metrics = update(state, *args)
        return jax.device_put(state, where), metrics

    return settle
