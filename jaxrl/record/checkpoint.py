"""Checkpoints: the whole state of a run, saved in the background and checked when it is read.

A checkpoint is a directory `checkpoints/STEP`: `params` and `rest`, the arrays, written by Orbax;
`host.json`, the state beside them; and `manifest.json`, see `jaxrl.record.manifest`. A directory
without a manifest is a torn save and is never read; from one whose files disagree with it a run
goes back to the checkpoint before.

With several processes, which must share the run directory, all write, hash and read the arrays, and
the first alone does the rest. What is documented below as one act is one that all of them take part
in.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxrl.config import CheckpointConfig
from jaxrl.mesh import distributed
from jaxrl.record import manifest, storage
from jaxrl.types import Params, TrainState

_STEP = "{:08d}"
_MEASURING_S = 1800
"""How long process 0 waits for the others to hash what they have written."""

Note = Callable[[str], None]


class Saved(NamedTuple):
    """The content of a checkpoint."""

    step: int
    state: TrainState
    host: dict[str, Any]


def root(directory: Path) -> Path:
    """The directory of a run's checkpoints."""
    return storage.absolute(directory) / "checkpoints"


def path(directory: Path, step: int) -> Path:
    """The directory of the checkpoint of a step."""
    return root(directory) / _STEP.format(step)


