"""Checkpoints: the whole state of a run, checked when it is read; `writer` saves them.

A checkpoint is a directory `checkpoints/STEP`: `params` and `rest`, the arrays, written by Orbax;
`host.json`, the host's state; and `manifest.json`, see `jaxrl.record.manifest`. A directory without
a manifest is an incomplete save and is never read. If files disagree with their manifest, a run
goes back to the checkpoint before.

With several processes, which must share the run directory, all write, hash and read the arrays, and
the first alone does the rest. What is documented below as one act is one that all of them take part
in.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxrl import json_file
from jaxrl.mesh import distributed
from jaxrl.record import manifest, storage
from jaxrl.types import Params, TrainState

Note = Callable[[str], None]


_DTYPE = re.compile(r"[<>|=]?[A-Za-z]+\d*(_?[a-z]\w*)?(\[\d*[a-zA-Z]+\])?")
"""Names of types of arrays. NumPy reads what else a text says as Python."""


_OF_OTHER_TYPES = (
    LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, AssertionError,
    NotImplementedError,
)  # fmt: skip
"""What Python raises where a value is of another type than is read."""


class Saved(NamedTuple):
    """The content of a checkpoint."""

    step: int
    state: TrainState
    host: dict[str, Any]


def root(directory: Path) -> Path:
    """The directory of a run's checkpoints."""
    return storage.absolute(directory) / "checkpoints"


def step_name(step: int) -> str:
    """The name of the directory of a step."""
    return f"{step:08d}"


def path(directory: Path, step: int) -> Path:
    """The directory of the checkpoint of a step."""
    return root(directory) / step_name(step)


def steps(directory: Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first, without incomplete saves."""
    return step_numbers(root(directory))


def step_numbers(folder: Path) -> list[int]:
    """The steps of the folders in `folder` that hold a manifest; those of other names are none."""
    names = (file.parent.name for file in folder.glob(f"[0-9]*/{manifest.NAME}"))
    pairs = ((name, storage.number(name)) for name in names)
    return sorted(step for name, step in pairs if step is not None and name == step_name(step))


def newest(directory: Path, note: Note) -> int | None:
    """The newest step with an undamaged checkpoint; None if none was ever committed.

    Args:
      directory: of the run.
      note: warned of each damaged checkpoint that is passed over.

    Raises:
      ValueError: there are checkpoints, and all are damaged.
    """
    committed = distributed.by_first(steps)(directory)
    for step in reversed(committed):
        faults = manifest.faults(path(directory, step))
        if not faults:
            return step
        if distributed.first():
            note(
                f"WARNING: checkpoint {path(directory, step)} is damaged ({'; '.join(faults)}); "
                "taking the one before it"
            )
    if committed:
        raise ValueError(
            f"every checkpoint in {root(directory)} is damaged; restore them from a copy, or "
            "remove the directory to begin again"
        )
    return None


@distributed.by_first
def set_aside(directory: Path, after: int | None) -> None:
    """Rename the checkpoints after step `after`, found damaged by `newest`, to STEP.damaged.

    The run can then write these steps anew, and nothing is lost that might yet be repaired.
    """
    for step in steps(directory):
        if after is not None and step > after:
            damaged = path(directory, step)
            storage.remove(damaged.with_suffix(".damaged"))
            storage.rename(damaged, damaged.with_suffix(".damaged"))


def restore(directory: Path, step: int, like: TrainState) -> Saved:
    """The checkpoint of `step`, laid out as `like`, a `TrainState` of sharded shapes.

    Args:
      directory: of the run.
      step: one that `newest` or `require` has found sound.
      like: the mesh may be another than the one it was saved from.

    Raises:
      ValueError: it is of another model or optimizer.
    """
    saved = path(directory, step)
    args = ocp.args.Composite(
        params=ocp.args.StandardRestore(like.params),
        rest=ocp.args.StandardRestore(rest(like)),
    )
    fitting = telling_misfit(saved, "the config's model and optimizer")
    with ocp.Checkpointer(handler()) as checkpointer, fitting:
        read = checkpointer.restore(saved, args)
    try:
        host = json.loads(json_file.text(saved / "host.json"), object_hook=from_json)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{saved / 'host.json'} is damaged: {error}") from error
    if not isinstance(host, dict):
        raise ValueError(f"{saved / 'host.json'} is damaged: it holds a {type(host).__name__}")
    return Saved(step, TrainState(read["params"], **read["rest"]), host)


def restore_params(
    directory: Path, like: Params, note: Note = warnings.warn, *, step: int | None = None
) -> tuple[Params, int]:
    """Parameters of a run's checkpoint, laid out as `like`, and its step.

    Args:
      directory: of the run.
      like: sharded shapes.
      note: called with a warning for each damaged checkpoint.
      step: of the checkpoint; None: the newest sound one.

    Raises:
      FileNotFoundError: the run holds no checkpoint.
      ValueError: all of its checkpoints are damaged, or that of `step` is or is not there.
    """
    if step is None:
        step = _newest_of(directory, note)
    else:
        require(directory, step)
    with ocp.Checkpointer(handler()) as checkpointer:
        args = ocp.args.Composite(params=ocp.args.StandardRestore(like))
        with telling_misfit(path(directory, step), "the config's model"):
            return checkpointer.restore(path(directory, step), args)["params"], step


def _newest_of(directory: Path, note: Note) -> int:
    step = newest(directory, note)
    if step is None:
        raise FileNotFoundError(f"{directory} holds no checkpoint; has the run saved one yet?")
    return step


def restore_extra(directory: Path, name: str, like: Any) -> Any:
    """A part of what an extension keeps in the newest sound checkpoint of a run, and no more.

    Args:
      directory: of the run.
      name: of the extension's entry in `TrainState.extra`.
      like: sharded shapes, by the names of that entry. It may name a part of the entry; the rest is
        not read.

    Raises:
      FileNotFoundError: the run holds no checkpoint.
      ValueError: the run keeps no such thing, or of other shapes.
    """
    step = _newest_of(directory, warnings.warn)
    item = {"extra": {name: like}}
    args = ocp.args.PyTreeRestore(
        item=item,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item),
        partial_restore=True,
    )
    fitting = telling_misfit(path(directory, step), f"what is asked of its {name}")
    with ocp.Checkpointer(handler()) as checkpointer, fitting:
        read = checkpointer.restore(path(directory, step), ocp.args.Composite(rest=args))
    entry = read["rest"]["extra"][name]
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(entry)):
        raise ValueError(f"{path(directory, step)} holds no {name}, or not all that is asked of it")
    return entry


def require(directory: Path, step: int) -> None:
    """Raise a ValueError unless a sound checkpoint of `step` is there."""
    committed = distributed.by_first(steps)(directory)
    if step not in committed:
        raise ValueError(f"{directory} holds no checkpoint of step {step}; it has {committed}")
    if faults := manifest.faults(path(directory, step)):
        raise ValueError(f"{path(directory, step)} is damaged: {'; '.join(faults)}")


def pin(directory: Path, step: int) -> None:
    """Never delete the checkpoint of `step`."""
    (path(directory, step) / manifest.PINNED).write_bytes(b"")


@distributed.by_first
def clear(where: Path) -> None:
    """Make way for `where`, and see that its parent can be written to.

    Raises:
      OSError: it cannot.
    """
    storage.remove(where)
    storage.make_inside(where.parent)
    probe = where.parent / ".probe"
    probe.write_bytes(bytes(4096))
    probe.unlink()


def rest(state: TrainState) -> dict[str, Any]:
    """All of a state but the parameters, which are also read alone."""
    return {k: v for k, v in vars(state).items() if k != "params" and v is not None}


def to_json(array: np.ndarray) -> dict[str, Any]:
    """An array in `host.json`."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": array.shape, "base64": data}


