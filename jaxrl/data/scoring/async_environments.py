"""Asks environments that wait for other processes, each on a thread of its own, until a deadline.

Only as many episodes begin at once as this machine has cores, since an opening may start a program.
All at once would miss a deadline that one keeps easily. An opening that waits for its place has no
deadline yet.

The threads are daemons: one that never returns keeps no process from its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple

from jaxrl.data.environments import Opening, Reply, Turn, play

_CLOSING_S = 5.0
_PLACES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
"""How many episodes begin at once."""
_HELD = 0.25
"""The part of its limit for which an opening keeps its place. It then goes on without one, so that
many that hang cost the others little."""


class _Asked(NamedTuple):
    turn: Turn
    limit_s: float
    future: Future[Opening | Reply]


class Waiting:
    """The turns that are waited for, of one player."""

    def __init__(self, player: play.Player) -> None:
        self._player = player
        self._asked: dict[Future[Opening | Reply], _Asked] = {}
        self._lock = threading.Lock()
        self._queue: deque[_Asked] = deque()
        """Openings that have no place yet."""
        self._placed: set[Future[Opening | Reply]] = set()
        self._clock = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._clock.run_forever, name="deadlines", daemon=True
        )
        self._thread.start()

    def ask(self, turn: Turn, limit_s: float) -> Future[Opening | Reply]:
        """What the environment answers; after `limit_s`, an error that says that it did not.

        The limit of a turn whose episode has to begin starts when it gets a place. An answer that
        comes later is dropped, and the episode is closed.
        """
        request = _Asked(turn, limit_s, Future())
        self._asked[request.future] = request
        if self._player.knows(turn.episode):
            self._begin(request, self._answer)
        else:
            self._queue.append(request)
            self._admit()
        return request.future

    def over(self, episode: int) -> None:
        """Close an episode, without waiting for what that takes."""
        if self._player.knows(episode):
            _start(self._player.forget, episode)

    def close(self) -> None:
        """Give up on all that is asked, and close all episodes, for at most some seconds."""
        with self._lock:
            self._queue.clear()
        for request in list(self._asked.values()):
            self._give_up(request, "closed: the pool was closed before this was answered")
        threads = [_start(self._player.forget, episode) for episode in self._player.known()]
        deadline = time.monotonic() + _CLOSING_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._clock.call_soon_threadsafe(self._clock.stop)
        self._thread.join()
        self._clock.close()

    def _admit(self) -> None:
        """Begin the episodes that there are places for."""
        while True:
            with self._lock:
                if not self._queue or len(self._placed) >= _PLACES:
                    return
                request = self._queue.popleft()
                self._placed.add(request.future)
                self._after(_HELD * request.limit_s, self._leave, request)
            if not self._begin(request, self._open):
                with self._lock:
                    self._placed.discard(request.future)

    def _leave(self, request: _Asked) -> None:
        """Give the place of an opening, if it still has one, to the next."""
        with self._lock:
            self._placed.discard(request.future)
        self._admit()

    def _begin(self, request: _Asked, answer: Callable[[_Asked], None]) -> bool:
        """Start the limit of a turn and the thread that answers it; whether that could start."""
        late = f"timeout: no reply after {request.limit_s:g} s"
        try:
            self._after(request.limit_s, self._give_up, request, late)
            _start(answer, request)
        except RuntimeError as error:
            why = f"thread: {error}; sample fewer episodes"
            self._settle(request, play.failed(request.turn, why))
            return False
        return True

    def _after(self, seconds: float, function: Callable[..., None], *arguments: object) -> None:
        self._clock.call_soon_threadsafe(self._clock.call_later, seconds, function, *arguments)

    def _open(self, request: _Asked) -> None:
        """Begin an episode, and play its actions again where it has some."""
        first = dataclasses.replace(request.turn, actions=(), said=(), written=())
        opening = self._player.answer(first)
        self._leave(request)
        if opening.error:
            self._settle(request, play.failed(request.turn, opening.error))
        else:
            self._answer(request)

    def _answer(self, request: _Asked) -> None:
        if not self._settle(request, self._player.answer(request.turn)):
            self._player.forget(request.turn.episode)  # it began after its deadline

    def _give_up(self, request: _Asked, why: str) -> None:
        if self._settle(request, play.failed(request.turn, why)):
            self.over(request.turn.episode)

    def _settle(self, request: _Asked, answer: Opening | Reply) -> bool:
        """Whether this is the first answer, which counts."""
        self._asked.pop(request.future, None)
        with contextlib.suppress(InvalidStateError):
            request.future.set_result(answer)
            return True
        return False


def _start(function: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, name="waiting", daemon=True)
    thread.start()
    return thread
