"""Scoring in worker processes under hard time limits: a hung or crashing scorer costs one item.

Each worker is a fresh interpreter that rebuilds the task by name, and is watched by a thread of
this process. A worker that overruns the limit or dies is killed with its children and replaced, and
no other item notices. An item that overran gets the score that the task states for that; one whose
worker died is an error. Nothing relies on signals in this process, so a pool may be used from any
thread.

A worker has no secrets of this process in its environment, and what it answers is JSON: a scorer
that a completion subverts can lie about scores, but runs nothing here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import queue
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from jaxrl.data import processes, sandbox, scratch, sources, tasks
from jaxrl.data.types import Problem, Score, Task

START_LIMIT_S = 120.0
"""How long a worker may take to import and build the task."""

_GRACE_S, _LONGEST_REPLY = 5.0, 1 << 20  # for a machine that is busy; bytes
_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME",
    "PYTHONHASHSEED", "VIRTUAL_ENV", "HF_HOME", "HF_DATASETS_CACHE", "TFDS_DATA_DIR",
    "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


class _Job(NamedTuple):
    item: bytes
    limit_s: float
    on_timeout: float | None
    future: Future[Score]


def judge(task: Task, problem: Problem, completion: str) -> Score:
    """The task's score of one completion; what the reward raises becomes the score's error."""
    try:
        score = task.reward(problem, completion)
        if inspect.isawaitable(score):
            score = asyncio.run(_await(score))
        if not isinstance(score, Score):
            raise TypeError(f"the reward returned {score!r}; return a jaxrl.data.types.Score")
        return score
    except (Exception, SystemExit) as error:
        return Score(None, error=f"exception: {type(error).__name__}: {error}")


class Pool:
    """Scores completions; made by `open_pool`, and a context manager that closes itself."""

    def __init__(
        self,
        task: Task,
        workers: int,
        time_limit_s: float,
        memory_limit_mb: int | None,
        isolation: sandbox.Isolation | None,
        told: Callable[[Score], None] | None = None,
    ) -> None:
        self.isolation = isolation
        """What programs run in, if the task runs any."""
        self._task = task
        self._spec = pickle.dumps((task.name, dict(task.params), memory_limit_mb))
        self._limit = time_limit_s
        self._environment = _environment(task, isolation)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._told = told
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
        if self._told is not None:
            future.add_done_callback(lambda done: done.cancelled() or self._told(done.result()))
        if not self._threads:
            future.set_result(judge(self._task, problem, completion))
            return future
        try:
            item = pickle.dumps((problem, completion))
            limit_s, on_timeout = _limits(self._task.of(problem), problem, self._limit)
        except Exception as error:
            message = f"exception: problem {problem.id!r} does not pickle, or has no limit: {error}"
            future.set_result(Score(None, error=message))
            return future
        with self._lock:
            if self._closed:
                raise RuntimeError("this scoring pool is closed; open another")
            self._jobs.put(_Job(item, limit_s, on_timeout, future))
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
            if not job.future.set_running_or_notify_cancel():
                continue
            if worker is None or not worker.alive():
                worker = self._replace(worker)
            score = worker.score(job) if worker else None
            if self._closed:
                score = Score(None, error="closed: the pool was closed before this was scored")
            job.future.set_result(score)
        self._replace(worker, start=False)

    def _replace(self, worker: _Worker | None, start: bool = True) -> _Worker | None:
        if worker is not None:
            worker.discard()
        with self._lock:
            self._workers.discard(worker)
            if self._closed or not start:
                return None
            fresh = _Worker(self._spec, self._environment)
            self._workers.add(fresh)
            return fresh


def open_pool(
    task_name: str,
    task_params: Mapping[str, Any] | None = None,
    *,
    workers: int,
    time_limit_s: float = 10.0,
    memory_limit_mb: int | None = None,
    allow_weak: bool = False,
    told: Callable[[Score], None] | None = None,
) -> Pool:
    """A pool that scores completions of one task.

    A task that runs programs is refused where no sandbox works that is allowed; `isolation` of the
    pool is the one that its programs get.

    Args:
      task_name: as in `jaxrl.data.tasks.get`.
      task_params: its parameters; they must pickle.
      workers: processes, each started when first needed. 0 scores in the calling thread where the
        task's reward is pure, see `jaxrl.data.types.Task`, and in one worker where it is not.
      time_limit_s: wall-clock limit of one item, the worker's start not included. A task that keeps
        limits of its own is given what those allow, if it is more.
      memory_limit_mb: limit of a worker's address space; None for no limit.
      allow_weak: for a task that runs programs, take resource limits where bubblewrap does not
        work; see `jaxrl.data.sandbox`.
      told: called with each score as soon as it is there, in a thread of the pool.

    Raises:
      ValueError: an unknown task or parameter, or a limit that cannot be.
      RuntimeError: the task runs programs, and no sandbox that is allowed works here.
    """
    if workers < 0:
        raise ValueError(f"workers={workers} must be 0 (score in this thread) or more")
    if time_limit_s <= 0:
        raise ValueError(f"time_limit_s={time_limit_s} must be positive")
    task = tasks.get(task_name, **(task_params or {}))
    isolation = None
    if task.sandboxed:
        isolation = sandbox.check(allow_weak)
        if isolation.kind == "rlimits" and not isolation.own_user:
            processes.hide()  # programs run as this user
    scratch.sweep()  # what killed processes left
    return Pool(
        task,
        workers if task.pure else max(workers, 1),
        time_limit_s,
        memory_limit_mb,
        isolation,
        told,
    )


def _limits(task: Task, problem: Problem, limit_s: float) -> tuple[float, float | None]:
    """The time limit of a problem's completions, and what one that overruns it scores.

    A reward that keeps its own time judges a slow completion itself: that such a reward overruns
    is a failure of its own.
    """
    if task.seconds is None:
        return limit_s, task.on_timeout
    return max(limit_s, task.seconds(problem) + _GRACE_S), None


def _environment(task: Task, isolation: sandbox.Isolation | None) -> dict[str, str]:
    """What a worker is told of this process's environment: nothing that could be secret."""
    kept = {*_ENVIRONMENT, *task.environment}
    kept |= {name for each in task.parts.values() for name in each.environment}
    return {
        **{k: v for k, v in os.environ.items() if k in kept or k.startswith("LC_")},
        **({sandbox.ALLOW_WEAK: "1"} if isolation and isolation.kind == "rlimits" else {}),
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        "JAX_PLATFORMS": "cpu",  # a scorer that imports jax must not take the accelerator
        "OMP_NUM_THREADS": "1",
    }


