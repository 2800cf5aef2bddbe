"""A step of sampling on its own thread, while another thread trains."""

from __future__ import annotations

import contextlib
import queue
import threading
from time import perf_counter

import jax
from jax.sharding import Mesh

from jaxrl.rollout.asynchronous import Batch, Sampling, Weights, due

_POLL_S = 1.0


class Live:
    """A step on its own thread, which samples until `halt` is called."""

    def __init__(self, sampling: Sampling, mesh: Mesh, patience_s: float) -> None:
        """Args: what to run, on which devices, and after how many seconds without a chunk to give
        up; 0: never.
        """
        self._sampling, self._mesh, self._patience = sampling, mesh, patience_s
        self._halted = threading.Event()
        self._thread: threading.Thread | None = None
        self._out: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._moved = perf_counter()

    def step(self, weights: Weights) -> Batch:
        """Start a step and wait for its batch; sampling continues on the thread.

        Raises:
          RuntimeError: no chunk has ended and no answer has arrived for too long.
        """
        self.halt()
        self._halted.clear()
        self._out, self._moved = queue.SimpleQueue(), perf_counter()
        self._thread = threading.Thread(
            target=self._run, args=(weights, self._out), name="sampling", daemon=True
        )
        self._thread.start()
        while True:
            with contextlib.suppress(queue.Empty):
                got = self._out.get(timeout=_POLL_S)
                if isinstance(got, BaseException):
                    raise got
                return got
            self._check_moving(f"step {weights.step + 1}")

    def halt(self) -> None:
        """Stop sampling at the end of the current chunk, and return once it has stopped.

        Raises:
          BaseException: what ended the thread, if the batch was there before.
          RuntimeError: the chunk does not end; it is not waited for again.
        """
        if self._thread is None:
            return
        self._halted.set()
        thread, self._thread, self._moved = self._thread, None, perf_counter()
        while thread.is_alive():
            self._check_moving("waiting for the chunk under way")
            thread.join(_POLL_S)
        with contextlib.suppress(queue.Empty):
            got = self._out.get_nowait()
            if isinstance(got, BaseException):
                raise got

    def _check_moving(self, what: str) -> None:
        """Raise if the sampling thread has stood still for too long."""
        quiet = perf_counter() - self._moved
        if self._patience and quiet > self._patience:
            waits = sorted(name for name, _ in self._sampling.drive.pending.values())
            raise RuntimeError(
                f"{what}: the sampling thread has ended no chunk for {quiet:.0f} s, and answers "
                f"are missing to {waits[:5]}; see stacks.txt, or raise "
                f"guard.stall_seconds={self._patience:g}"
            )

    def _run(self, weights: Weights, out: queue.SimpleQueue[Batch | BaseException]) -> None:
        try:
            with jax.set_mesh(self._mesh):
                self._sample(weights, out)
        except BaseException as error:  # the thread that waits for the batch raises it
            out.put(error)

    def _sample(self, weights: Weights, out: queue.SimpleQueue[Batch | BaseException]) -> None:
        sampling = self._sampling
        sampling.start(weights)
        waits = False
        while not self._halted.is_set():
            answers = due(sampling, sampling.drive.ready())
            if waits and not answers:
                self._wait()
                continue
            row = sampling.between(answers)
            if "train" in row and sampling.batch is not None:
                out.put(sampling.batch)
            decoded = sampling.chunk()
            waits = not (decoded or answers or "train" in row or "admit" in row)
            self._moved = perf_counter()
        sampling.stop()

    def _wait(self) -> None:
        """For an answer, or a short while."""
        if len(self._sampling.drive.ready()) < len(self._sampling.drive.pending):
            self._sampling.drive.wait(_POLL_S / 20)
        else:
            self._halted.wait(_POLL_S / 20)