def steps(directory: Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first, without incomplete saves."""
    found = root(directory).glob(f"[0-9]*/{manifest.NAME}")
    return sorted(int(file.parent.name) for file in found if file.parent.name.isdigit())


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
        found = manifest.faults(path(directory, step))
        if not found:
            return step
        if distributed.first():
            note(
                f"WARNING: checkpoint {path(directory, step)} is damaged ({'; '.join(found)}); "
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
    with ocp.Checkpointer(_handler()) as checkpointer:
        try:
            read = checkpointer.restore(
                saved,
                ocp.args.Composite(
                    params=ocp.args.StandardRestore(like.params),
                    rest=ocp.args.StandardRestore(_rest(like)),
                ),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{saved} does not fit the config's model and optimizer: {error}"
            ) from error
    host = json.loads((saved / "host.json").read_text(), object_hook=_from_json)
    return Saved(step, TrainState(read["params"], **read["rest"]), host)


def restore_params(
    directory: Path, like: Params, note: Note = warnings.warn, *, step: int | None = None
) -> tuple[Params, int]:
    """Parameters of a run's checkpoint, laid out as `like`, and its step.

    Args:
      directory: of the run.
      like: sharded shapes.
      note: told of damaged checkpoints.
      step: of the checkpoint; None: the newest sound one.

    Raises:
      FileNotFoundError: the run holds no checkpoint.
      ValueError: all of its checkpoints are damaged, or that of `step` is or is not there.
    """
    if step is None:
        step = newest(directory, note)
    else:
        require(directory, step)
    if step is None:
        raise FileNotFoundError(f"{directory} holds no checkpoint; has the run saved one yet?")
    with ocp.Checkpointer(_handler()) as checkpointer:
        args = ocp.args.Composite(params=ocp.args.StandardRestore(like))
        return checkpointer.restore(path(directory, step), args)["params"], step


def require(directory: Path, step: int) -> None:
    """Raise a ValueError unless a sound checkpoint of `step` is there."""
    committed = distributed.by_first(steps)(directory)
    if step not in committed:
        raise ValueError(f"{directory} holds no checkpoint of step {step}; it has {committed}")
    if found := manifest.faults(path(directory, step)):
        raise ValueError(f"{path(directory, step)} is damaged: {'; '.join(found)}")


def save_reference(directory: Path, params: Params, step: int = 0) -> None:
    """Write the reference policy of a run from `step` on, replacing one left half written.

    Raises:
      OSError: it could not be; no later step could be resumed from.
    """
    where = _reference(directory, step)
    try:
        _clear(where)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(where, params)
        measured = manifest.joined(distributed.gathered(manifest.measure(where)))
        distributed.by_first(manifest.commit)(where, measured, {})
    except _errors() as error:
        if jax.process_count() > 1:  # it may be of an exchange with another that has failed
            raise
        raise OSError(
            f"the reference policy of step {step} could not be saved in {where.parent}: {error}; "
            "make room there, and run the same command again"
        ) from error


def load_reference(directory: Path, like: Params, step: int) -> Params | None:
    """The reference policy of a run at `step`, laid out as `like`; None if the run keeps none.

    Raises:
      ValueError: it is damaged.
    """
    known = _references(directory, step)
    if not known:
        return None
    where = _reference(directory, max(known))
    if found := manifest.faults(where):
        raise ValueError(f"{where} is damaged: {'; '.join(found)}; restore it from a copy")
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(where, like)


@distributed.by_first
def _references(directory: Path, step: int) -> list[int]:
    """The steps, up to `step`, at which the run took a reference policy."""
    found = (storage.absolute(directory) / "references").glob(f"[0-9]*/{manifest.NAME}")
    return [at for at in (int(file.parent.name) for file in found) if at <= step]


def _reference(directory: Path, step: int) -> Path:
    return storage.absolute(directory) / "references" / _STEP.format(step)


def kept(scores: Mapping[int, float | None], config: CheckpointConfig) -> set[int]:
    """The committed steps that are kept: the last, every `keep_every`-th, and the best.

    Args:
      scores: of each committed step, None where it was not scored.
      config: `keep`, `keep_every` and `keep_best`.
    """
    ordered = sorted(scores)
    scored = [step for step in ordered if scores[step] is not None]
    best = sorted(scored, key=lambda step: (scores[step], step))[-config.keep_best :]
    return {
        *ordered[-config.keep :],
        *(step for step in ordered if config.keep_every and step % config.keep_every == 0),
        *(best if config.keep_best else []),
    }


def pin(directory: Path, step: int) -> None:
    """Never delete the checkpoint of `step`."""
    (path(directory, step) / manifest.PINNED).write_bytes(b"")


class _Save(NamedTuple):
    """A save in progress."""

    step: int
    thread: Thread
    written: Event
    """Set once the arrays are on storage; hashing and committing them come after."""


class Writer:
    """Saves a run's checkpoints in the background; a context manager.

    The arrays of one are written while the one before is still hashed and committed. Storage that
    fails costs the checkpoint being written and nothing else: the failure is told, `failures`
    counts it, and the next `save` starts afresh.
    """

    def __init__(self, directory: Path, config: CheckpointConfig, note: Note) -> None:
        """Clear what torn saves have left behind; the run's lock must be held."""
        self._directory, self._config, self._note = directory, config, note
        self._orbax = ocp.AsyncCheckpointer(_handler())
        self._saves: list[_Save] = []
        self._count = 0
        self.failures = 0
        """Saves that storage has refused."""
        self.owed = False
        """Whether the newest `save` came to nothing."""
        self.step = _tidied(directory)
        """The newest committed step."""

    def due(self, step: int) -> bool:
        """Whether the config asks for a checkpoint of `step`, or one before it is owed."""
        return step % self._config.every == 0 or any(distributed.gathered(self.owed))

    def save(
        self, step: int, state: TrainState, host: Mapping[str, Any], score: float | None = None
    ) -> None:
        """Begin to save; returns once `state` is copied, and may then be donated.

        Args:
          step: a step that has no checkpoint yet.
          state: on the mesh.
          host: JSON-able, but that values may be NumPy arrays.
          score: ranks this checkpoint, for `keep_best`.
        """
        self.owed = False
        if not all(distributed.gathered(self._ready())):
            self.owed = True
            late = f"storage is slow: step {self._saves[0].step} is still being saved"
            self._note(f"WARNING: {late}, so step {step} is not")
            return
        where = path(self._directory, step)
        try:
            _clear(where)
        except storage.errors() as error:
            self._failed(step, error)
            return
        try:
            self._orbax.save(
                where,
                ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    rest=ocp.args.StandardSave(_rest(state)),
                ),
            )
        except _errors() as error:
            if jax.process_count() > 1:  # the others may have met none, and wait for this one
                raise
            self._failed(step, error)
            return
        self._count += 1
        facts, text = {"step": step, "score": score}, json.dumps(host, default=_to_json)
        before = self._saves[-1].thread if self._saves else None
        written = Event()
        # a daemon: storage that hangs must not keep the process from ending
        thread = Thread(
            target=self._finish,
            args=(step, text, facts, self._orbax, f"{where}/{self._count}", before, written),
            name="checkpoint",
            daemon=True,
        )
        self._saves.append(_Save(step, thread, written))
        thread.start()

    def save_now(
        self, step: int, state: TrainState, host: Mapping[str, Any], score: float | None = None
    ) -> None:
        """Save, unless it has been already, and wait for it, trying three times.

        Raises:
          OSError: the step could not be saved.
        """
        for _ in range(3):
            self.wait()
            if self.step == step:
                return
            self.save(step, state, host, score)
        self.wait()
        if self.step != step:
            raise OSError(
                f"step {step} could not be saved in {root(self._directory)}; the newest checkpoint "
                f"is of step {self.step}; make room there, and run the same command again"
            )

    def settle(self) -> int:
        """Wait for the save in progress, and give the newest step whose checkpoint is sound.

        Raises:
          OSError: there is none.
        """
        self.wait()
        self.step = newest(self._directory, self._note)
        set_aside(self._directory, after=self.step)
        if self.step is None:
            raise OSError(f"{root(self._directory)} holds no checkpoint to go back to")
        return self.step

    def wait(self) -> None:
        """Wait for the saves in progress, if any."""
        for save in self._saves:
            save.thread.join()
        self.step, self.owed, self.failures = distributed.gathered(
            (self.step, self.owed, self.failures)
        )[0]

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ready(committed=True):
            self._orbax.close()

    def _ready(self, *, committed: bool = False) -> bool:
        """Whether another save may begin; waits for it as long as the config says.

        The arrays of the newest save must be written, or all of it be `committed`, and those before
        it be committed.
        """
        end = monotonic() + self._config.patience_seconds
        for save in self._saves:
            if save is self._saves[-1] and not committed:
                save.written.wait(max(0.0, end - monotonic()))
            else:
                save.thread.join(max(0.0, end - monotonic()))
        self._saves = [save for save in self._saves if save.thread.is_alive()]
        *earlier, last = self._saves or [None]
        return last is None or (not (earlier or committed) and last.written.is_set())

    def _finish(
        self,
        step: int,
        host: str,
        facts: Mapping[str, Any],
        orbax: ocp.AsyncCheckpointer,
        key: str,
        before: Thread | None,
        written: Event,
    ) -> None:
        where = path(self._directory, step)
        try:
            orbax.wait_until_finished()
            written.set()  # by all processes
            if before is not None:
                before.join()
            if distributed.first():
                (where / "host.json").write_text(host)
            measured = manifest.measure(where)
        except _errors() as error:
            written.set()
            if not distributed.first():
                distributed.sent_to_first(key, str(error), 0)
            self._failed(step, error)
            return
        try:
            told = distributed.sent_to_first(key, measured, _MEASURING_S)
            if distributed.first():
                manifest.commit(where, manifest.joined(told), facts)
        except _errors() as error:
            self._failed(step, error)
            return
        self.step = step
        if not distributed.first():
            return
        try:
            retain(self._directory, self._config)
        except storage.errors() as error:
            self._note(f"WARNING: old checkpoints could not be removed: {error}")

    def _failed(self, step: int, error: Exception) -> None:
        self.failures, self.owed = self.failures + 1, True
        left = f"the newest is of step {self.step}" if self.step is not None else "none is newer"
        self._note(
            f"WARNING: the checkpoint of step {step} could not be saved: {error}; {left}; the run "
            "goes on and tries again at the next step"
        )
        self._orbax = ocp.AsyncCheckpointer(_handler())
        if not distributed.first():
            return
        with suppress(*storage.errors()):  # what stays is cleared by the next start
            for torn in root(self._directory).glob(f"{_STEP.format(step)}*"):
                # With a manifest, but whose last sync failed: it may not outlive the machine.
                if torn == path(self._directory, step) or not (torn / manifest.NAME).exists():
                    storage.remove(torn)


