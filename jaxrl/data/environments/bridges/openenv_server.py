"""A task with turns as an OpenEnv server, for trainers and clients of that protocol.

    python -m jaxrl.data.environments.bridges.openenv_server game24 --port 8000

A WebSocket at `/ws` is an episode. It takes `reset`, with a `seed`, `step`, whose action is
`{"message": TEXT}`, `state` and `close`; an observation is `{"message": TEXT, "tools": SCHEMAS}`.
It needs the package `websockets` (extra `environments`).
"""

from __future__ import annotations

import argparse
import contextlib
import http
import importlib
import json
from collections.abc import Iterator
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.environments.bridges.adapters import Gym
from jaxrl.data.types import Task


@contextlib.contextmanager
def served(
    task: Task, host: str = "127.0.0.1", port: int = 0, split: str = "train"
) -> Iterator[Any]:
    """A server of a task's episodes, which `serve_forever` runs.

    Args:
      task: has an environment.
      host, port: where it listens; port 0 chooses one, see its `socket`.
      split: of the problems; `reset` with seed n begins the nth.
    """
    if task.turns is None:
        raise ValueError(f"task {task.name!r} is answered in one turn, so there are no episodes")
    server = importlib.import_module("websockets.sync.server")

    def health(connection: Any, request: Any) -> Any:
        if request.path == "/health":
            return connection.respond(http.HTTPStatus.OK, '{"status": "healthy"}\n')
        if request.path != "/ws":
            return connection.respond(http.HTTPStatus.NOT_FOUND, "the address is /ws\n")
        return None

    with server.serve(
        lambda socket: _episodes(socket, Gym(task, split)),
        host,
        port,
        process_request=health,
        origins=[None],  # a page in a browser names its own, and may reach loopback
    ) as websocket_server:
        yield websocket_server


def _episodes(socket: Any, gym: Gym) -> None:
    """Answer the messages of one connection."""
    count, tools = 0, ()
    with contextlib.closing(gym):
        for line in socket:
            try:
                request = json.loads(line)
                data: dict[str, Any] = request.get("data", {})
                if request["type"] == "close":
                    return
                kind = "state" if request["type"] == "state" else "observation"
                reward, done = None, False
                if request["type"] == "reset":
                    count, (text, info) = 0, gym.reset(int(data.get("seed") or 0))
                    tools = info["tools"]
                elif request["type"] == "step":
                    text, reward, done, _, _ = gym.step(str(data["message"]))
                    count += 1
                elif kind != "state":
                    raise ValueError(f"{request['type']!r} is none of reset, step, state, close")
                payload = {"step_count": count}
                if kind == "observation":
                    observation = {"message": text, "tools": list(tools)}
                    payload = {"observation": observation, "reward": reward, "done": done}
            except Exception as error:  # of one message; the client may send another
                kind, payload = "error", {"message": repr(error), "code": "EXECUTION_ERROR"}
            socket.send(json.dumps({"type": kind, "data": payload}))


def main() -> None:
    """Serve a task until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", help="name of a task with turns")
    parser.add_argument("--args", default="{}", help="its parameters, as JSON")
    parser.add_argument("--split", default="train")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    task = tasks.get(args.task, **json.loads(args.args))
    with served(task, args.host, args.port, args.split) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
