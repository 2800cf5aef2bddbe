"""What runs in a worker: it scores completions and plays episodes, and answers in JSON."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import socket
import struct
import threading
from collections.abc import Awaitable
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.environments import Turn, play
from jaxrl.data.sandbox import processes
from jaxrl.data.sources import records
from jaxrl.data.types import Problem, Score, Task


class Loop:
    """One event loop for all scores of a process, so that what a module shares serves every call.

    A semaphore, a lock or a client belongs to the loop in which it was first used.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._lock = threading.Lock()

    def run(self, value: Awaitable[Any]) -> Any:
        """What an awaitable gives."""
        with self._lock:
            return self._runner.run(_await(value))

    def close(self) -> None:
        """End the loop."""
        with self._lock:
            self._runner.close()


_LONGEST_TEXT = 1000


def score_completion(
    task: Task, problem: Problem, completion: str, loop: Loop | None = None
) -> Score:
    """The task's score of one completion; what the reward raises becomes the score's error.

    Args:
      task: scores it.
      problem: that is answered.
      completion: the answer.
      loop: in which awaitables run; None: one of its own.
    """
    try:
        score = task.reward(problem, completion)
        if inspect.isawaitable(score):
            score = loop.run(score) if loop else asyncio.run(_await(score))
        if not isinstance(score, Score):
            raise TypeError(f"the reward returned {score!r}; return a jaxrl.data.types.Score")
        return score
    except (Exception, SystemExit) as error:
        return Score(None, error=processes.failure(error))


def serve(fd: int) -> None:
    """The worker's life: build the task it is given, then score what it is sent until the end."""
    processes.die_with_parent()
    processes.hide()  # what a sandboxed program of this user must not read
    with socket.socket(fileno=fd) as connection, connection.makefile("rb") as stream:

        def answer(value: Any) -> None:
            connection.sendall(json.dumps(value).encode() + b"\n")

        name, params, memory_limit_mb = pickle.loads(_next(stream)[1])
        try:
            with records.already_checked():
                task = tasks.get(name, **params)
            for part in (task, *task.parts.values()):
                if part.setup is not None:
                    part.setup()
            if memory_limit_mb is not None:
                import resource

                limit = memory_limit_mb * 2**20  # of what is written, not of what is reserved
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        except Exception as error:
            answer(f"{type(error).__name__}: {error}")
            return
        answer(None)
        player, loop = play.Player(task), Loop()
        while (message := _next(stream))[1]:
            number, item = message
            try:
                request = pickle.loads(item)
            except Exception as error:  # an item that does not unpickle here
                score = Score(None, error=processes.failure(error))
                answer(written_score(score, number))
                continue
            if isinstance(request, int):  # an episode that is over
                player.forget(request)
                answer(written_score(Score(0.0), number))
            elif isinstance(request, Turn):
                answer(play.as_json(player.answer(request), number))
            else:
                answer(written_score(score_completion(task, *request, loop), number))
        player.close()
        loop.close()


def _next(stream: Any) -> tuple[int, bytes]:
    """The number of the next message, and the message; empty when there is none."""
    head = stream.read(16)
    if len(head) < 16:
        return 0, b""
    number, length = struct.unpack("!QQ", head)
    return number, stream.read(length)


def written_score(score: Score, number: int) -> dict[str, Any]:
    """A score as JSON values; `number` is that of the message that it answers."""
    return {
        "answers": number,
        "value": None if score.value is None else float(score.value),
        "parts": {str(name): float(part) for name, part in score.parts.items()},
        "error": score.error,
        "timed_out": score.timed_out,
        "texts": {str(name): str(text)[:_LONGEST_TEXT] for name, text in score.texts.items()},
    }


def read_score(line: bytes, number: int) -> Score:
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
        texts = {str(name): str(text) for name, text in dict(reply["texts"]).items()}
        late = reply["timed_out"] is True
        return Score(reply["value"], reply["parts"], error, late, texts)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return Score(None, error=f"reply: the worker's answer is no score: {error}")


async def _await(score: Any) -> Score:
    return await score
