"""Saving and restoring the whole state of a run with Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxrl.types import Params, TrainState


def manager(directory: Path, *, keep: int) -> ocp.CheckpointManager:
    """The checkpoints of a run: saved in the background, committed by an atomic rename."""
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
    return ocp.CheckpointManager(
        directory.absolute() / "checkpoints", options=options, item_names=("params", "rest", "host")
    )


def save(
    checkpoints: ocp.CheckpointManager, step: int, state: TrainState, host: dict[str, Any]
) -> None:
    """Save the state on the mesh and the JSON-able host state; returns once `state` is copied."""
    checkpoints.save(
        step,
        args=ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            rest=ocp.args.StandardSave({"opt_state": state.opt_state, "step": state.step}),
            host=ocp.args.JsonSave(host),
        ),
    )


def restore(
    checkpoints: ocp.CheckpointManager, step: int, like: TrainState
) -> tuple[TrainState, dict[str, Any]]:
    """The state saved at `step`, laid out as `like`, a `TrainState` of sharded shapes."""
    restored = checkpoints.restore(
        step,
        args=ocp.args.Composite(
            params=ocp.args.StandardRestore(like.params),
            rest=ocp.args.StandardRestore({"opt_state": like.opt_state, "step": like.step}),
            host=ocp.args.JsonRestore(),
        ),
    )
    return TrainState(restored["params"], **restored["rest"]), restored["host"]


def restore_params(directory: Path, like: Params) -> tuple[Params, int]:
    """Parameters of a run's newest checkpoint, laid out as `like`, and its step.

    Raises:
      FileNotFoundError: the run holds no checkpoint.
    """
    with manager(directory, keep=1) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise FileNotFoundError(f"{directory} holds no checkpoint; has the run saved one yet?")
        args = ocp.args.Composite(params=ocp.args.StandardRestore(like))
        return checkpoints.restore(step, args=args)["params"], step


def reference(directory: Path, params: Params, *, save: bool) -> Params:
    """The frozen reference policy: `params` themselves when `save`, else those saved then."""
    path = directory.absolute() / "reference"
    with ocp.StandardCheckpointer() as checkpointer:
        if save:
            checkpointer.save(path, params, force=True)
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, params)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path, like)
