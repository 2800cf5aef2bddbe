"""The actor of a run in a process of its own, which may die and return while the learner goes on.

The learner asks for a segment of play under the parameters of now, and updates until it is there.
The channel is that of the generators of language models, `jaxrl.rollout.generators.Handle`, over a
socket to a process of this machine. An actor that dies is started anew, plays the unfinished
episodes once more, see `jaxrl.control.environment.Trail`, and then the segment that was lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control import algorithms, environments, host
from jaxrl.control.environment import Environment, Trail
from jaxrl.control.program import Carry, Program, split
from jaxrl.data.offline.transitions import Transitions

_RESTARTS = 5
"""In a row; the death after the last of them ends the run."""
_PATIENCE = 2.0
"""Seconds that an actor has for closing its environments, before it is killed."""


class Role(NamedTuple):
    """What an actor is made of."""

    algorithm: str
    config: Any
    env: str
    env_args: dict[str, Any]
    seeds: int


class Segment(NamedTuple):
    """What an actor is asked for; leaves begin with the axis of the seeds."""

    warm: bool
    """Whether the policy of the warm-up plays."""
    params: Any
    keys: Any
    steps: int
    numbers: Sequence[int]
    """Seeds of the worlds, for an actor that has none yet."""
    trail: Trail | None
    """The unfinished episodes, for such a one; None at the very start."""


class Played(NamedTuple):
    """A segment as it was played."""

    rows: list[Transitions]
    """Of each step, leaves [S, W, ...]."""
    clocks: list[np.ndarray]
    """[S, W] before each step."""
    trail: Trail
    """Leaves [S, W, ...]."""
    repeated: bool
    """Whether the unfinished episodes came out as they had been; True where none were."""


class _Worlds:
    """The environments of an actor, and the policies that play them."""

    def __init__(self, role: Role) -> None:
        module = algorithms.load(role.algorithm)
        self._env = environments.get(role.env, **role.env_args)
        (self._program,) = module.programs(self._env, role.config)
        algorithm, parts = self._program.algorithm, self._program.play
        self._shape = role.seeds, parts.worlds
        self._acts = {True: host.policy(parts.warm), False: host.policy(algorithm.act)}
        self._success = None if algorithm.success is None else jax.jit(algorithm.success)
        self._vector: host.Vector | None = None

    def play(self, segment: Segment) -> Played:
        repeated, shape = True, self._shape
        assert self._env.host is not None  # `jaxrl control` refuses others
        judge = self._judge(segment.params)
        if self._vector is None:
            self._vector = self._env.host(segment.numbers)
            self._vector.judge = judge
            if segment.trail is not None and not self._vector.replay(host.rows(segment.trail)):
                self._vector.close()
                self._vector, repeated = self._env.host(segment.numbers), False
        vector, act = self._vector, self._acts[segment.warm]
        vector.judge = judge
        rows, clocks = [], []
        for t in range(segment.steps):
            observations = vector.observations.reshape(*shape, -1)
            choices, _ = act(segment.params, segment.keys, t, observations, ())
            actions = np.asarray(choices)
            clocks.append(vector.clock.reshape(shape))
            played, _ = vector.step(actions.reshape(-1, *actions.shape[2:]))
            rows.append(jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), played))
        trail = Trail(*(x.reshape(*shape, *x.shape[1:]) for x in vector.trail))
        return Played(rows, clocks, trail, repeated)

    def _judge(self, params: Any) -> Callable[[int, np.ndarray], bool] | None:
        if self._success is None:
            return None
        success, (seeds, worlds) = self._success, self._shape
        of_seed = [jax.tree.map(lambda x, s=s: jnp.asarray(x[s]), params) for s in range(seeds)]
        return lambda i, flat: bool(success(of_seed[i // worlds], flat))

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()


def serve(descriptor: int) -> None:
    """Answer over a socket until its other end is closed; the whole of an actor's process."""
    connection = Connection(descriptor)
    worlds: _Worlds | None = None
    fault = ""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            break
        try:
            if isinstance(message, Role):
                worlds = _Worlds(message)
                reply: Any = os.getpid()
            else:
                reply = worlds.play(message) if worlds is not None else None
            answer = (worlds is not None, fault if worlds is None else reply)
        except Exception as error:  # whatever it is, the learner's process says it
            traceback.print_exc()  # where it came from is known here alone
            fault = f"{type(error).__name__}: {error}"
            answer = (False, fault)
        try:
            connection.send(answer)
        except OSError:
            break
    if worlds is not None:
        worlds.close()


