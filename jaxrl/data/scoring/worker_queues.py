"""What workers are asked: an item about an episode goes to the worker that plays it.

Any worker can play any episode, but one that has not played it until now has to play its actions
again. So workers take new episodes in turn, and an episode stays with its worker until that ends,
or keeps it waiting for too long.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import Any, NamedTuple

PATIENCE_S = 1.0
"""How long an item waits for the worker of its episode before another one may take it."""


class _Waiting(NamedTuple):
    item: Any
    episode: int | None
    since: float


class Queues:
    """A queue for each of several workers, and one for all of them."""

    def __init__(self, workers: int) -> None:
        self._shared: deque[_Waiting] = deque()
        self._own: list[deque[_Waiting]] = [deque() for _ in range(workers)]
        self._played: dict[int, list[int]] = {}
        """Workers that have played an episode, the one that plays it last."""
        self._turns = itertools.cycle(range(workers))
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: Any, episode: int | None = None, worker: int | None = None) -> None:
        """Add an item: for `worker` alone, or for the one that plays `episode`, or else for any."""
        with self._changed:
            if episode is not None:
                played = self._played.get(episode)
                worker = played[-1] if played else next(self._turns)
            waiting = _Waiting(item, episode, time.monotonic())
            (self._shared if worker is None else self._own[worker]).append(waiting)
            self._changed.notify_all()

    def take(self, worker: int) -> tuple[Any, int | None, bool] | None:
        """Wait for an item, its episode, and whether the worker was the last to play that.

        None once the queues are closed and nothing is left.
        """
        with self._changed:
            while True:
                for queue in (self._own[worker], self._shared):
                    if queue:
                        return self._given(queue.popleft(), worker)
                if late := self._late(time.monotonic() - PATIENCE_S):
                    return self._given(late, worker)
                if self._closed:
                    return None
                self._changed.wait(PATIENCE_S / 2 if any(self._own) else None)

    def _given(self, waiting: _Waiting, worker: int) -> tuple[Any, int | None, bool]:
        item, episode, _ = waiting
        return item, episode, episode is not None and self._assign(episode, worker)

    def _late(self, before: float) -> _Waiting | None:
        """What another worker has not begun for too long, and is not for that one alone."""
        for queue in self._own:
            for i, entry in enumerate(queue):
                if entry.episode is not None and entry.since < before:
                    del queue[i]
                    return entry
        return None

    def over(self, episode: int, but: int | None = None) -> list[int]:
        """Workers that may remember an episode which has ended, but for one of them."""
        with self._changed:
            return [worker for worker in self._played.pop(episode, []) if worker != but]

    def ended(self, worker: int) -> None:
        """A worker has ended, and another takes its place, which has played nothing."""
        with self._changed:
            for played in self._played.values():
                if worker in played:
                    played.remove(worker)
            queue = self._own[worker]
            self._shared.extendleft(reversed(queue))
            queue.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Let all workers take what is left, and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _assign(self, episode: int, worker: int) -> bool:
        played = self._played.setdefault(episode, [])
        same = played[-1:] == [worker]
        if worker in played:
            played.remove(worker)
        played.append(worker)
        return same
