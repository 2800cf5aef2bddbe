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
import functools
import inspect
import json
import os
import pickle
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from jaxrl.data import processes, sandbox, scratch, sources, tasks
from jaxrl.data.environments import Opening, Reply, Turn, play
from jaxrl.data.types import Problem, Score, Task
from jaxrl.data.workers import Failed, Worker

_GRACE_S = 5.0  # for a machine that is busy
_WAITING = 64  # episodes whose environments are waited for at once
_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME",
    "PYTHONHASHSEED", "VIRTUAL_ENV", "HF_HOME", "HF_DATASETS_CACHE", "TFDS_DATA_DIR",
    "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


OnScore = Callable[[Problem, str, Score], None]


class _Job(NamedTuple):
    item: bytes
    limit_s: float
    read: Callable[[bytes, int], Any]
    """`(what a worker wrote, the number of the message that it must answer) -> result`."""
    failed: Callable[[str], Any]
    """The result where there is none, for the reason."""
    late: Callable[[], Any]
    """The result of an item that overran the limit."""
    future: Future[Any]


def score_completion(task: Task, problem: Problem, completion: str) -> Score:
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
        on_score: OnScore | None = None,
        ahead: bool = False,
    ) -> None:
        self.isolation = isolation
        """What programs run in, if the task runs any."""
        self._task = task
        self._player = play.Player(task)
        self._waiting: ThreadPoolExecutor | None = None
        self._spec = pickle.dumps((task.name, dict(task.params), memory_limit_mb))
        self._limit = time_limit_s
        self._environment = _environment(task, isolation)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._on_score = on_score
        self._ahead = ahead
        self._closed = False
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._threads = [
            threading.Thread(target=self._watch, name=f"scoring-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, problem: Problem, completion: str) -> Future[Score]:
        """Queue one item. The future always gets a Score; it never raises what a scorer raised."""
        future: Future[Score] = Future()
        if self._on_score is not None:
            future.add_done_callback(
                lambda done: done.cancelled() or self._on_score(problem, completion, done.result())
            )
        if not self._threads:
            future.set_result(score_completion(self._task, problem, completion))
            return future
        try:
            item = pickle.dumps((problem, completion))
            limit_s, on_timeout = _limits(self._task.of(problem), problem, self._limit)
        except Exception as error:
            message = f"exception: problem {problem.id!r} does not pickle, or has no limit: {error}"
            future.set_result(Score(None, error=message))
            return future
        late = functools.partial(_late, limit_s, on_timeout)
        return self._put(_Job(item, limit_s, _read_score, _unscored, late, future))

    def act(self, turn: Turn) -> Future[Opening | Reply]:
        """Queue a turn of an episode; the future gets what the environment answers.

        It never raises: what fails, or takes longer than the pool's limit, is an answer's `error`.
        A worker that does not remember the episode plays its actions again within the same limit.
        """
        environment = self._task.of(turn.problem).turns
        if environment.waits:
            return self._threads_for_waiting().submit(self._player.answer, turn)
        future: Future[Opening | Reply] = Future()
        if not self._threads:
            future.set_result(self._player.answer(turn))
            return future
        failed = functools.partial(play.failed, turn)
        try:
            item = pickle.dumps(turn)
        except Exception as error:
            future.set_result(failed(f"exception: the problem does not pickle: {error}"))
            return future
        read = functools.partial(play.read, turn=turn, environment=environment)
        late = functools.partial(failed, f"timeout: no reply after {self._limit:g} s")
        return self._put(_Job(item, self._limit, read, failed, late, future))

    def over(self, episode: int) -> None:
        """Close an episode that has ended without its environment, as by its budget of tokens."""
        self._player.forget(episode)

    def _threads_for_waiting(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise RuntimeError("this scoring pool is closed; open another")
            self._waiting = self._waiting or ThreadPoolExecutor(_WAITING, "waiting")
            return self._waiting

    def _put(self, job: _Job) -> Future[Any]:
        with self._lock:
            if self._closed:
                raise RuntimeError("this scoring pool is closed; open another")
            self._jobs.put(job)
        return job.future

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
        if self._waiting is not None:
            self._waiting.shutdown(wait=False, cancel_futures=True)
        self._player.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        """Feed one worker at a time, from its first item until the pool closes."""
        if worker := self._replace(None, self._ahead):
            worker.prepare()
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            if worker is None or not worker.alive():
                worker = self._replace(worker)
            result = _answered(worker, job) if worker else None
            if self._closed:
                result = job.failed("closed: the pool was closed before this was answered")
            job.future.set_result(result)
        self._replace(worker, start=False)

    def _replace(self, worker: Worker | None, start: bool = True) -> Worker | None:
        if worker is not None:
            worker.discard()
        with self._lock:
            self._workers.discard(worker)
            if self._closed or not start:
                return None
            fresh = Worker(self._spec, self._environment)
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
    on_score: OnScore | None = None,
    ahead: bool = False,
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
      on_score: called with each problem, completion and score as soon as the score is there, in a
        thread of the pool.
      ahead: start the workers now, so that no item waits while they import.

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
        on_score,
        ahead,
    )


def _limits(task: Task, problem: Problem, limit_s: float) -> tuple[float, float | None]:
    """The time limit of a problem's completions, and what one that overruns it scores.

    A reward that keeps its own time handles a slow completion itself: that such a reward overruns
    is a failure of its own.
    """
    if task.seconds is None:
        return limit_s, task.on_timeout
    return max(limit_s, task.seconds(problem) + _GRACE_S), None


def _environment(task: Task, isolation: sandbox.Isolation | None) -> dict[str, str]:
    """What a worker gets of this process's environment: nothing that could be secret."""
    kept = {*_ENVIRONMENT, *task.environment}
    kept |= {name for each in task.parts.values() for name in each.environment}
    return {
        **{k: v for k, v in os.environ.items() if k in kept or k.startswith("LC_")},
        **({sandbox.ALLOW_WEAK: "1"} if isolation and isolation.kind == "rlimits" else {}),
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        "JAX_PLATFORMS": "cpu",  # a scorer that imports jax must not take the accelerator
        "OMP_NUM_THREADS": "1",
    }


def _answered(worker: Worker, job: _Job) -> Any:
    """The result of an item; after a time-out or a crash the worker is dead."""
    try:
        result = job.read(*worker.ask(job.item, job.limit_s))
    except TimeoutError:
        worker.kill()
        return job.late()
    except Failed as error:
        worker.kill()
        return job.failed(str(error))
    if result.error and result.error.startswith("reply:"):
        worker.kill()  # what it says next may answer something else
    return result


def _unscored(error: str) -> Score:
    return Score(None, error=error)


def _late(limit_s: float, on_timeout: float | None) -> Score:
    if on_timeout is None:
        return Score(None, error=f"timeout: no score after {limit_s:g} s")
    return Score(on_timeout, timed_out=True)


def serve(fd: int) -> None:
    """The worker's life: build the task it is given, then score what it is sent until the end."""
    processes.die_with_parent()
    processes.hide()  # what a sandboxed program of this user must not read
    with socket.socket(fileno=fd) as connection, connection.makefile("rb") as stream:

        def answer(value: Any) -> None:
            connection.sendall(json.dumps(value).encode() + b"\n")

        name, params, memory_limit_mb = pickle.loads(_next(stream)[1])
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
        player = play.Player(task)
        while (message := _next(stream))[1]:
            number, item = message
            try:
                given = pickle.loads(item)
            except Exception as error:  # an item that does not unpickle here
                score = Score(None, error=f"exception: {type(error).__name__}: {error}")
                answer(_written(score, number))
                continue
            if isinstance(given, Turn):
                answer(play.written(player.answer(given), number))
            else:
                answer(_written(score_completion(task, *given), number))


def _next(stream: Any) -> tuple[int, bytes]:
    """The number of the next message, and the message; empty when there is none."""
    head = stream.read(16)
    if len(head) < 16:
        return 0, b""
    number, length = struct.unpack("!QQ", head)
    return number, stream.read(length)


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
        reply = json.loads(line)
        error = reply["error"]
        if not (error is None or isinstance(error, str)) or not isinstance(reply["parts"], dict):
            raise ValueError("not a score")
        if reply["answers"] != number:
            raise ValueError(f"it answers message {reply['answers']!r}, not {number}")
        return Score(reply["value"], reply["parts"], error, reply["timed_out"] is True)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Score(None, error=f"reply: the worker's answer is no score: {error}")


async def _await(score: Any) -> Score:
    return await score
