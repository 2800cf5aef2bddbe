"""One request to a server that is not trusted: a limit of time and of size, and no redirects."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_LONGEST_HEADERS = 1 << 16
"""Bytes of the headers of a response, which others read without a limit of time."""


class TooLong(http.client.HTTPException):
    """A response has more bytes than are read."""


class Response(NamedTuple):
    """What a server has answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def is_redirect(self) -> bool:
        """Whether it names another address."""
        return 300 <= self.status < 400


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float, most: int) -> Response:
    """Send a body, by way of the environment's proxy if there is one.

    A redirect is a response like any other: following it could lead what is sent, or a key in the
    headers, to another machine, or to one that only this machine can reach.

    Args:
      url: see `split`.
      body: bytes to send.
      headers: beside those of HTTP itself.
      seconds: from connecting to the last byte, interim responses included.
      most: bytes of the response's body; its headers have a limit of their own.

    Raises:
      TimeoutError: the whole response is not there in time.
      OSError, http.client.HTTPException: there is none, or a longer one.
      ValueError: the url is no such address, or holds a password.
    """
    connection, where = _connection(url, seconds)
    late, opened = threading.Event(), list[socket.socket]()

    def hang_up() -> None:
        late.set()
        for sock in opened:  # which wakes whoever reads from it
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    clock = threading.Timer(seconds, hang_up)  # a socket's own limit is of each read
    clock.daemon = True
    clock.start()
    try:
        connection.connect()
        opened.append(connection.sock)  # the connection itself forgets it once there is a reply
        if late.is_set():
            raise TimeoutError
        connection.request("POST", where, body, dict(headers))
        with connection.getresponse() as response:
            raw = response.read(most + 1)
            if len(raw) <= most and response.length:  # `read` of a part does not say so
                raise http.client.IncompleteRead(raw, response.length)
            answer = Response(response.status, response.headers, raw)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if late.is_set():
            raise TimeoutError(f"no whole reply within {seconds:.3g} s") from None
        if isinstance(error, ValueError):  # of what is no HTTP
            raise http.client.HTTPException(f"the reply cannot be read: {error}") from error
        raise
    finally:
        clock.cancel()
        connection.close()
    if late.is_set():
        raise TimeoutError(f"no whole reply within {seconds:.3g} s")
    if len(raw) > most:
        raise TooLong(f"the reply has more than {most} bytes")
    if sum(len(name) + len(value) for name, value in answer.headers.items()) > _LONGEST_HEADERS:
        raise TooLong(f"the reply has more than {_LONGEST_HEADERS} bytes of headers")
    return answer


@contextlib.contextmanager
def shut_down_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Shut a connection down when a time is over, which wakes whoever reads or writes.

    A limit of a socket is of each read, and a client in which another thread holds a lock while it
    writes has none.

    Raises:
      TimeoutError: it was shut down, whatever came of that.
    """
    late = threading.Event()

    def shut_down() -> None:
        late.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    clock = threading.Timer(seconds, shut_down)
    clock.daemon = True
    clock.start()
    try:
        yield
    except Exception:
        if not late.is_set():
            raise
    finally:
        clock.cancel()
    if late.is_set():
        raise TimeoutError(f"no whole reply within {seconds:.3g} s")


def split(address: str) -> urllib.parse.SplitResult:
    """The parts of an address.

    An address must be written as it is read: a parser leaves out line breaks and control
    characters, so that another reader of the same text may find no address, or another one.

    Raises:
      ValueError: it is no http or https address, has a password, or is read as another text.
    """
    url = urllib.parse.urlsplit(address)
    plain = address.isascii() and not any(c <= " " or c in "\\\x7f" for c in address)
    if not plain or url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise ValueError(
            f"url={without_secrets(address)!r} must be an http or https address without a name or "
            "password, spaces and control characters"
        )
    if url.geturl() != address:
        raise ValueError(f"url={address!r} is read as {url.geturl()!r}; write it so")
    try:
        _ = url.port
    except ValueError as error:
        raise ValueError(f"url={address!r}: {error}") from None
    return url


def without_secrets(url: str) -> str:
    """The address without name, password and query, which may be secret."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "the url"
    return urllib.parse.urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def _connection(address: str, seconds: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection to a server, or to the proxy before it, and the path to ask for."""
    url = split(address)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    make, path = kinds[url.scheme], url.path + (f"?{url.query}" if url.query else "")
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or urllib.request.proxy_bypass(url.hostname):
        return make(url.hostname, url.port, timeout=seconds), path
    through = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    connection = make(through.hostname or "", through.port, timeout=seconds)
    if url.scheme == "http":
        return connection, f"http://{url.netloc}{path}"
    connection.set_tunnel(url.hostname, url.port)
    return connection, path
