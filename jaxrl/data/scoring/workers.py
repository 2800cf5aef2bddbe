"""A process that answers messages, seen from the one that asks."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping

from jaxrl.data.sandbox import processes, scratch

START_LIMIT_S = 120.0
"""How long a worker may take to import and build the task."""

_LONGEST_REPLY = 1 << 20  # bytes


class Failed(RuntimeError):
    """A worker did not start, or ended; the text is `kind: explanation`."""


class Worker:
    """A process that runs `jaxrl.data.scoring.scoring_process.serve`."""

    def __init__(self, spec: bytes, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._asked = 0
        self._unread = b""
        # Here and not in the worker, which may be killed while it has files in it.
        self._scratch = scratch.Scratch()
        # Not multiprocessing's spawn: that would run the user's main module again in the child.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from jaxrl.data.scoring import scoring_process as s; s.serve({theirs.fileno()})",
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**environment, "TMPDIR": self._scratch.name},
            start_new_session=True,
        )
        theirs.close()
        self._spec: bytes | None = spec
        self._sent = False

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def prepare(self) -> None:
        """Have it import and build the task now; whether that fails is said by the first `ask`."""
        self._sent = True
        with contextlib.suppress(OSError):
            self._send(self._spec, START_LIMIT_S)

    def ask(self, item: bytes, limit_s: float) -> tuple[bytes, int]:
        """The line that answers an item, and the number of the message that it must answer.

        Raises:
          TimeoutError: it took too long.
          Failed: the worker did not start, has ended, or says more than an answer can be.
        """
        start = time.monotonic()
        try:
            if self._spec is not None:
                try:
                    if not self._sent:
                        self._send(self._spec, START_LIMIT_S)
                    problem = json.loads(self._heard(START_LIMIT_S))
                except TimeoutError:
                    message = f"start: the worker was not up after {START_LIMIT_S:g} s"
                    raise Failed(message) from None
                self._spec = None
                if problem:
                    raise Failed(f"start: {problem}")
            start = time.monotonic()
            self._send(item, limit_s)
            return self._heard(max(0.0, start + limit_s - time.monotonic())), self._asked
        except TimeoutError:
            raise
        except (EOFError, OSError):
            after = time.monotonic() - start
            try:
                code = self._process.wait(1.0)  # its end may be seen after its last words
            except subprocess.TimeoutExpired:
                message = f"crash: the worker closed its connection after {after:.2g} s"
                raise Failed(message) from None
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise Failed(f"crash: the worker ended by {how} after {after:.2g} s") from None

    def kill(self) -> None:
        """End the process, if it has not ended by itself."""
        if self.alive():
            processes.kill_tree(self._process.pid)
        self._process.wait()

    def end(self, limit_s: float) -> None:
        """Let an idle process close its episodes and end; kill it after `limit_s`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        self.kill()

    def discard(self) -> None:
        """End the process and remove its files."""
        self.kill()
        self._socket.close()
        self._scratch.cleanup()

    def _send(self, message: bytes, limit_s: float) -> None:
        """Send a message, or raise a TimeoutError."""
        self._socket.settimeout(limit_s)
        self._asked += 1
        self._socket.sendall(struct.pack("!QQ", self._asked, len(message)) + message)

    def _heard(self, limit_s: float) -> bytes:
        """The line that the worker answers.

        Raises:
          TimeoutError: it took too long.
          EOFError: it is gone, or says more than an answer can be.
        """
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            heard = self._socket.recv(1 << 16)
            if not heard or len(self._unread) > _LONGEST_REPLY:
                raise EOFError
            self._unread += heard
        line, _, self._unread = self._unread.partition(b"\n")
        return line
