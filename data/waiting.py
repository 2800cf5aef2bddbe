"""Asks environments that wait for other processes, each on a thread of its own, until a deadline.

The threads are daemons: one that never returns keeps no process from its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from concurrent.futures import Future, InvalidStateError

from jaxrl.data.environments import Opening, Reply, Turn, play

_CLOSING_S = 5.0


class Waiting:
    """The turns that are waited for, of one player."""

    def __init__(self, player: play.Player) -> None:
        self._player = player
        self._asked: dict[Future[Opening | Reply], Turn] = {}
        self._clock = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._clock.run_forever, name="deadlines", daemon=True
        )
        self._thread.start()

    def ask(self, turn: Turn, limit_s: float) -> Future[Opening | Reply]:
        """What the environment answers; after `limit_s`, an error that says that it did not.

        An answer that comes later is dropped, and the episode is closed.
        """
        future: Future[Opening | Reply] = Future()
        self._asked[future] = turn
        late = functools.partial(self._give_up, future, f"timeout: no reply after {limit_s:g} s")
        self._clock.call_soon_threadsafe(self._clock.call_later, limit_s, late)
        try:
            _start(self._answer, turn, future)
        except RuntimeError as error:
            self._settle(future, play.failed(turn, f"thread: {error}; sample fewer episodes"))
        return future

    def over(self, episode: int) -> None:
        """Close an episode, without waiting for what that takes."""
        if self._player.knows(episode):
            _start(self._player.forget, episode)

    def close(self) -> None:
        """Give up on all that is asked, and close all episodes, for at most some seconds."""
        for future in list(self._asked):
            self._give_up(future, "closed: the pool was closed before this was answered")
        threads = [_start(self._player.forget, episode) for episode in self._player.known()]
        deadline = time.monotonic() + _CLOSING_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._clock.call_soon_threadsafe(self._clock.stop)
        self._thread.join()
        self._clock.close()

    def _answer(self, turn: Turn, future: Future[Opening | Reply]) -> None:
        if not self._settle(future, self._player.answer(turn)):
            self._player.forget(turn.episode)  # it began after its deadline

    def _give_up(self, future: Future[Opening | Reply], why: str) -> None:
        turn = self._asked.get(future)
        if turn is not None and self._settle(future, play.failed(turn, why)):
            self.over(turn.episode)

    def _settle(self, future: Future[Opening | Reply], answer: Opening | Reply) -> bool:
        """Whether this is the first answer, which counts."""
        self._asked.pop(future, None)
        with contextlib.suppress(InvalidStateError):
            future.set_result(answer)
            return True
        return False


def _start(function: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, name="waiting", daemon=True)
    thread.start()
    return thread
