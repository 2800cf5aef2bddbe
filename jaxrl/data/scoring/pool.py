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

import contextlib
import functools
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply, Turn, play
from jaxrl.data.sandbox import processes, runner, scratch
from jaxrl.data.scoring.async_environments import Waiting
from jaxrl.data.scoring.scoring_process import Loop, read_score, score_completion
from jaxrl.data.scoring.worker_queues import Queues
from jaxrl.data.scoring.workers import Failed, Worker
from jaxrl.data.types import Problem, Score, Task

_GRACE_S = 5.0  # for a machine that is busy
_CLOSING_S = 5.0
_FIRST_CALL = 10
"""Limits of an item that a process gets for its first, after another has run out of time in it."""
_IN_FLIGHT = 1 << 14  # episodes that are remembered in this process
_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME",
    "PYTHONHASHSEED", "VIRTUAL_ENV", "HF_HOME", "HF_DATASETS_CACHE", "TFDS_DATA_DIR",
    "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


OnScore = Callable[[Problem, str, Score], None]


class _Job(NamedTuple):
    item: bytes
    limit_s: float
    again_s: float
    """The limit where an episode has to be played again."""
    read: Callable[[bytes, int], Any]
    """`(what a worker wrote, the number of the message that it must answer) -> result`."""
    failed: Callable[[str], Any]
    """The result where there is none, for the reason."""
    late: Callable[[float], Any]
    """The result of an item that overran the limit, in seconds."""
    future: Future[Any]


