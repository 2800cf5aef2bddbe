"""A loopback HTTP server for one episode, at which its program finds the policy.

The path has a secret: `/episodes/SECRET/v1/chat/completions`, `/responses` or `/messages`. A
request waits until the policy has written its turn. One that was answered before, as when a client
tries again, gets the answer that it got. OpenAI's and Anthropic's clients say of a request that it
is no retry; such a one is a turn of its own, even if an earlier one was the same. A retry gets the
answer of an equal request whose client has closed its connection, and else that of the latest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hmac
import json
import re
import secrets
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from jaxrl.data.environments.bridges.dialects import DIALECTS, Answer, Asked, Dialect

LONGEST = 1 << 22
"""Bytes of a request."""
MOST = 64
"""Connections of an episode at once. Each takes a thread and a descriptor of this process."""
WHOLE_S = 10.0
"""Until the first request of a connection, which shows that it is the program's, is whole."""
_LENGTH = re.compile("[0-9]{1,12}")
_ROLES = ("system", "user", "assistant", "tool")
RETRIES = "x-stainless-retry-count"
"""The header in which those clients say how often they have tried before."""
_MODEL = {
    "id": "policy",
    "object": "model",
    "type": "model",
    "created": 0,
    "created_at": "1970-01-01T00:00:00Z",
    "owned_by": "jaxrl",
    "display_name": "policy",
}
MODELS = {"object": "list", "data": [_MODEL], "has_more": False, "first_id": "policy",
          "last_id": "policy"}  # fmt: skip
"""The list of models, as both clients read it. A request may name any other: it gets the policy."""


@dataclasses.dataclass
class Pending:
    """A request whose turn the policy has not written yet."""

    asked: Asked
    answer: Future[Answer] = dataclasses.field(default_factory=Future)
    gone: Callable[[], bool] = lambda: False
    """Whether the client that waits for it has closed its connection."""
    sent: bool = False
    """Whether the answer was sent to a client that waited for it."""


