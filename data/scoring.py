"""Scoring in worker processes under hard time limits: a hung or crashing scorer costs one item.

Each worker is a fresh interpreter that rebuilds the task by name, and is watched by a thread of
this process. A worker that overruns the limit or dies is killed with its children and replaced;
its item becomes an error and no other item notices. Nothing relies on signals in this process, so
a pool may be used from any thread.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from typing import Any

from data import processes, tasks
from data.types import Problem, Score, Task

START_LIMIT_S = 120.0
"""How long a worker may take to import and build the task."""

_Job = tuple[bytes, "Future[Score]"]


def judge(task: Task, problem: Problem, completion: str) -> Score:
    """The task's score of one completion; what the reward raises becomes the score's error."""
    try:
        score = task.reward(problem, completion)
        if inspect.isawaitable(score):
            score = asyncio.run(_await(score))
        if not isinstance(score, Score):
            raise TypeError(f"the reward returned {score!r}; return a data.types.Score")
        return score
    except Exception as error:
        return Score(None, error=f"exception: {type(error).__name__}: {error}")


class Pool:
    """Scores completions; made by `open_pool`, and a context manager that closes itself."""

    def __init__(
        self, task: Task, workers: int, time_limit_s: float, memory_limit_mb: int | None
    ) -> None:
        self._task = task
        self._spec = pickle.dumps((task.name, dict(task.params), memory_limit_mb))
        self._limit = time_limit_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._threads = [
            threading.Thread(target=self._watch, name=f"scoring-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, problem: Problem, completion: str) -> Future[Score]:
        """Queue one item. The future always gets a Score; it never raises what a scorer raised."""
        future: Future[Score] = Future()
        if not self._threads:
            future.set_result(judge(self._task, problem, completion))
            return future
        try:
            item = pickle.dumps((problem, completion))
        except Exception as error:
            message = f"exception: problem {problem.id!r} does not pickle: {error}"
            future.set_result(Score(None, error=message))
            return future
        with self._lock:
            if self._closed:
                raise RuntimeError("this scoring pool is closed; open another")
            self._jobs.put((item, future))
        return future

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[Score]:
        """The scores of (problem, completion) pairs, in order."""
        futures = [self.submit(*item) for item in items]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Kill the workers. What was still queued or running becomes a "closed" error."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        """Feed one worker at a time, from its first item until the pool closes."""
        worker: _Worker | None = None
        while (job := self._jobs.get()) is not None:
            item, future = job
            if not future.set_running_or_notify_cancel():
                continue
            if worker is None or not worker.alive():
                worker = self._replace(worker)
            score = worker.score(item, self._limit) if worker else None
            if self._closed:
                score = Score(None, error="closed: the pool was closed before this was scored")
            future.set_result(score)
        self._replace(worker, start=False)

    def _replace(self, worker: _Worker | None, start: bool = True) -> _Worker | None:
        if worker is not None:
            worker.discard()
        with self._lock:
            self._workers.discard(worker)
            if self._closed or not start:
                return None
            fresh = _Worker(self._spec)
            self._workers.add(fresh)
            return fresh


def open_pool(
    task_name: str,
    task_params: Mapping[str, Any] | None = None,
    *,
    workers: int,
    time_limit_s: float = 10.0,
    memory_limit_mb: int | None = None,
) -> Pool:
    """A pool that scores completions of one task.

    Args:
      task_name: as in `data.tasks.get`.
      task_params: its parameters; they must pickle.
      workers: processes, each started when first needed. 0 scores in the calling thread: right
        for cheap pure rewards, but then there is no time or memory limit and a crash is a crash.
      time_limit_s: wall-clock limit of one item, the worker's start not included.
      memory_limit_mb: limit of a worker's address space; None for no limit.
    """
    if workers < 0:
        raise ValueError(f"workers={workers} must be 0 (score in this thread) or more")
    if time_limit_s <= 0:
        raise ValueError(f"time_limit_s={time_limit_s} must be positive")
    task = tasks.get(task_name, **(task_params or {}))
    return Pool(task, workers, time_limit_s, memory_limit_mb)


class _Worker:
    """A process that scores, seen from the parent."""

    def __init__(self, spec: bytes) -> None:
        self._connection, theirs = Pipe()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "JAX_PLATFORMS": "cpu",  # a scorer that imports jax must not take the accelerator
            "OMP_NUM_THREADS": "1",
        }
        # Not multiprocessing's spawn: that would run the user's main module again in the child.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from data import scoring; scoring.serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        self._spec: bytes | None = spec

    def alive(self) -> bool:
        return self._process.poll() is None

    def score(self, item: bytes, limit_s: float) -> Score:
        """One item's score; after a time-out or a crash the worker is dead."""
        start = time.monotonic()
        try:
            if self._spec is not None:
                self._connection.send_bytes(self._spec)
                self._spec = None
                if not self._connection.poll(START_LIMIT_S):
                    return self._fail(f"start: the worker was not up after {START_LIMIT_S:g} s")
                if problem := pickle.loads(self._connection.recv_bytes()):
                    return self._fail(f"start: {problem}")
            start = time.monotonic()
            self._connection.send_bytes(item)
            if not self._connection.poll(limit_s):
                return self._fail(f"timeout: no score after {limit_s:g} s")
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            after = time.monotonic() - start
            code = self.kill()
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            return Score(None, error=f"crash: the worker ended by {how} after {after:.2g} s")

    def kill(self) -> int:
        """End the process, if it has not ended by itself, and give its exit status."""
        if self.alive():
            processes.kill_tree(self._process.pid)
        return self._process.wait()

    def discard(self) -> None:
        self.kill()
        self._connection.close()

    def _fail(self, message: str) -> Score:
        self.kill()
        return Score(None, error=message)


def serve(fd: int) -> None:
    """The worker's life: build the task it is told, then score what it is sent until the end."""
    processes.die_with_parent()
    connection = Connection(fd)
    name, params, memory_limit_mb = pickle.loads(connection.recv_bytes())
    try:
        task = tasks.get(name, **params)
        if memory_limit_mb is not None:
            import resource

            limit = memory_limit_mb * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except Exception as error:
        connection.send_bytes(pickle.dumps(f"{type(error).__name__}: {error}"))
        return
    connection.send_bytes(pickle.dumps(None))
    while True:
        try:
            item = connection.recv_bytes()
        except EOFError:
            return
        try:
            score = judge(task, *pickle.loads(item))
        except Exception as error:  # an item that does not unpickle here
            score = Score(None, error=f"exception: {type(error).__name__}: {error}")
        connection.send_bytes(pickle.dumps(score))


async def _await(score: Any) -> Score:
    return await score