def start(role: Role) -> Any:
    """A process that is asked for segments; a `Handle` of the generators' channel."""
    from jaxrl.rollout.generators import Gone, Handle

    ours, theirs = socket.socketpair()
    # not multiprocessing's spawn, which would run the user's main module once more
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from jaxrl.launch.control import actor; actor.serve({theirs.fileno()})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the learner, which then ends the actor
        # the accelerator is the learner's
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
    )
    theirs.close()
    connection, waiting = Connection(os.dup(ours.fileno())), deque[Future[Any]]()
    lock, over = threading.Lock(), threading.Event()

    def gone() -> Gone:
        code = process.wait()
        return Gone(f"signal {-code}" if code < 0 else f"exit status {code}")

    def end() -> None:
        with contextlib.suppress(OSError):  # closed by the other end
            ours.shutdown(socket.SHUT_WR)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()

    def hear() -> None:
        while True:
            try:
                done, reply = connection.recv()
            except (EOFError, OSError):
                break
            except Exception:  # an answer that cannot be read may raise anything
                traceback.print_exc()
                break
            future = waiting.popleft()
            if done:
                future.set_result(reply)
            else:
                future.set_exception(RuntimeError(f"the actor failed: {reply}"))
        end()  # a process that closed its end may live on
        error = gone()
        ours.close()
        with lock:
            over.set()
        while waiting:
            waiting.popleft().set_exception(error)

    def call(method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        with lock:
            if over.is_set():
                answer.set_exception(gone())
                return answer
            waiting.append(answer)
        try:
            connection.send(*arguments)
        except OSError:
            process.kill()  # the thread that hears answers
        return answer

    threading.Thread(target=hear, name="actor", daemon=True).start()
    handle = Handle(call, end)
    call("open", role)
    return handle


@dataclass
class ActorProcess:
    """The one actor of a run; `advance` stands in for `host.advance`. Close it at the end."""

    role: Role
    note: Callable[[str], None]
    handle: Any = None
    deaths: int = 0
    """Since the last answer."""
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of `handle` and `closed`: no actor starts once the run is over."""

    def __enter__(self) -> ActorProcess:
        return self

    def __exit__(self, *exception: Any) -> None:
        with self.lock:
            self.closed = True
        if self.handle is not None:
            self.handle.kill()

    def ask(self, segment: Segment) -> Future[Played]:
        """A segment, by this actor or by those that come after it.

        The future raises RuntimeError where the actor fails, or dies time after time, and OSError
        where none can be started. One that is alive and says nothing is waited for without limit.
        """
        answer: Future[Played] = Future()
        self._send(segment, answer)
        return answer

    def _send(self, segment: Segment, answer: Future[Played]) -> None:
        from jaxrl.rollout.generators import Gone

        def settle(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                self.deaths = 0
                answer.set_result(future.result())
            elif not isinstance(error, Gone) or self.closed:
                answer.set_exception(error)
            elif (deaths := self.deaths + 1) > _RESTARTS:
                text = f"the actor died {deaths} times in a row, at last by {error}"
                answer.set_exception(RuntimeError(f"{text}; see what it printed"))
            else:
                self.note(f"the actor is gone ({error}); the learner goes on, a new one starts")
                with self.lock:
                    self.deaths = deaths
                    if not self.closed:
                        self.handle = None
                self._send(segment, answer)

        def settle_or_fail(future: Future[Any]) -> None:
            try:
                settle(future)
            except Exception as error:  # a future drops what its callback raises
                answer.set_exception(error)

        with self.lock:
            if self.closed:
                raise RuntimeError("the run is over, and starts no actor")
            if self.handle is None:
                self.handle = start(self.role)
            handle = self.handle
        handle.call("play", segment).add_done_callback(settle_or_fail)

    def advance(
        self, program: Program, env: Environment, seeds: Sequence[int], note: Callable[[str], None]
    ) -> Callable[[Carry, Any, int], tuple[Carry, Any]]:
        """carries, data, length -> the carries after as many segments, and mean metrics.

        A segment is played while the learner updates, and is in the replay buffer after that.
        """
        parts, config = program.play, self.role.config
        assert parts is not None
        most = max(1, config.most_updates // config.updates)
        fresh = jax.jit(jax.vmap(parts.absorb))
        again = jax.jit(jax.vmap(parts.absorb), donate_argnums=0)
        learn = jax.jit(jax.vmap(parts.learn, (0, 0, None)))
        keys_of = jax.jit(jax.vmap(lambda carry: split(carry, 2)))
        fold = jax.jit(jax.vmap(jax.random.fold_in, (0, None)))

        def request(carry: Carry, trail: Any, keys: Any, warm: bool, steps: int) -> Future[Played]:
            count = int(np.max(np.asarray(carry.replay.count)))
            numbers = host.numbers_of(seeds, parts.worlds, count)
            unfinished = jax.device_get(trail) if count else None
            params = jax.device_get(carry.learner.params)
            return self.ask(Segment(warm, params, np.asarray(keys), steps, numbers, unfinished))

        def absorb(carry: Carry, answer: Future[Played]) -> tuple[Carry, Trail]:
            played = answer.result()
            if not played.repeated:
                host.note_fresh(env, note)
            for t, (rows, clock) in enumerate(zip(played.rows, played.clocks, strict=True)):
                carry = (again if t else fresh)(carry, clock, rows)
            return carry, played.trail

        def run(carry: Carry, data: Any, length: int) -> tuple[Carry, Any]:
            trail, carry = carry.world, carry._replace(world=())
            if parts.warmup and not np.any(np.asarray(carry.replay.count)):
                key, moving, _ = keys_of(carry)
                carry = carry._replace(key=key)
                carry, trail = absorb(carry, request(carry, trail, moving, True, parts.warmup))
            totals, calls = None, 0
            for _ in range(length):
                key, moving, learning = keys_of(carry)
                carry = carry._replace(key=key)
                answer = request(carry, trail, moving, False, parts.segment)
                for n in range(most):
                    carry, metrics = learn(carry, fold(learning, n), data)
                    totals = metrics if totals is None else jax.tree.map(jnp.add, totals, metrics)
                    jax.block_until_ready(totals)
                    calls += 1
                    if answer.done():
                        break
                carry, trail = absorb(carry, answer)
            trail = Trail(*(jnp.asarray(x) for x in trail))
            metrics = jax.tree.map(lambda x: x / calls, totals)
            updates = jnp.full(len(seeds), calls * config.updates / length)
            return carry._replace(world=trail), {**metrics, "updates_a_segment": updates}

        return run
