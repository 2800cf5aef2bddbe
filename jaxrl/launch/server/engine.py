"""A thread that decodes for many callers at once: jobs go in, events come out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, head, lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import requests, sampler
from jaxrl.sampling.decode import ROWS, by_position
from jaxrl.types import Completion, Params, Request

_LOOK_S = 0.2
"""Between two looks at whether a caller is still there."""


class Scored(NamedTuple):
    """Log-probabilities of a prompt's tokens but the first, given those before, untempered."""

    logp: np.ndarray
    """[T - 1] float32."""
    top_ids: np.ndarray
    """[T - 1, K] int32, the most likely tokens, best first."""
    top_logp: np.ndarray
    """[T - 1, K] float32."""


class Gone(Exception):
    """The caller has hung up."""


class Refused(Exception):
    """A request that gets an error for an answer, with a status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(eq=False)
class Job:
    """Requests of one caller, all of one adapter."""

    requests: Sequence[Request]
    """To sample; those of a prompt that is only scored have a budget of no tokens."""
    stream: bool
    """Whether the caller wants to see unfinished completions."""
    scores: bool = False
    """Whether the prompts are scored too."""
    events: queue.SimpleQueue[Completion | Exception] = dataclasses.field(
        default_factory=queue.SimpleQueue
    )
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)
    scored: dict[tuple[int, ...], Scored] = dataclasses.field(default_factory=dict)
    """By prompt; complete before the first event."""
    started: bool = False
    ended: set[int] = dataclasses.field(default_factory=set)
    """Ids of requests whose completion has been handed out."""
    cached_by_prompt: dict[tuple[int, ...], int] = dataclasses.field(default_factory=dict)
    """Tokens that the prefix cache had, by prompt; of the first of its requests."""

    @property
    def cached(self) -> int | None:
        """Tokens that the prefix cache had, of the prompts of all requests; None: there is none."""
        if not self.cached_by_prompt:
            return None
        return sum(self.cached_by_prompt.get(r.prompt, 0) for r in self.requests)

    @property
    def left(self) -> list[Request]:
        """Requests that have not ended."""
        return [r for r in self.requests if r.id not in self.ended]


@dataclasses.dataclass
class Engine:
    """What the thread and its callers share."""

    setup: sampler.Setup
    params: Params
    waiting: int
    """Jobs that may wait."""
    inbox: deque[Job] = dataclasses.field(default_factory=deque)
    changed: threading.Condition = dataclasses.field(default_factory=threading.Condition)
    """Held to read or change the inbox; notified when there is something in it."""
    tokens: int = 0
    """Sampled so far."""


def start(setup: sampler.Setup, params: Params, *, waiting: int) -> Engine:
    """Start a thread that decodes; at most `waiting` jobs queue."""
    engine = Engine(setup, params, waiting)
    threading.Thread(target=_serve, args=(engine,), daemon=True).start()
    return engine


def submit(engine: Engine, job: Job) -> None:
    """Hand a job in.

    Raises:
      queue.Full: too many jobs wait.
    """
    with engine.changed:
        _drop_cancelled(engine)
        if len(engine.inbox) >= engine.waiting:
            raise queue.Full
        engine.inbox.append(job)
        engine.changed.notify()


def completions(job: Job, present: Callable[[], bool] = lambda: True) -> Iterator[Completion]:
    """What becomes of a job's requests, unfinished completions among it if it streams.

    Args:
      job: one that was submitted.
      present: whether the caller still waits; asked now and then.

    Raises:
      ValueError: the job's requests cannot be sampled.
      RuntimeError: decoding failed; the engine continues with other jobs.
      Gone: the caller does not.
    """
    left, looked = len(job.requests), time.monotonic()
    while left:
        event = None
        with contextlib.suppress(queue.Empty):
            event = job.events.get(timeout=_LOOK_S)
        if time.monotonic() - looked >= _LOOK_S:
            looked = time.monotonic()
            if not present():
                raise Gone
        if event is None:
            continue
        if isinstance(event, ValueError):
            raise event
        if isinstance(event, Exception):
            raise RuntimeError(f"decoding failed: {event}") from event
        left -= event.finished
        yield event


def _drop_cancelled(engine: Engine) -> None:
    gone = [job for job in engine.inbox if job.cancelled.is_set()]
    for job in gone:
        engine.inbox.remove(job)


def _serve(engine: Engine) -> None:
    work, jobs = sampler.Work(), list[Job]()
    suspects = deque[Job]()  # one of them has made decoding fail, so each goes alone
    while True:
        if suspects and not jobs:
            jobs = [suspects.popleft()]
        # Jobs are taken while there is room for them, so that the inbox can be full.
        elif not suspects and not work.queue and all(job.started for job in jobs):
            with engine.changed:
                if not jobs:
                    engine.changed.wait_for(lambda: engine.inbox)
                _drop_cancelled(engine)
                if engine.inbox:
                    jobs.append(engine.inbox.popleft())
        try:
            jobs = _round(engine, work, jobs)
        except Exception as error:  # a bug must not leave its callers waiting for ever
            traceback.print_exc()
            if len(jobs) == 1:
                jobs[0].events.put(error)
            else:
                # What is sampled depends on the request alone, so beginning again changes nothing.
                suspects.extend(jobs)
            for job in jobs:
                job.started = False
            work, jobs = sampler.Work(), []


def _round(engine: Engine, work: sampler.Work, jobs: list[Job]) -> list[Job]:
    """Start what can start, decode a chunk, tell the callers; the jobs that are left."""
    gone = {job for job in jobs if job.cancelled.is_set()}  # looked at once: more may go meanwhile
    for job in gone:
        if job.started:
            sampler.release(work, [r.id for r in job.left])
    jobs = [job for job in jobs if job not in gone]
    going = {r.id for job in jobs if job.started for r in job.left}
    for job in list(jobs):
        # An id names a random stream and a request: those of one seed take turns.
        if not job.started and not going & {r.id for r in job.left}:
            try:
                _begin(engine, work, job)
            except Exception as error:
                job.events.put(error)
                jobs.remove(job)
                continue
            going |= {r.id for r in job.left}
    done = sampler.advance(engine.setup, engine.params, work)
    owner = {r.id: job for job in jobs if job.started for r in job.left}
    for job in jobs:
        for request in job.left if job.started else ():
            if request.id in work.cached_by_id:
                job.cached_by_prompt.setdefault(request.prompt, work.cached_by_id[request.id])
    if any(job.stream for job in jobs):
        done += [c for c in sampler.unfinished(engine.setup, work) if owner[c.request.id].stream]
    for completion in done:
        _tell(owner[completion.request.id], completion)
        engine.tokens += len(completion.tokens) if completion.finished else 0
    return [job for job in jobs if job.left or not job.started]


def _begin(engine: Engine, work: sampler.Work, job: Job) -> None:
    """Score a job's prompts and queue its requests, or raise and leave `work` as it was."""
    setup = engine.setup
    # As the sampler will lay them out, so that what has no such form fails here and alone.
    requests.settings_of(job.left, setup.config.vocab_size, len(job.left), setup.features.biases)
    sampled = [r for r in job.left if r.max_new_tokens]
    sampler.submit(setup, work, sampled)
    if job.scores:
        try:
            for prompt, adapter in dict.fromkeys((r.prompt, r.adapter) for r in job.left):
                if prompt not in job.scored:
                    job.scored[prompt] = score(setup, engine.params, prompt, adapter)
        except Exception:
            sampler.release(work, [r.id for r in sampled])
            raise
    job.started = True
    for request in job.left:
        if not request.max_new_tokens:
            _tell(job, _nothing(request, setup.features.top))