@distributed.by_first
def _tidied(directory: Path) -> int | None:
    """The newest committed step, once what torn saves have left behind is cleared away."""
    root(directory).mkdir(parents=True, exist_ok=True)
    for left in storage.entries(root(directory)):
        if left.is_dir() and not (left / manifest.NAME).exists():
            storage.remove(left)
    return max(steps(directory), default=None)


@distributed.by_first
def _clear(where: Path) -> None:
    """Make way for `where`, and see that its parent can be written to.

    Raises:
      OSError: it cannot.
    """
    storage.remove(where)
    where.parent.mkdir(parents=True, exist_ok=True)
    probe = where.parent / ".probe"
    probe.write_bytes(bytes(4096))
    probe.unlink()


def retain(directory: Path, config: CheckpointConfig) -> None:
    """Remove the checkpoints that `kept` does not name and nobody has pinned."""
    scores = {}
    for step in steps(directory):
        try:
            scores[step] = manifest.read(path(directory, step))["score"]
        except (ValueError, KeyError, TypeError):
            scores[step] = None
    for step in scores.keys() - kept(scores, config):
        old = path(directory, step)
        if not (old / manifest.PINNED).exists():
            (old / manifest.NAME).unlink()  # first: a half-removed checkpoint must not look whole
            storage.remove(old)


def _rest(state: TrainState) -> dict[str, Any]:
    """All of a state but the parameters, which are also read alone."""
    return {k: v for k, v in vars(state).items() if k != "params" and v is not None}


def _to_json(array: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": array.shape, "base64": data}


def _from_json(value: dict[str, Any]) -> Any:
    if "base64" not in value:
        return value
    flat = np.frombuffer(base64.b64decode(value["base64"]), value["dtype"])
    return flat.reshape(value["shape"]).copy()


def _errors() -> tuple[type[Exception], ...]:
    """Errors that Orbax raises when storage fails; a full disk may raise any of the first three."""
    return OSError, ValueError, RuntimeError, *storage.errors()


def _handler() -> ocp.CompositeCheckpointHandler:
    return ocp.CompositeCheckpointHandler("params", "rest")