class Pool:
    """Scores completions; made by `open_pool`, and a context manager that closes itself."""

    def __init__(
        self,
        task: Task,
        workers: int,
        time_limit_s: float,
        memory_limit_mb: int | None,
        isolation: runner.Isolation | None,
        on_score: OnScore | None = None,
        ahead: bool = False,
    ) -> None:
        self.isolation = isolation
        """What programs run in, if the task runs any."""
        self._task = task
        self._player = play.Player(task, _IN_FLIGHT)
        turns = [part.turns for part in (task, *task.parts.values()) if part.turns is not None]
        nothing = Environment._field_defaults["close"]
        self._closes = any(environment.close is not nothing for environment in turns)
        self._waiting = (
            Waiting(self._player) if any(environment.waits for environment in turns) else None
        )
        self._spec = pickle.dumps((task.name, dict(task.params), memory_limit_mb))
        self._limit = time_limit_s
        self._environment = _environment(task, isolation)
        self._queues = Queues(workers)
        self._on_score = on_score
        self._ahead = ahead
        self._acting: dict[int, list[Future[Opening | Reply]]] = {}
        """Answers that are asked for, by the episodes that are not over."""
        self._closed = False
        self._loop = Loop()
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._asked: set[Worker] = set()
        """Those of them that are answering."""
        self._threads = [
            threading.Thread(target=self._watch, args=(i,), name=f"scoring-{i}", daemon=True)
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
            future.set_result(score_completion(self._task, problem, completion, self._loop))
            return future
        try:
            item = pickle.dumps((problem, completion))
            task = self._task.of(problem)
            limit_s, on_timeout = _limits(task, problem, self._limit)
            limit_s *= max(1, len(json.loads(completion))) if task.grouped else 1
        except Exception as error:
            message = f"exception: problem {problem.id!r} does not pickle, or has no limit: {error}"
            future.set_result(Score(None, error=message))
            return future
        late = functools.partial(_late, on_timeout=on_timeout)
        return self._put(_Job(item, limit_s, limit_s, read_score, _unscored, late, future))

    def act(self, turn: Turn) -> Future[Opening | Reply]:
        """Queue a turn of an episode; the future gets what the environment answers.

        It never raises: what fails, or takes longer than the environment's limit and the pool's, is
        an answer's `error`. What does not remember the episode plays its actions again, within the
        limits of all of them.
        """
        future, before = self._act(turn), self._acting.get(turn.episode, ())
        self._acting[turn.episode] = [*(answer for answer in before if not answer.done()), future]
        return future

    def _act(self, turn: Turn) -> Future[Opening | Reply]:
        task = self._task.of(turn.problem)
        future: Future[Opening | Reply] = Future()
        if self.plays_here(turn.problem):
            future.set_result(self._player.answer(turn))
            return future
        failed = functools.partial(play.failed, turn)
        try:
            limit_s, again_s = _turn_limits(task, turn, self._limit)
            item = b"" if task.turns.waits else pickle.dumps(turn)
        except Exception as error:
            message = f"exception: the problem does not pickle, or has no limit: {error}"
            future.set_result(failed(message))
            return future
        if task.turns.waits:
            with self._lock:
                self._check_open()
            return self._waiting.ask(turn, limit_s if self._player.knows(turn.episode) else again_s)
        read = functools.partial(play.read, turn=turn, environment=task.turns)

        def late(seconds: float) -> Opening | Reply:
            return failed(f"timeout: no reply after {seconds:g} s")

        return self._put(_Job(item, limit_s, again_s, read, failed, late, future), turn.episode)

    def plays_here(self, problem: Problem) -> bool:
        """Whether `act` itself asks the environment, so that its answer is there at once."""
        return not (self._task.of(problem).turns.waits or self._threads)

    def over(self, episode: int) -> None:
        """Close an episode that has ended without its environment, as by its budget of tokens.

        An answer that it is still asked for is given up.
        """
        for future in self._acting.pop(episode, ()):
            future.cancel()
        if self._waiting is not None:
            self._waiting.over(episode)
        else:
            self._player.forget(episode)
        self._forget(episode)

    def _forget(self, episode: int, but: int | None = None) -> None:
        """Tell the workers that have played an episode that it is over."""
        for worker in self._queues.over(episode, but):
            item, late = pickle.dumps(episode), functools.partial(_late, on_timeout=None)
            job = _Job(item, self._limit, self._limit, read_score, _unscored, late, Future())
            self._queues.put(job, worker=worker)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this scoring pool is closed; open another")

    def _put(self, job: _Job, episode: int | None = None) -> Future[Any]:
        with self._lock:
            self._check_open()
            self._queues.put(job, episode)
        return job.future

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[Score]:
        """The scores of (problem, completion) pairs, in order."""
        futures = [self.submit(*item) for item in items]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the workers. What was still queued or running becomes a "closed" error.

        A worker that is not answering first closes the episodes that it remembers, for at most some
        seconds.
        """
        with self._lock:
            self._closed = True
            for worker in self._asked:
                worker.kill()
        self._queues.close()
        for thread in self._threads:
            thread.join()
        if self._waiting is not None:
            self._waiting.close()
        self._player.close()
        self._loop.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self, number: int) -> None:
        """Feed one worker at a time, from its first item until the pool closes."""
        played, worker, fresh = False, None, _First()
        if self._ahead:
            with contextlib.suppress(Exception):  # if it fails again, the first item says why
                worker = self._started()
                if worker is not None:
                    worker.prepare()
        while (entry := self._queues.take(number)) is not None:
            job, episode, resumes = entry
            played |= episode is not None
            if not job.future.set_running_or_notify_cancel():
                continue
            result = None
            try:
                if worker is None or not worker.alive():
                    lost, worker, resumes = worker, None, False
                    self._discard(lost)
                    worker = self._started()
                if self._begins(worker):
                    result = fresh.answered(worker, job, job.limit_s if resumes else job.again_s)
            except Exception as error:  # whatever it is, the thread goes on with the next item
                result = job.failed(f"pool: {type(error).__name__}: {error}")
                lost, worker = worker, None
                with contextlib.suppress(Exception):
                    self._discard(lost)
            with self._lock:
                self._asked.discard(worker)
            if worker is None or not worker.alive():
                self._queues.ended(number)
            if self._closed:
                result = job.failed("closed: the pool was closed before this was answered")
            elif episode is not None and (result.error or getattr(result, "done", False)):
                self._forget(episode, but=number)
            job.future.set_result(result)
        if worker is not None and worker.alive() and self._closes and played:
            worker.end(_CLOSING_S)
        self._discard(worker)

    def _begins(self, worker: Worker | None) -> bool:
        """Whether a worker is asked, which closing the pool then interrupts."""
        with self._lock:
            if worker is None or self._closed:
                return False
            self._asked.add(worker)
            return True

    def _started(self) -> Worker | None:
        """A new worker, unless the pool is closed."""
        with self._lock:
            if self._closed:
                return None
            fresh = Worker(self._spec, self._environment)
            self._workers.add(fresh)
            return fresh

    def _discard(self, worker: Worker | None) -> None:
        """End a worker, if there is one."""
        with self._lock:
            self._workers.discard(worker)
            self._asked.discard(worker)
        if worker is not None:
            worker.discard()


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
      time_limit_s: wall-clock limit of one completion, the worker's start not included. A task that
        keeps limits of its own is given what those allow, if it is more. Completions that are
        scored together have the sum of their limits.
      memory_limit_mb: what a worker, and each process that it starts, may write to (Linux); one
        that reaches it costs an item, and is replaced. None: no limit.
      allow_weak: for a task that runs programs, take resource limits where bubblewrap does not
        work; see `jaxrl.data.sandbox.runner`.
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
        isolation = runner.check(allow_weak)
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


def _turn_limits(task: Task, turn: Turn, limit_s: float) -> tuple[float, float]:
    """The time limits of a turn, alone and with those before it."""
    seconds = task.turns.seconds
    if seconds is None:
        alone, _ = _limits(task, turn.problem, limit_s)
        return alone, alone
    limits = [seconds(turn.problem, action) for action in ("", *turn.actions)]
    return max(limit_s, limits[-1] + _GRACE_S), max(limit_s, sum(limits) + _GRACE_S)


def _environment(task: Task, isolation: runner.Isolation | None) -> dict[str, str]:
    """What a worker gets of this process's environment: nothing that could be secret."""
    names = {*_ENVIRONMENT, *task.environment}
    names |= {name for part in task.parts.values() for name in part.environment}
    return {
        **{k: v for k, v in os.environ.items() if k in names or k.startswith("LC_")},
        **({runner.ALLOW_WEAK: "1"} if isolation and isolation.kind == "rlimits" else {}),
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        "JAX_PLATFORMS": "cpu",  # a scorer that imports jax must not take the accelerator
        "OMP_NUM_THREADS": "1",
    }


class _First:
    """Gives a process more time for its first item where that of the one before ran out of time.

    What a function loads when it is first called then ends at most one item, and a function that
    never answers is not waited for a second time.
    """

    def __init__(self) -> None:
        self._answered: Worker | None = None
        """The worker that has answered."""
        self._late = 0
        """How often in a row a worker's first item has run out of time."""

    def answered(self, worker: Worker, job: _Job, limit_s: float) -> Any:
        """The result of an item; after a time-out or a crash the worker is dead."""
        first = self._answered is not worker
        patient = first and self._late == 1
        result = _answered(worker, job, limit_s * (_FIRST_CALL if patient else 1))
        if worker.alive():
            self._answered, self._late = worker, 0
        elif first:
            self._late += 1
        return result


def _answered(worker: Worker, job: _Job, limit_s: float) -> Any:
    """The result of an item; after a time-out or a crash the worker is dead."""
    try:
        result = job.read(*worker.ask(job.item, limit_s))
    except TimeoutError:
        worker.kill()
        return job.late(limit_s)
    except Failed as error:
        worker.kill()
        return job.failed(str(error))
    if result.error and result.error.startswith(("reply:", "memory:")):
        worker.kill()  # what it says next may answer something else, and it may keep its memory
    return result


def _unscored(error: str) -> Score:
    return Score(None, error=error)


_LOADING = (
    "; load a model when the module is imported or in its function setup(), or raise "
    "--score-seconds"
)


def _late(limit_s: float, on_timeout: float | None) -> Score:
    if on_timeout is None:
        return Score(None, error=f"timeout: no score after {limit_s:g} s{_LOADING}")
    return Score(on_timeout, timed_out=True)
