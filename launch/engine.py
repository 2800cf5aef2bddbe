"""A thread that decodes for many callers at once: jobs go in, events come out."""

from __future__ import annotations

import dataclasses
import queue
import threading
import traceback
from collections.abc import Iterator, Sequence

from jaxrl import sampler
from jaxrl.types import Completion, Params, Request


@dataclasses.dataclass
class Job:
    """Requests of one caller."""

    requests: Sequence[Request]
    stream: bool
    """Whether the caller wants to see unfinished completions."""
    events: queue.SimpleQueue[Completion | Exception] = dataclasses.field(
        default_factory=queue.SimpleQueue
    )
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)
    started: bool = False
    left: int = 0
    """Requests that have started and not ended."""


@dataclasses.dataclass
class Engine:
    """What the thread and its callers share."""

    setup: sampler.Setup
    params: Params
    inbox: queue.Queue[Job | None]
    """Jobs that wait; full when too many do. None ends the thread."""


def start(setup: sampler.Setup, params: Params, *, waiting: int) -> Engine:
    """Start a thread that decodes; at most `waiting` jobs queue."""
    engine = Engine(setup, params, queue.Queue(maxsize=waiting))
    threading.Thread(target=_serve, args=(engine,), daemon=True).start()
    return engine


def submit(engine: Engine, job: Job) -> None:
    """Hand a job in.

    Raises:
      queue.Full: too many jobs wait.
    """
    engine.inbox.put_nowait(job)


def completions(job: Job) -> Iterator[Completion]:
    """What becomes of a job's requests, unfinished completions among it if it streams.

    Raises:
      RuntimeError: decoding failed; the engine goes on with other jobs.
    """
    left = len(job.requests)
    while left:
        event = job.events.get()
        if isinstance(event, Exception):
            raise RuntimeError(f"decoding failed: {event}") from event
        left -= event.finished
        yield event


def _serve(engine: Engine) -> None:
    work, jobs = sampler.Work(), []
    while True:
        # Jobs are taken while there is room for them, so that the inbox can be full.
        room = not work.queue and all(job.started for job in jobs)
        if not jobs or (room and not engine.inbox.empty()):
            job = engine.inbox.get()
            if job is None:
                return
            jobs.append(job)
        try:
            jobs = _round(engine, work, jobs)
        except Exception as error:  # a bug must not leave its callers waiting for ever
            traceback.print_exc()
            for job in jobs:
                job.events.put(error)
            work, jobs = sampler.Work(), []


def _round(engine: Engine, work: sampler.Work, jobs: list[Job]) -> list[Job]:
    """Start what can start, decode a chunk, tell the callers; the jobs that are left."""
    for job in jobs:
        if job.cancelled.is_set() and job.started:
            sampler.release(work, [r.id for r in job.requests])
    jobs = [job for job in jobs if not job.cancelled.is_set()]
    going = {r.id for job in jobs if job.started for r in job.requests}
    for job in jobs:
        # An id names a random stream and a request: those of one seed take turns.
        if not job.started and not going & {r.id for r in job.requests}:
            sampler.submit(engine.setup, work, job.requests)
            job.started, job.left = True, len(job.requests)
            going |= {r.id for r in job.requests}
    done = sampler.advance(engine.setup, engine.params, work)
    owner = {r.id: job for job in jobs if job.started for r in job.requests}
    for completion in done:
        owner[completion.request.id].left -= 1
        owner[completion.request.id].events.put(completion)
    if any(job.stream for job in jobs):
        for completion in sampler.unfinished(engine.setup, work):
            if owner[completion.request.id].stream:
                owner[completion.request.id].events.put(completion)
    return [job for job in jobs if job.left or not job.started]
