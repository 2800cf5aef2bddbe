"""A process that has imported and compiled already, in which runs live one after another.

Most of the time of a small run goes into imports, tracing and compilation; a process that has done
these takes a quarter of it. What a kill leaves is not a matter of the process but of the disk: the
files of a run whose process stands still are those that SIGKILL would leave at that moment.
"""

import io
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

from jaxrl.launch.control import run as control_run
from jaxrl.record.process import INTERRUPTED, STOPPING
from tests.jaxrl import tiny

LIMIT_S = 900
"""That a life may take, beyond which it hangs."""
PRELOADED = ("tests.acceptance.lives", "tensorboardX")
"""Modules that the process from which others are forked has imported."""


class Host:
    """The process. It is started anew where it has ended."""

    def __init__(self) -> None:
        """Start it."""
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end,))
        self._process.start()
        end.close()

    def begin(self, directory: Path, changes: Mapping[str, Any], limit: int | None = None) -> None:
        """Begin a life of a run, which prints to `DIRECTORY.txt`.

        Args:
          directory: of the run.
          changes: of `tiny.config`, or `control`, the words of `jaxrl control`.
          limit: bytes beyond which no file can grow.
        """
        if not self._process.is_alive():
            self._start()
        self._pipe.send((directory, dict(changes), limit))

    def over(self) -> bool:
        """Whether the life has ended, or the process with it."""
        return self._pipe.poll() or not self._process.is_alive()

    def status(self) -> int:
        """Wait for the end of the life; its exit status, negative if a signal ended the process.

        Raises:
          RuntimeError: it hangs, and is killed.
        """
        if not self._pipe.poll(LIMIT_S):
            self.kill()
            raise RuntimeError(f"it hangs for {LIMIT_S} s")
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            return self._process.exitcode or 1

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process.is_alive():
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.join()

    def copy(self, directory: Path, to: Path) -> None:
        """Copy what is on the disk while all threads of the process stand still."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            while not _stopped(self._process.pid):
                time.sleep(0.001)
            shutil.copytree(directory, to, symlinks=True)
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self.kill()


def _stopped(pid: int) -> bool:
    """Whether all its threads are."""
    states = (task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(state.rpartition(")")[2].split()[0] in "Tt" for state in states)


def _serve(pipe: Connection) -> None:
    """In the process: one life after another."""
    for number in STOPPING:  # one that comes too late or too early is no request to a run
        signal.signal(number, lambda *_: None)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        pipe.send(_live(*order))


def _live(directory: Path, changes: dict[str, Any], limit: int | None) -> int:
    """One life of a run; its exit status."""
    output = os.open(directory.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    kept_from = jax.config.jax_persistent_cache_min_compile_time_secs
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))  # without unprinted old lines
    try:
        if limit is not None:  # programs that are kept for all runs must not be cut short
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        if words := changes.get("control"):
            return control_run.main([*words, "--run-dir", str(directory)]) or 0
        tiny.run(directory, **changes)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # the host outlives it, as a shell would
        trace = traceback.format_exc()
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        os.write(2, trace.encode(errors="replace"))
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", kept_from)
    return 0
