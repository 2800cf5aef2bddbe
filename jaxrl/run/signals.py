"""Stopping on request: SIGTERM and Ctrl-C save and exit; a second Ctrl-C exits at once.

A preemption notice is a SIGTERM almost everywhere; SIGUSR1, which schedulers can be asked to send
some time before they end a job (`--signal=USR1@300` of SLURM), is taken alike, and so is SIGHUP,
which a lost connection sends to what runs in its terminal; under `nohup` it stays ignored.

With several processes, a signal to any of them stops all at the end of the same step.

Exit codes: 75 (`EX_TEMPFAIL`) saved, the same command continues; 76 asked to stop, but the state
could not be saved within the grace period; 130 a second Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import jax

from jaxrl.mesh import distributed

SAVED, UNSAVED, INTERRUPTED = 75, 76, 130
STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class Stop(SystemExit):
    """The run was asked to stop. Left uncaught, it ends the process with code 75.

    Not an `Exception`: what shields the run from a faulty reward must not swallow it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(SAVED)
        self.name = name


class Gate:
    """Where a signal may break in: anywhere, except where the gate is closed.

    With several processes, where it opens again alone: they must stop at the same place.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called when the signal arrives."""
        self._note = note
        self._asked = self._told = self._raised = ""
        self._closed = 0

    def check(self) -> None:
        """Raise `Stop` again if the code that a signal broke into has swallowed it.

        What shields a run from a reward that calls `sys.exit` does, and so may a user's function.
        """
        if self._raised:
            raise Stop(self._raised)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hold a signal back to the end of the body, which leaves a state that can be saved."""
        self.check()
        self._closed += 1
        try:
            yield
        finally:
            self._closed -= 1
        # A signal that comes amid this exchange is for the next: the others do not know of it.
        self._raise(next(filter(None, distributed.gathered(self._asked)), ""))

    def ask(self, name: str) -> None:
        """A signal has come."""
        self._asked = self._asked or name
        if jax.process_count() == 1:
            self._raise(self._asked)

    def _raise(self, name: str) -> None:
        if name and not self._told:
            self._told = name
            again = "; Ctrl-C again exits at once" if name == "SIGINT" else ""
            self._note(f"{name}: saving and stopping{again}")
        if name and not self._closed:
            self._closed += 1  # once: the saving that follows is not broken into again
            self._raised = name
            raise Stop(name)


@contextmanager
def stoppable(grace_s: float, note: Callable[[str], None]) -> Iterator[Gate]:
    """Turn the signals of `STOPPING` into `Stop` for the body; off the main thread, do nothing.

    Args:
      grace_s: seconds from the signal to a forced exit with code 76.
      note: called when the signal arrives.
    """
    gate = Gate(note)
    if threading.current_thread() is not threading.main_thread():
        yield gate
        return
    timer = threading.Timer(grace_s, os._exit, (UNSAVED,))
    timer.daemon = True
    received_signals: set[int] = set()

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in received_signals:
            os._exit(INTERRUPTED)
        first, name = not received_signals, signal.Signals(number).name
        received_signals.add(number)
        if first:
            timer.start()
            gate.ask(name)

    def report(lost: sys.UnraisableHookArgs) -> None:
        """Say nothing of a `Stop` that broke into a destructor, where Python drops it:
        `Gate.check` raises it again."""
        if not isinstance(lost.exc_value, Stop):
            told(lost)

    told, sys.unraisablehook = sys.unraisablehook, report
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    chosen = [s for s in STOPPING if not (s == signal.SIGHUP and ignored)]
    before = {s: signal.signal(s, handle) for s in chosen}
    try:
        yield gate
    finally:
        timer.cancel()
        sys.unraisablehook = told
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: one set outside Python


@contextmanager
def keep_handlers() -> Iterator[None]:
    """Set the handlers again after the body, which starts a library that sets its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {s: signal.getsignal(s) for s in STOPPING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: one set outside Python
                signal.signal(number, handler)