def _tell(job: Job, completion: Completion) -> None:
    if completion.finished:
        job.ended.add(completion.request.id)
    job.events.put(completion)


def _nothing(request: Request, top: int) -> Completion:
    """The completion of a request for no tokens."""
    none, ids = np.zeros(0, np.float32), np.zeros(0, np.int32)
    rows = np.zeros((0, min(top, request.top_logprobs)))
    return Completion(
        request, ids, none, none, ids, False, ids.astype(np.int8),
        top_ids=rows.astype(np.int32), top_logp=rows.astype(np.float32),
    )  # fmt: skip


def score(setup: sampler.Setup, params: Params, prompt: Sequence[int], adapter: int = 0) -> Scored:
    """Log-probabilities of the tokens of a prompt of at most `setup.max_prompt` tokens.

    Args:
      setup: of the sampler; as many alternatives are given as its features have.
      params: as from `decoder.unstack`.
      prompt: token ids.
      adapter: as `Request.adapter`.
    """
    width = min(round_up(len(prompt), ROWS), round_up(setup.max_prompt, ROWS))
    tokens = np.zeros(width, np.int32)
    tokens[: len(prompt)] = prompt
    rows = np.array([adapter], np.int32)
    outputs = jax.device_get(
        _score(setup.config, setup.features.top, params, tokens, np.int32(len(prompt)), rows)
    )
    return Scored(*(a[: len(prompt) - 1] for a in outputs))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _score(
    config: DecoderConfig,
    top: int,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
    adapter: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`score` of tokens [P], of which `length` are real, under an adapter [1]."""
    params = lora_stack.choose(params, adapter)
    matrix = decoder.unembedding(params)

    def rows(hidden: jax.Array, following: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        scores = head.logits(hidden, matrix, softcap=config.logit_softcap)
        logp = jax.nn.log_softmax(scores, axis=-1)
        best, ids = jax.lax.top_k(logp, top)
        return jnp.take_along_axis(logp, following[:, None], axis=-1)[:, 0], ids, best

    return by_position(config, params, tokens, length, rows)
