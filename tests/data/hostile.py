"""A task whose scorer does what the completion says, to see what the pool makes of it."""

import asyncio
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.tasks.math import arithmetic
from jaxrl.data.types import Problem, Score, Task


def make(
    delay: float = 0.0,
    on_timeout: float | None = None,
    pure: bool = False,
    own_seconds: float = 0.0,
) -> Task:
    def reward(problem: Problem, completion: str) -> Score:
        time.sleep(delay)
        match completion:
            case "hang":
                time.sleep(3600)
            case "spin":
                while True:
                    pass
            case "exit":
                os._exit(0)
            case "segfault":
                ctypes.string_at(0)
            case "raise":
                raise RuntimeError("no")
            case "nan":
                return Score(float("nan"))
            case "none":
                return None
            case "print":
                print("noise on standard output", flush=True)
            case "hog":
                bytearray(2**34)
            case "child":
                child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
                with open(problem.prompt, "w") as f:
                    f.write(str(child.pid))
                child.wait()
            case "pid":
                return Score(float(os.getpid()))
            case "leave":
                raise SystemExit(3)
            case "late exit":
                os.close(_connection())
                time.sleep(0.3)
                os._exit(3)
            case "forge":
                forged = {"value": 7, "parts": {}, "error": None, "timed_out": 0}
                os.write(_connection(), json.dumps(forged).encode() + b"\n")
            case "babble":
                while True:
                    os.write(_connection(), b"x" * 4096)
            case "environment":
                return Score(float("API_SECRET" in os.environ) + 2 * ("JUDGE_KEY" in os.environ))
            case "scratch":
                Path(tempfile.mkdtemp(), "left").write_text("x")
                Path(problem.prompt).write_text(tempfile.gettempdir())
                time.sleep(3600)
            case "huge int":
                return Score(10**400)
            case "async":

                async def later() -> Score:
                    await asyncio.sleep(0.01)
                    return Score(2.0)

                return later()
        return Score(0.0 if completion == "zero" else 1.0)

    return Task(
        name="hostile",
        problem=lambda split, seed, i: Problem(f"{i}", "", None),
        reward=reward,
        on_timeout=on_timeout,
        pure=pure,
        seconds=(lambda problem: own_seconds) if own_seconds else None,
        environment=("JUDGE_KEY",),
    )


def _connection() -> int:
    """The worker's end of the pool's socket."""
    open_files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    (path,) = (p for p in open_files if os.path.islink(p) and "socket:" in os.readlink(p))
    return int(path.rpartition("/")[2])


def finite(size: int = 10) -> Task:
    return Task(
        name="finite",
        problem=lambda split, seed, i: Problem(f"{i}", f"{i}", i),
        reward=lambda problem, completion: Score(1.0),
        splits=("train",),
        sizes={"train": size},
        alphabet="0123456789",
    )


def flaky() -> Task:
    """Arithmetic whose scorer hangs on one completion in five, and dies on another."""
    task = arithmetic.task(digits=1, operators="+")

    def reward(problem: Problem, completion: str) -> Score:
        match zlib.crc32(f"{problem.id}{completion}".encode()) % 5:
            case 0:
                time.sleep(3600)
            case 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return task.reward(problem, completion)

    return dataclasses.replace(task, reward=reward)


KINDS = 13


def worlds() -> Task:
    """Episodes of which some hang, crash, leak, answer with nonsense or 10 MB, or never end.

    The last three kinds wait for other processes, in name.
    """
    leaked: list[bytes] = []

    def problem(split: str, seed: int, index: int) -> Problem:
        kind = index % KINDS
        domain = "waits" if kind >= 10 else ""
        return Problem(f"{split}/{seed}/{index}", str(index % 10), kind, domain=domain)

    def step(state: list[int], action: str) -> Reply:
        state[1] += 1
        said = ({"role": "user", "content": str(state[1] % 10)},)
        match state[0]:
            case 0 | 10 if state[1] == 2:
                time.sleep(3600)
            case 1 if state[1] == 2:
                os._exit(3)
            case 2 if state[1] == 2:
                return {"reward": 1.0}
            case 3 if state[1] == 2:
                return Reply(({"role": "user", "content": "1" * 10_000_000},))
            case 4:
                return Reply(said, 0.1)
            case 5:
                leaked.append(bytes(200 << 20))  # three of them are more than a worker may have
        good = float(action[:1] in ("1", "2", "3"))
        return Reply(said, good, done=state[1] == 3)

    def begin(problem: Problem, seed: int) -> tuple[list[int], Opening]:
        if problem.answer in (9, 11):
            time.sleep(3600)
        return [problem.answer, 0], Opening(({"role": "user", "content": problem.prompt},))

    turns = Environment(begin, step)
    made = Task("worlds", problem, unscored, alphabet="0123456789\n", turns=turns)
    waits = dataclasses.replace(made, turns=turns._replace(waits=True))
    return dataclasses.replace(made, parts={"waits": waits})
