"""What all servers of the package share: connections, keys, limits, and answers with a status."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import re
import sys
import threading
import traceback
import urllib.parse
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn, Protocol

from jaxrl.launch.server.engine import Gone


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    request_queue_size = 1024  # many callers may come at once
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers that hang up before they have asked."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


_LENGTH = re.compile("[0-9]{1,12}")
"""A Content-Length."""
_DISCARD_S = 0.5
"""Seconds for each part of the body of a refused request to arrive."""


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Limits(Protocol):
    """Settings that the rules of connections read."""

    host: str
    max_body_bytes: int


class Rules(Protocol):
    """What every connection works with."""

    config: Any
    """`Limits`."""
    key: str
    """That callers must send; empty: none."""
    answers: Counter[int]
    """Answers by status."""
    lock: threading.Lock
    """Of the counts."""


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection(BaseHTTPRequestHandler):
    """One connection; a subclass answers by `do_GET` and `do_POST`."""

    timeout = 60  # seconds that a silent client may hold a connection
    server_version = "jaxrl"

    def __init__(self, service: Rules, *args: Any) -> None:
        self.service, self.taken = service, False
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: prompts belong to whoever sent them."""

    def _answer(self, respond: Callable[[], None]) -> None:
        try:
            try:
                self._check_host()
                respond()
            except Refused as error:
                self._send(error.status, error_body(error.status, str(error)))
                self._discard()
            except ValueError as error:
                self._send(400, error_body(400, str(error)))
            except (OSError, Gone):
                raise
            except Exception as error:  # a caller must not be left without an answer
                traceback.print_exc()
                self._send(500, error_body(500, str(error)))
        except (OSError, Gone):  # the caller has hung up, or says nothing any more
            self.close_connection = True

    def _discard(self) -> None:
        # A client that is cut off while it sends may never see the answer, so what it has sent is
        # read, after the answer and for no longer than it takes to arrive.
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        if self.taken or not _LENGTH.fullmatch(length):
            return
        self.wfile.flush()
        self.connection.settimeout(_DISCARD_S)
        with contextlib.suppress(OSError):
            self.rfile.read(min(int(length), 1 << 16))

    def _check_host(self) -> None:
        # A page in a browser may resolve its own name to loopback; it cannot forge this header.
        try:
            name = urllib.parse.urlsplit("//" + self.headers.get("Host", "")).hostname
        except ValueError as error:
            raise Refused(400, f"Host is malformed: {error}; send a name or an address") from error
        if name and is_loopback(self.service.config.host) and not is_loopback(name):
            raise Refused(403, f"Host {name!r} is not this machine; use localhost or 127.0.0.1")

    def _check_key(self) -> None:
        key, where = self._key()
        if self.service.key and not hmac.compare_digest(
            key.encode("utf-8", "replace"), self.service.key.encode()
        ):
            raise Refused(401, where)

    def _key(self) -> tuple[str, str]:
        """What the caller sent as the key, and where it is to be."""
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return key, "Authorization: send the server's key as a bearer token"

    def _raw(self, *kinds: str) -> tuple[str, bytes]:
        """The content type, one of `kinds`, and the body. Other types than JSON and protobuf could
        be sent by a web page without asking."""
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in kinds:
            raise Refused(415, f"Content-Type is {kind!r}; send {' or '.join(kinds)}")
        length = self.headers.get("Content-Length", "")
        if not length:
            raise Refused(411, "send a Content-Length")
        if not _LENGTH.fullmatch(length):
            raise Refused(400, f"Content-Length {length[:40]!r} is no number of bytes")
        if int(length) > self.service.config.max_body_bytes:
            raise Refused(
                413, f"the body has {length} bytes, more than {self.service.config.max_body_bytes}"
            )
        raw = self.rfile.read(int(length))
        self.taken = True
        return kind, raw

    def _body(self) -> Any:
        """The JSON body."""
        try:
            return json.loads(self._raw("application/json")[1], parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from error

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self._send_raw(status, json.dumps(body).encode(), "application/json")

    def _send_raw(self, status: int, raw: bytes, kind: str) -> None:
        self._count(status)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _count(self, status: int) -> None:
        with self.service.lock:
            self.service.answers[status] += 1


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as JSON, in the form that clients of OpenAI read."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
