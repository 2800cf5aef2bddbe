"""Bounds on what an MCP server may send: time and size of replies over HTTP, and its own requests.

The client of the package `mcp` reads a reply of any length, and keeps a task for each request of a
server until the answer is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

LONGEST = 1 << 24
"""Bytes of a reply over HTTP, and of a line of a program."""

MOST_REQUESTS = 10_000
"""Of a server in a session. It is offered nothing to ask for, but may ping."""

_STREAM_S = 300.0
"""Most seconds between two parts of the stream on which a server sends what nobody asked for."""


@contextlib.asynccontextmanager
async def open_streams(url: str, seconds: float, end_seconds: float) -> AsyncIterator[Any]:
    """The streams of messages of a server at an address, as a transport of the package `mcp`.

    No proxy of the environment is used, since the address is on this machine; redirects to another
    address are not followed, and compressed replies, whose size is not known, are refused.

    Args:
      url: the address.
      seconds: limit of each request, from connecting to the last byte of its reply.
      end_seconds: limit of the request that ends the session.
    """
    import httpx2  # optional, comes with `mcp`
    from mcp.client.streamable_http import streamable_http_client

    class Body(httpx2.AsyncByteStream):
        """The body of a reply, which fails where it is too long or takes too much time."""

        def __init__(self, body: Any, end: float) -> None:
            self._body, self._end = body, end

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in self._body:
                size += len(part)
                if size > LONGEST:
                    raise httpx2.ReadError(f"the reply has more than {LONGEST} bytes")
                if asyncio.get_running_loop().time() > self._end:
                    raise httpx2.ReadTimeout(f"no whole reply within {seconds:g} s")
                yield part

        async def aclose(self) -> None:
            await self._body.aclose()

    class Transport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            most = end_seconds if request.method == "DELETE" else seconds
            read = _STREAM_S if request.method == "GET" else most
            request.extensions["timeout"] = httpx2.Timeout(most, read=read).as_dict()
            end = asyncio.get_running_loop().time() + most
            try:
                async with asyncio.timeout_at(end):
                    response = await super().handle_async_request(request)
            except TimeoutError:
                raise httpx2.ReadTimeout(f"no reply within {most:g} s") from None
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                raise httpx2.ReadError("the reply is compressed, which was not asked for")
            response.stream = Body(response.stream, float("inf") if read == _STREAM_S else end)
            return response

    headers = {"accept-encoding": "identity"}
    async with (
        httpx2.AsyncClient(transport=Transport(), trust_env=False, headers=headers) as client,
        counted(streamable_http_client(url, http_client=client)) as streams,
    ):
        yield streams


@contextlib.asynccontextmanager
async def counted(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """A transport that ends for its reader once the server has sent too many requests."""
    async with transport as (read, write):
        yield _Counted(read), write


class _Counted:
    """The reader's end of a transport."""

    def __init__(self, messages: Any) -> None:
        self._messages, self._requests = messages, 0

    @property
    def last_context(self) -> Any:
        """Context variables of the sender of the last message, if this transport keeps them."""
        return getattr(self._messages, "last_context", None)

    async def receive(self) -> Any:
        return await self._messages.receive()

    async def aclose(self) -> None:
        await self._messages.aclose()

    async def __aenter__(self) -> _Counted:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> _Counted:
        return self

    async def __anext__(self) -> Any:
        item = await anext(self._messages)
        message = getattr(item, "message", None)  # or an error of what is no message
        self._requests += hasattr(message, "method") and hasattr(message, "id")
        if self._requests > MOST_REQUESTS:
            raise StopAsyncIteration
        return item
