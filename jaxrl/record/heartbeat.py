"""A heartbeat file for monitoring, and a dump of all stacks when a run is stuck."""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from time import time

import jax

from jaxrl.mesh import distributed
from jaxrl.record import storage
from jaxrl.record.rundir import best_effort, write_json


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