class Gateway:
    """The requests of an episode's program, which may come from several threads of it."""

    def __init__(self, put: Callable[[Pending], None]) -> None:
        """Start to listen; `put` is given each request that is not a repetition."""
        self._put = put
        self._secret = secrets.token_urlsafe(18)
        self._lock = threading.Lock()
        self._known: dict[Any, list[Pending]] = {}
        self._over = False
        self._local: _LocalServer | None = None
        self._server = _Server(("127.0.0.1", 0), functools.partial(_Handler, self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def base(self) -> str:
        """Address of the episode; `/v1` of it is what OpenAI's clients are given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.path}"

    @property
    def path(self) -> str:
        """The path of that address."""
        return f"/episodes/{self._secret}"

    def listen(self, place: Path) -> None:
        """Listen on a Unix socket too, which any user may connect to who can see it.

        Raises:
          RuntimeError: the episode is over.
        """
        with self._lock:
            if self._over:
                raise RuntimeError("the episode is over")
            local = _LocalServer(str(place), functools.partial(_Handler, self))
            place.chmod(0o777)
            threading.Thread(target=local.serve_forever, args=(0.05,), daemon=True).start()
            self._local = local

    @property
    def secret(self) -> str:
        """Is part of the path, and will do as a key where a client insists on one."""
        return self._secret

    def close(self) -> None:
        """Stop to listen; requests that wait, and any that still come, are refused."""
        with self._lock:
            self._over = True
            pending = [turn for same in self._known.values() for turn in same]
        for turn in pending:
            turn.answer.cancel()
        for server in (self._server, self._local):
            if server is not None:
                server.shutdown()
                server.server_close()

    def dialect(self, path: str) -> Dialect | None:
        """The protocol of a path; None: there is no such path."""
        start, _, rest = path.partition("?")[0].removeprefix("/episodes/").partition("/v1/")
        if not hmac.compare_digest(start.encode(), self._secret.encode()):
            return None
        return DIALECTS.get(rest)

    def turn(self, request: Asked, *, first: bool, gone: Callable[[], bool]) -> Pending:
        """The turn of the policy that a request asks for.

        Args:
          request: the request.
          first: whether the client says that it is no retry.
          gone: whether it has closed its connection.

        Raises:
          CancelledError: the episode is over.
        """
        tools = json.dumps(request.tools, sort_keys=True)
        key = (request.messages, request.after, tools, request.stop)  # all that changes the answer
        with self._lock:
            if self._over:
                raise CancelledError
            same = self._known.setdefault(key, [])
            new = first or not same
            if new:
                same.append(Pending(request))
            missed = (turn for turn in same if not turn.sent and turn.gone())
            pending = same[-1] if new else next(missed, same[-1])
            pending.gone = gone
        if new:
            self._put(pending)
        return pending


def _checked(request: Asked) -> Asked:
    """A request whose fields have the types that they should.

    Raises:
      ValueError: one has not; it says which.
    """
    functions = [schema["function"] for schema in request.tools]
    texts = [("previous_response_id", request.after)]
    texts += [("stop", stop) for stop in request.stop]
    texts += [("content", message.content) for message in request.messages]
    texts += [
        ("the name of a call", name) for message in request.messages for name, _ in message.calls
    ]
    texts += [
        (f"the {k} of a tool", function.get(k, ""))
        for function in functions
        for k in ("name", "description")
    ]
    for name, text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name}={text!r:.100} is no text")
    if "" in request.stop:
        raise ValueError("stop='' ends every text; leave it out")
    for message in request.messages:
        if message.role not in _ROLES:
            raise ValueError(f"role={message.role!r:.100} is none of {', '.join(_ROLES)}")
    for function in functions:
        if not isinstance(schema := function.get("parameters", {}), dict):
            raise ValueError(f"the parameters of a tool are {schema!r:.100}, no schema")
    if not request.messages and not request.after:
        raise ValueError("it has no message")
    json.dumps(
        request, ensure_ascii=False, allow_nan=False
    ).encode()  # half of a surrogate pair fails
    return request


class _Bounded(socketserver.ThreadingMixIn):
    """As many connections at once as `MOST`; one more is closed at once."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, where there is a place for it."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


class _Server(_Bounded, HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a program that has ended or was killed while it asked."""


class _LocalServer(_Bounded, socketserver.UnixStreamServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """As above."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "jaxrl"

    def __init__(self, gateway: Gateway, *args: Any) -> None:
        self._gateway = gateway
        self._late = threading.Timer(WHOLE_S, self._hang_up)
        self._late.daemon = True
        super().__init__(*args)

    def setup(self) -> None:
        """Begin to wait for a request, however slowly it comes."""
        super().setup()
        self._late.start()

    def finish(self) -> None:
        """The end of the connection."""
        self._late.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # which wakes whoever reads from it
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """`/v1/models` and `/v1/models/NAME`."""
        self.close_connection = True
        path, models = self.path.partition("?")[0], f"{self._gateway.path}/v1/models"
        suffix = path[len(models) :]
        has_prefix = hmac.compare_digest(path[: len(models)].encode(), models.encode())
        if has_prefix and suffix[:1] in ("", "/"):
            name = urllib.parse.unquote(suffix[1:])
            body = _MODEL | {"id": name, "display_name": name} if name else MODELS
            return self._send(200, json.dumps(body), "application/json")
        self._refuse(404, "there is nothing to read here")

    def do_POST(self) -> None:
        """A request for a turn."""
        dialect = self._gateway.dialect(self.path)
        length = self.headers.get("Content-Length", "")
        if dialect is None or not _LENGTH.fullmatch(length) or int(length) > LONGEST:
            self.close_connection = True  # its body is unread
            paths = ", ".join(DIALECTS)
            return self._refuse(
                404, f"send a body of at most {LONGEST} bytes to the episode's /v1/: {paths}"
            )
        try:
            request = _checked(dialect.read(json.loads(self.rfile.read(int(length)))))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return self._refuse(400, f"the request cannot be read: {error!r:.300}")
        self._late.cancel()
        try:
            first = self.headers.get(RETRIES) == "0"
            turn = self._gateway.turn(request, first=first, gone=self._gone)
            answer = turn.answer.result()
        except CancelledError:
            return self._refuse(410, "this episode is over")
        turn.sent |= not self._gone()
        if not request.stream:
            return self._send(200, json.dumps(dialect.whole(request, answer)), "application/json")
        lines = [
            (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
            for name, data in dialect.pieces(request, answer)
        ]
        if dialect.end:
            lines.append(f"data: {dialect.end}\n\n")
        self._send(200, "".join(lines), "text/event-stream")

    def _gone(self) -> bool:
        """Whether nobody reads what is sent; a client that waits sends nothing itself."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _refuse(self, status: int, text: str) -> None:
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
        self._send(status, json.dumps(body), "application/json")

    def _send(self, status: int, body: str, kind: str) -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status != 200:
            self.send_header("x-should-retry", "false")  # which OpenAI's and Anthropic's obey
        self.end_headers()
        self.wfile.write(data)
