"""Checkpoints: the whole state of a run, saved in the background and checked when it is read.

A checkpoint is a directory `checkpoints/STEP`: `params` and `rest`, the arrays, written by Orbax;
`host.json`, the state beside them; and `manifest.json`, written last, with the size and SHA-256 of
every other file. The manifest is the commit: a directory without one is a torn save and is never
read; one whose files disagree with it is damaged, and the checkpoint before it is read instead.

With several processes, which must share the run directory, all write and read the arrays, and the
first alone does the rest. What is documented below as one act is one that all of them take part in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import time
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxrl import distributed, storage
from jaxrl.config import CheckpointConfig
from jaxrl.rundir import write_json
from jaxrl.types import Params, TrainState

SCHEMA = 1
"""Version of the layout; raised when an older reader would misread what is written."""

_MANIFEST, _PINNED = "manifest.json", "pinned"
_STEP = "{:08d}"

Note = Callable[[str], None]


class Saved(NamedTuple):
    """What a checkpoint holds."""

    step: int
    state: TrainState
    host: dict[str, Any]


def root(directory: Path) -> Path:
    """Where a run's checkpoints lie."""
    return storage.absolute(directory) / "checkpoints"


def path(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root(directory) / _STEP.format(step)


def steps(directory: Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first; torn saves are none."""
    found = root(directory).glob(f"[0-9]*/{_MANIFEST}")
    return sorted(int(manifest.parent.name) for manifest in found if manifest.parent.name.isdigit())


def commit(saved: Path, facts: Mapping[str, Any]) -> None:
    """Make what is in `saved` a checkpoint: sync every file, then write the manifest."""
    for file in _files(saved):
        storage.sync(file)
    files = {str(file.relative_to(saved)): _measure(file) for file in _files(saved)}
    body = {"schema": SCHEMA, "time": time(), "files": files, **facts}
    write_json(saved / _MANIFEST, {"sha256": _digest(body), "body": body})
    for written in (saved / _MANIFEST, saved, saved.parent):
        storage.sync(written)


def faults(saved: Path) -> list[str]:
    """What is wrong with a checkpoint's files, in words; empty if they are as they were written.

    Raises:
      ValueError: it was written by a newer version, with a layout that this one cannot read.
    """
    try:
        body = _read_manifest(saved)
    except (ValueError, KeyError, TypeError) as error:
        return [f"{_MANIFEST}: {error}"]
    if body["schema"] > SCHEMA:
        raise ValueError(
            f"{saved} has schema {body['schema']}, and this version reads up to {SCHEMA}; "
            "continue with the version that wrote it"
        )
    found = []
    for name, expected in body["files"].items():
        file = saved / name
        if not file.exists():
            found.append(f"{name}: missing")
            continue
        measured = _measure(file)
        if measured["bytes"] != expected["bytes"]:
            found.append(f"{name}: {measured['bytes']} bytes, not {expected['bytes']}")
        elif measured != expected:
            found.append(f"{name}: its SHA-256 is not the one written")
    return found


@distributed.by_first
def newest(directory: Path, note: Note) -> int | None:
    """The newest step whose checkpoint is sound, or None where none was ever committed.

    Args:
      directory: of the run.
      note: warned of each damaged checkpoint that is passed over.

    Raises:
      ValueError: there are checkpoints, and all are damaged.
    """
    committed = steps(directory)
    for step in reversed(committed):
        found = faults(path(directory, step))
        if not found:
            return step
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


def restore_params(directory: Path, like: Params, note: Note = warnings.warn) -> tuple[Params, int]:
    """Parameters of a run's newest sound checkpoint, laid out as `like`, and its step.

    Raises:
      FileNotFoundError: the run holds no checkpoint.
      ValueError: all of its checkpoints are damaged.
    """
    step = newest(directory, note)
    if step is None:
        raise FileNotFoundError(f"{directory} holds no checkpoint; has the run saved one yet?")
    with ocp.Checkpointer(_handler()) as checkpointer:
        args = ocp.args.Composite(params=ocp.args.StandardRestore(like))
        return checkpointer.restore(path(directory, step), args)["params"], step


@distributed.by_first
def require(directory: Path, step: int) -> None:
    """Raise a ValueError unless a sound checkpoint of `step` is there."""
    committed = steps(directory)
    if step not in committed:
        raise ValueError(f"{directory} holds no checkpoint of step {step}; it has {committed}")
    if found := faults(path(directory, step)):
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
        distributed.by_first(commit)(where, {})
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
    if found := distributed.by_first(faults)(where):
        raise ValueError(f"{where} is damaged: {'; '.join(found)}; restore it from a copy")
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(where, like)


@distributed.by_first
def _references(directory: Path, step: int) -> list[int]:
    """The steps, up to `step`, at which the run took a reference policy."""
    found = (storage.absolute(directory) / "references").glob(f"[0-9]*/{_MANIFEST}")
    return [at for at in (int(file.parent.name) for file in found) if at <= step]


def _reference(directory: Path, step: int) -> Path:
    return storage.absolute(directory) / "references" / _STEP.format(step)


def kept(scores: Mapping[int, float | None], config: CheckpointConfig) -> set[int]:
    """Which of the committed steps retention keeps: the last, every so many, and the best.

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
    """Keep the checkpoint of `step` from retention for good."""
    (path(directory, step) / _PINNED).write_bytes(b"")


class Writer:
    """Saves a run's checkpoints, one at a time, in the background; a context manager.

    Storage that fails costs the checkpoint being written and nothing else: the failure is told,
    `failures` counts it, and the next `save` starts afresh.
    """

    def __init__(self, directory: Path, config: CheckpointConfig, note: Note) -> None:
        """Clear what torn saves have left behind; the run's lock must be held."""
        self._directory, self._config, self._note = directory, config, note
        self._orbax = ocp.AsyncCheckpointer(_handler())
        self._thread: Thread | None = None
        self._saving: int | None = None
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
            late = f"storage is slow: step {self._saving} is still being saved"
            self._note(f"WARNING: {late}, so step {step} is not")
            return
        where = path(self._directory, step)
        self._saving = step
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
        facts = {"step": step, "score": score}
        self._thread = Thread(
            target=self._finish,
            args=(step, json.dumps(host, default=_to_json), facts),
            name="checkpoint",
        )
        self._thread.daemon = True  # storage that hangs must not keep the process from ending
        self._thread.start()

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
        """Wait for the save in progress, if any."""
        if self._thread is not None:
            self._thread.join()
        self.step, self.owed, self.failures = distributed.gathered(
            (self.step, self.owed, self.failures)
        )[0]

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ready():
            self._orbax.close()

    def _ready(self) -> bool:
        if self._thread is not None:
            self._thread.join(self._config.patience_seconds)
        return self._thread is None or not self._thread.is_alive()

    def _finish(self, step: int, host: str, facts: Mapping[str, Any]) -> None:
        where = path(self._directory, step)
        try:
            self._orbax.wait_until_finished()
            if distributed.first():  # now all have written
                (where / "host.json").write_text(host)
                commit(where, facts)
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
                if torn == path(self._directory, step) or not (torn / _MANIFEST).exists():
                    storage.remove(torn)


@distributed.by_first
def _tidied(directory: Path) -> int | None:
    """The newest committed step, once what torn saves have left behind is cleared away."""
    root(directory).mkdir(parents=True, exist_ok=True)
    for left in storage.entries(root(directory)):
        if left.is_dir() and not (left / _MANIFEST).exists():
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
            scores[step] = _read_manifest(path(directory, step))["score"]
        except (ValueError, KeyError, TypeError):
            scores[step] = None
    for step in scores.keys() - kept(scores, config):
        old = path(directory, step)
        if not (old / _PINNED).exists():
            (old / _MANIFEST).unlink()  # first: a half-removed checkpoint must not look whole
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
    """What Orbax raises where storage fails; a full disk, as any of the first three."""
    return OSError, ValueError, RuntimeError, *storage.errors()


def _handler() -> ocp.CompositeCheckpointHandler:
    return ocp.CompositeCheckpointHandler("params", "rest")


def _files(saved: Path) -> Iterable[Path]:
    ours = (_MANIFEST, _PINNED)
    return [file for file in storage.files(saved) if file.name not in ours]


def _measure(file: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_manifest(saved: Path) -> dict[str, Any]:
    manifest = json.loads((saved / _MANIFEST).read_text())
    if _digest(manifest["body"]) != manifest["sha256"]:
        raise ValueError("its SHA-256 is not the one written")
    return manifest["body"]
