"""Saving checkpoints in the background, and removing old ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from jaxrl.config import CheckpointConfig
from jaxrl.mesh import distributed
from jaxrl.record import manifest, storage
from jaxrl.record.checkpoint import (
    Note,
    clear,
    handler,
    newest,
    path,
    rest,
    root,
    save_errors,
    set_aside,
    step_name,
    steps,
    to_json,
)
from jaxrl.types import TrainState

_MEASURING_S = 1800
"""How long process 0 waits for the others to hash what they have written."""


def kept_steps(scores: Mapping[int, float | None], config: CheckpointConfig) -> set[int]:
    """The committed steps that are kept: the last, every `keep_every`-th, and the best.

    Args:
      scores: of each committed step; None, or not finite, where it was not scored.
      config: `keep`, `keep_every` and `keep_best`.
    """
    ordered = sorted(scores)
    scored = [(s, step) for step in ordered if (s := scores[step]) is not None and isfinite(s)]
    best = [step for _, step in sorted(scored)[-config.keep_best :]]
    return {
        *ordered[-config.keep :],
        *(step for step in ordered if config.keep_every and step % config.keep_every == 0),
        *(best if config.keep_best else []),
    }


class _Save(NamedTuple):
    """A save in progress."""

    step: int
    thread: Thread
    written: Event
    """Set once the arrays are on storage; hashing and committing them come after."""


class Writer:
    """Saves a run's checkpoints in the background; a context manager.

    The arrays of one are written while the one before is still hashed and committed. Storage that
    fails costs the checkpoint being written and nothing else: the failure is noted, `failures`
    counts it, and the next `save` starts afresh.
    """

    def __init__(self, directory: Path, config: CheckpointConfig, note: Note) -> None:
        """Remove incomplete saves; the run's lock must be held."""
        self._directory, self._config, self._note = directory, config, note
        self._orbax = ocp.AsyncCheckpointer(handler())
        self._saves: list[_Save] = []
        self._count = 0
        self.failures = 0
        """Saves that storage has refused."""
        self.owed = False
        """Whether the newest `save` came to nothing."""
        self.step = _tidied(directory)
        """The newest committed step."""
        self._place = storage.identity(directory)

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
        late = [
            late_step for late_step in distributed.gathered(self._late()) if late_step is not None
        ]
        if late:
            self.owed = True
            slow = f"storage is slow: step {min(late)} is still being saved"
            self._note(f"WARNING: {slow}, so step {step} is not")
            return
        where = path(self._directory, step)
        try:
            self._require_place()
            clear(where)
        except storage.errors() as error:
            self._failed(step, error)
            return
        try:
            self._orbax.save(
                where,
                ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    rest=ocp.args.StandardSave(rest(state)),
                ),
            )
        except save_errors() as error:
            if jax.process_count() > 1:  # the others may have met none, and wait for this one
                raise
            self._failed(step, error)
            return
        self._count += 1
        facts, text = {"step": step, "score": score}, json.dumps(host, default=to_json)
        before = self._saves[-1].thread if self._saves else None
        written_event = Event()
        # a daemon: storage that hangs must not keep the process from ending
        thread = Thread(
            target=self._finish,
            args=(step, text, facts, self._orbax, f"{where}/{self._count}", before, written_event),
            name="checkpoint",
            daemon=True,
        )
        self._saves.append(_Save(step, thread, written_event))
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
                self._tidy()  # a kill may have come between a commit and what follows it
                return
            self.save(step, state, host, score)
        self.wait()
        if self.step != step:
            self._require_place()
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
        if self._late(committed=True) is None:
            self._orbax.close()

    def _late(self, *, committed: bool = False) -> int | None:
        """The step whose save another one has to wait for; waits as long as the config says.

        None: another save may begin.

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
        if last is None or (not (earlier or committed) and last.written.is_set()):
            return None
        return self._saves[0].step

    def _finish(
        self,
        step: int,
        host: str,
        facts: Mapping[str, Any],
        orbax: ocp.AsyncCheckpointer,
        key: str,
        before: Thread | None,
        written_event: Event,
    ) -> None:
        where = path(self._directory, step)
        try:
            orbax.wait_until_finished()
            written_event.set()  # by all processes
            if before is not None:
                before.join()
            self._require_place()  # orbax creates the directories above its own that are missing
            if distributed.first():
                (where / "host.json").write_text(host)
            measurements = manifest.measure(where)
        except save_errors() as error:
            written_event.set()
            if not distributed.first():
                distributed.sent_to_first(key, str(error), 0)
            self._failed(step, error)
            return
        try:
            gathered = distributed.sent_to_first(key, measurements, _MEASURING_S)
            if distributed.first():
                manifest.commit(where, manifest.joined(gathered), facts)
        except save_errors() as error:
            self._failed(step, error)
            return
        self.step = step
        self._tidy()

    def _require_place(self) -> None:
        """Refuse to save where the directory is another one, such as one that a save made anew.

        Raises:
          OSError: it is.
        """
        if storage.identity(self._directory) != self._place:
            raise OSError(
                f"{self._directory} is no longer there; was it renamed or removed during the run?"
            )

    def _tidy(self) -> None:
        """Remove the checkpoints that need not be kept."""
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
            "continues and tries again at the next step"
        )
        self._orbax = ocp.AsyncCheckpointer(handler())
        if not distributed.first():
            return
        with suppress(*storage.errors()):  # what stays is cleared by the next start
            for left in root(self._directory).glob(f"{step_name(step)}*"):
                # With a manifest, but whose last sync failed: it may not outlive the machine.
                if left == path(self._directory, step) or not (left / manifest.NAME).exists():
                    storage.remove(left)


@distributed.by_first
def _tidied(directory: Path) -> int | None:
    """Remove incomplete saves, and give the newest committed step."""
    root(directory).mkdir(parents=True, exist_ok=True)
    for left in storage.entries(root(directory)):
        is_save = re.fullmatch(r"\d+(\..*)?", left.name)  # what else is there is no run's
        if is_save and left.is_dir() and not (left / manifest.NAME).exists():
            storage.remove(left)
    return max(steps(directory), default=None)


def retain(directory: Path, config: CheckpointConfig) -> None:
    """Remove the checkpoints that `kept` does not name and that are not pinned."""
    scores = {}
    for step in steps(directory):
        try:
            scores[step] = manifest.read(path(directory, step))["score"]
        except (ValueError, KeyError, TypeError):
            scores[step] = None
    for step in scores.keys() - kept_steps(scores, config):
        old = path(directory, step)
        if not (old / manifest.PINNED).exists():
            (old / manifest.NAME).unlink()  # first: a half-removed checkpoint must not look whole
            storage.remove(old)
