"""The process of a run: what stops it, its heartbeat, its stacks when it is stuck, its memory and
its programs.

Stopping on request: SIGTERM and Ctrl-C save and exit; a second Ctrl-C exits at once.

A preemption notice is a SIGTERM almost everywhere; SIGUSR1, which schedulers can be asked to send
some time before they end a job (`--signal=USR1@300` of SLURM), is taken alike, and so is SIGHUP,
which a lost connection sends to what runs in its terminal; under `nohup` it stays ignored.

With several processes, a signal to any of them stops all at the end of the same step.

Exit codes: 75 (`EX_TEMPFAIL`) saved, the same command continues; 76 asked to stop, but the state
could not be saved within the grace period; 130 a second Ctrl-C.

JAX keeps hundreds of thousands of objects for the programs that it has compiled. A full garbage
collection visits all of them, which takes 0.1 s or more, and the objects of a step's completions
trigger one every few steps. `exempting` spares that.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from types import FrameType

import jax
from jax import monitoring

from jaxrl.mesh import distributed
from jaxrl.record import storage
from jaxrl.record.storage import best_effort, write_json


class Heartbeat:
    """`heartbeat.json`, rewritten at each sign of progress; `stacks.txt` when there is none.

    The stacks of all threads are dumped by a timer that does not need the interpreter, so a call
    that never returns is shown too. With several processes, the first alone beats, and each
    dumps its own stacks. A context manager.
    """

    def __init__(self, directory: Path, stall_s: float, note: Callable[[str], None]) -> None:
        """Args: where to write, seconds without a beat that are a stall (0: never), and a log."""
        self._path, self._stall, self._note = directory / "heartbeat.json", stall_s, note
        suffix = "" if distributed.first() else f"-{jax.process_index()}"
        local = directory / f"stacks{suffix}.txt"
        self._stacks = (Path("/dev/stderr") if storage.remote(directory) else local).open("a")
        self._beaten = threading.Event()
        self._ended = False
        if stall_s:
            threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()

    def beat(self, stage: str, step: int) -> None:
        """The run is at `stage` of `step`."""
        if self._stall:
            faulthandler.dump_traceback_later(self._stall, repeat=False, file=self._stacks)
        self._beaten.set()
        if not distributed.first():
            return
        with best_effort("the heartbeat", self._note):
            write_json(
                self._path,
                {
                    "stage": stage,
                    "step": step,
                    "time": time(),
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                },
            )

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._beaten.set()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()

    def _watch(self) -> None:
        self._beaten.wait()
        while not self._ended:
            self._beaten.clear()
            if not self._beaten.wait(self._stall + 1.0) and not self._ended:
                where = self._stacks.name
                self._note(f"WARNING: no progress for {self._stall:g} s; all stacks are in {where}")
                self._beaten.wait()


_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def count_compilations() -> Iterator[Callable[[], dict[str, float]]]:
    """A function that gives the metrics now; compilations are counted while the context is open.

    - `compilations`: programs compiled, or taken from the compilation cache on disk, so far. After
      warm-up a new one is a shape that was not budgeted.
    - `memory/host`: bytes, the most that this process has held.
    - `memory/device`: bytes, the most that one of its devices has held; absent where the device
      does not say, as on CPU.
    """
    count = 0

    def listen(event: str, seconds: float, **_: str | int) -> None:
        nonlocal count
        count += event == _COMPILED

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield lambda: {"compilations": float(count)} | memory()
    finally:
        monitoring.unregister_event_duration_listener(listen)


def memory() -> dict[str, float]:
    """Peak memory so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"memory/host": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)}
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    devices = [float(s["peak_bytes_in_use"]) for s in stats if "peak_bytes_in_use" in s]
    return peak | ({"memory/device": max(devices)} if devices else {})


_STEADY = 10
"""Steps without a new program after which a run's objects are taken to be permanent."""


@contextmanager
def exempting() -> Iterator[Callable[[float], None]]:
    """A function that exempts the permanent objects of a run from garbage collection.

    Call it after each step with the number of programs compiled so far. Once no program has been
    added for `_STEADY` steps, it collects what is unreachable and exempts all other objects. An
    exempt object is still freed when the last reference to it goes. The exemption ends with the
    context.
    """
    last, steady = -1.0, 0

    def stepped(compiled: float) -> None:
        nonlocal last, steady
        last, steady = compiled, 0 if compiled != last else steady + 1
        if steady == _STEADY:
            gc.unfreeze()  # what was exempt before may be unreachable now
            gc.collect()
            gc.freeze()

    try:
        yield stepped
    finally:
        gc.unfreeze()


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
            previous_hook(lost)

    previous_hook, sys.unraisablehook = sys.unraisablehook, report
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    chosen = [s for s in STOPPING if not (s == signal.SIGHUP and ignored)]
    before = {s: signal.signal(s, handle) for s in chosen}
    try:
        yield gate
    finally:
        timer.cancel()
        sys.unraisablehook = previous_hook
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