def from_json(value: dict[str, Any]) -> Any:
    """The array that `to_json` wrote; any other value as it is."""
    if "base64" not in value:
        return value
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise ValueError(f"dtype={dtype!r:.100} is none of an array")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"shape={shape!r:.100} is none of an array")
    flat = np.frombuffer(base64.b64decode(value["base64"]), dtype)
    return flat.reshape(shape).copy()


@contextmanager
def telling_misfit(saved: Path, purpose: str) -> Iterator[None]:
    """Have the body read arrays of `saved` as `purpose`, which Orbax fails at in many ways.

    Raises:
      ValueError: they are of other shapes or names, or damaged.
    """
    try:
        yield
    except (ValueError, *_OF_OTHER_TYPES) as error:
        raise ValueError(f"{saved} does not fit {purpose}: {error or repr(error)}") from error


@contextmanager
def telling_damage(directory: Path) -> Iterator[None]:
    """Have the body continue from what a run's `host.json` holds, which may be of other types.

    Raises:
      ValueError: it cannot; an error that says so itself passes.
    """
    try:
        yield
    except _OF_OTHER_TYPES as error:
        raise ValueError(
            f"the checkpoint of {directory} is damaged, or of another version: nothing can "
            f"continue from the values in its host.json ({type(error).__name__}: {error}); restore "
            "it from a copy, or continue from an earlier step"
        ) from error


def save_errors() -> tuple[type[Exception], ...]:
    """Errors that Orbax raises when storage fails; a full disk may raise any of the first three."""
    return OSError, ValueError, RuntimeError, *storage.errors()


def handler() -> ocp.CompositeCheckpointHandler:
    """Orbax's handler of the two items of a checkpoint."""
    return ocp.CompositeCheckpointHandler("params", "rest")
