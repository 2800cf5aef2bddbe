"""The reference policies of a run, each saved once, in `references/STEP`."""

from __future__ import annotations

from pathlib import Path

import jax
import orbax.checkpoint as ocp

from jaxrl.mesh import distributed
from jaxrl.record import manifest, storage
from jaxrl.record.checkpoint import clear, save_errors, step_name, step_numbers, telling_misfit
from jaxrl.types import Params


def save(directory: Path, params: Params, step: int = 0) -> None:
    """Write the reference policy of a run from `step` on, replacing one left half written.

    Raises:
      OSError: it could not be; no later step could be resumed from.
    """
    where = _path(directory, step)
    try:
        clear(where)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(where, params)
        measurements = manifest.joined(distributed.gathered(manifest.measure(where)))
        distributed.by_first(manifest.commit)(where, measurements, {})
    except save_errors() as error:
        if jax.process_count() > 1:  # it may be of an exchange with another that has failed
            raise
        raise OSError(
            f"the reference policy of step {step} could not be saved in {where.parent}: {error}; "
            "make room there, and run the same command again"
        ) from error


def load(directory: Path, like: Params, step: int) -> Params | None:
    """The reference policy of a run at `step`, laid out as `like`; None if the run keeps none.

    Raises:
      ValueError: it is damaged.
    """
    saved_steps = _steps(directory, step)
    if not saved_steps:
        return None
    where = _path(directory, max(saved_steps))
    if faults := manifest.faults(where):
        raise ValueError(f"{where} is damaged: {'; '.join(faults)}; restore it from a copy")
    with ocp.StandardCheckpointer() as checkpointer, telling_misfit(where, "the config's model"):
        return checkpointer.restore(where, like)


@distributed.by_first
def _steps(directory: Path, step: int) -> list[int]:
    """The steps, up to `step`, at which the run took a reference policy."""
    folder = storage.absolute(directory) / "references"
    return [at for at in step_numbers(folder) if at <= step]


def _path(directory: Path, step: int) -> Path:
    return storage.absolute(directory) / "references" / step_name(step)
