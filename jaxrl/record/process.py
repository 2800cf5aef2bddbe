"""The process of a run: its heartbeat, its stacks when it is stuck, its memory and its programs.

JAX keeps hundreds of thousands of objects for the programs that it has compiled. A full garbage
collection visits all of them, which takes 0.1 s or more, and the objects of a step's completions
trigger one every few steps. `exempting` spares that.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

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
