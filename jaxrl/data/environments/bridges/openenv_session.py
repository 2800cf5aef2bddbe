"""A connection to an OpenEnv server, which is an episode there, over its WebSocket.

Every wait for the server has a limit. When it is over the connection is shut down, which wakes
whoever reads from it or writes to it: a server that does not read holds a client as well as one
that does not answer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

from jaxrl.data import http_post
from jaxrl.data.environments.bridges import server_reply
from jaxrl.data.environments.bridges.server_reply import WrongReply

_LONGEST = 1 << 20
"""Bytes of a message."""
_CLOSE_S = 1.0
"""That a server may take to say that an episode is over."""


class Refused(Exception):
    """A server refuses what the policy wrote; the text is for the policy."""


def address_of(url: str) -> str:
    """The address of the WebSocket of a server.

    Raises:
      ValueError: the url is no address of a server, see `http_post.split`.
    """
    scheme, colon, rest = url.partition(":")
    plain = {"ws": "http", "wss": "https"}.get(scheme, scheme) + colon + rest
    parts = http_post.split(plain)
    if parts.query or parts.fragment:
        raise ValueError(f"url={url!r}: give the server's address alone, without a query")
    kind = "wss" if parts.scheme == "https" else "ws"
    return f"{kind}://{parts.netloc}{parts.path.rstrip('/')}/ws"


class Session:
    """A connection."""

    def __init__(self, address: str, seconds: float) -> None:
        """Connect.

        Args:
          address: see `address_of`.
          seconds: limit of connecting, and of each answer.

        Raises:
          TimeoutError: it took longer.
          Exception: any, of what the server answers.
        """
        client = importlib.import_module("websockets.sync.client")
        parts = urllib.parse.urlsplit(address)
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        self._seconds = seconds
        # a client that has been given its socket follows no redirect
        opened = socket.create_connection((parts.hostname, port), seconds)
        self._end = opened.dup()  # a client that encrypts takes the socket for itself
        try:
            opened.settimeout(None)  # the client has limits of its own
            with http_post.shut_down_after(seconds, self._end):
                self._socket = client.connect(
                    address, sock=opened, open_timeout=seconds, close_timeout=_CLOSE_S,
                    max_size=_LONGEST,
                )  # fmt: skip
        except BaseException:
            self._end.close()
            opened.close()
            raise

    def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """What the server observes.

        Raises:
          Refused: it refuses the text in the action.
          RuntimeError: it says anything else.
          TimeoutError: it said nothing in time.
        """
        with http_post.shut_down_after(self._seconds, self._end):
            self._socket.send(json.dumps({"type": kind, "data": data}))
            text = self._socket.recv(timeout=self._seconds)
        message = server_reply.read_object(text, "the server's message")
        said = json.dumps(message)
        if message.get("type") not in ("observation", "error"):
            raise WrongReply(f"the server says {said:.500}")
        fields = server_reply.as_object(message.get("data"), "the data of the server's message")
        if message["type"] == "observation":
            return fields
        wrong = fields.get("errors") or []
        if kind != "step" or not wrong or not all(map(_is_of_text, wrong)):
            raise WrongReply(f"the server says {said:.500}")
        raise Refused("; ".join(error["msg"] for error in wrong))

    def close(self) -> None:
        """End the episode."""
        with contextlib.closing(self._end), http_post.shut_down_after(_CLOSE_S, self._end):
            self._socket.close()


def _is_of_text(error: Any) -> bool:
    """Whether an error of pydantic is about the text of an action, and not about its fields."""
    if not isinstance(error, dict):
        return False
    kind, text = error.get("type"), error.get("msg")
    if not isinstance(kind, str) or not isinstance(text, str):
        return False
    return kind not in ("missing", "extra_forbidden") and not kind.endswith("_type")