class _Worker:
    """A process that scores, seen from the parent."""

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
                f"from jaxrl.data import scoring; scoring.serve({theirs.fileno()})",
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**environment, "TMPDIR": self._scratch.name},
            start_new_session=True,
        )
        theirs.close()
        self._spec: bytes | None = spec

    def alive(self) -> bool:
        return self._process.poll() is None

    def score(self, job: _Job) -> Score:
        """One item's score; after a time-out or a crash the worker is dead."""
        start = time.monotonic()
        try:
            if self._spec is not None:
                try:
                    problem = json.loads(self._ask(self._spec, START_LIMIT_S))
                except TimeoutError:
                    return self._fail(f"start: the worker was not up after {START_LIMIT_S:g} s")
                self._spec = None
                if problem:
                    return self._fail(f"start: {problem}")
            start = time.monotonic()
            try:
                score = _read_score(self._ask(job.item, job.limit_s), self._asked)
                if score.error and score.error.startswith("reply:"):
                    self.kill()  # what it says next may answer something else
                return score
            except TimeoutError:
                if job.on_timeout is None:
                    return self._fail(f"timeout: no score after {job.limit_s:g} s")
                self.kill()
                return Score(job.on_timeout, timed_out=True)
        except (EOFError, OSError):
            after = time.monotonic() - start
            try:
                code = self._process.wait(1.0)  # its end may be seen after its last words
            except subprocess.TimeoutExpired:
                return self._fail(f"crash: the worker closed its connection after {after:.2g} s")
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            return Score(None, error=f"crash: the worker ended by {how} after {after:.2g} s")

    def kill(self) -> None:
        """End the process, if it has not ended by itself."""
        if self.alive():
            processes.kill_tree(self._process.pid)
        self._process.wait()

    def discard(self) -> None:
        self.kill()
        self._socket.close()
        self._scratch.cleanup()

    def _ask(self, message: bytes, limit_s: float) -> bytes:
        """The line that the worker answers.

        Raises:
          TimeoutError: it took too long.
          EOFError: it is gone, or says more than an answer can be.
        """
        deadline = time.monotonic() + limit_s
        self._socket.settimeout(limit_s)
        self._asked += 1
        self._socket.sendall(struct.pack("!QQ", self._asked, len(message)) + message)
        while b"\n" not in self._unread:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            heard = self._socket.recv(1 << 16)
            if not heard or len(self._unread) > _LONGEST_REPLY:
                raise EOFError
            self._unread += heard
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _fail(self, message: str) -> Score:
        self.kill()
        return Score(None, error=message)


def serve(fd: int) -> None:
    """The worker's life: build the task it is told, then score what it is sent until the end."""
    processes.die_with_parent()
    processes.hide()  # what a sandboxed program of this user must not read
    with socket.socket(fileno=fd) as connection, connection.makefile("rb") as told:

        def answer(value: Any) -> None:
            connection.sendall(json.dumps(value).encode() + b"\n")

        name, params, memory_limit_mb = pickle.loads(_next(told)[1])
        try:
            with sources.already_checked():
                task = tasks.get(name, **params)
            if memory_limit_mb is not None:
                import resource

                limit = memory_limit_mb * 2**20
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        except Exception as error:
            answer(f"{type(error).__name__}: {error}")
            return
        answer(None)
        while (message := _next(told))[1]:
            number, item = message
            try:
                score = judge(task, *pickle.loads(item))
            except Exception as error:  # an item that does not unpickle here
                score = Score(None, error=f"exception: {type(error).__name__}: {error}")
            answer(_written(score, number))


def _next(told: Any) -> tuple[int, bytes]:
    """The number of the next message, and the message; empty when there is none."""
    head = told.read(16)
    if len(head) < 16:
        return 0, b""
    number, length = struct.unpack("!QQ", head)
    return number, told.read(length)


def _written(score: Score, number: int) -> dict[str, Any]:
    return {
        "answers": number,
        "value": None if score.value is None else float(score.value),
        "parts": {str(name): float(part) for name, part in score.parts.items()},
        "error": score.error,
        "timed_out": score.timed_out,
    }


def _read_score(line: bytes, number: int) -> Score:
    """The score that a worker wrote, which is data from a process that may have been subverted.

    Args:
      number: of the message that it must answer.
    """
    try:
        told = json.loads(line)
        error = told["error"]
        if not (error is None or isinstance(error, str)) or not isinstance(told["parts"], dict):
            raise ValueError("not a score")
        if told["answers"] != number:
            raise ValueError(f"it answers message {told['answers']!r}, not {number}")
        return Score(told["value"], told["parts"], error, told["timed_out"] is True)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Score(None, error=f"reply: the worker's answer is no score: {error}")


async def _await(score: Any) -> Score:
    return await score
