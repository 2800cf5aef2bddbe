"""The tools of an MCP server, a program of its own or an address on loopback (extra `tools`).

https://modelcontextprotocol.io
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import ipaddress
import json
import logging
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from jaxrl.data import http_post
from jaxrl.data.environments.tools import mcp_bounds
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.sandbox import scratch

_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")

_PAGES = 100
"""Of tools, that a server may list."""

_TOOLS, _SCHEMA_BYTES = 1000, 1 << 16
"""Most tools of a server, and bytes that one tool may take to describe."""

_INVALID_PARAMS = -32602
"""Code of JSON-RPC: of the errors of the protocol, only this one is about a call's arguments."""

_END_S = 15.0
"""A program is asked to end, and killed some seconds later."""


def check(server: str) -> None:
    """Refuse what cannot be a server.

    Args:
      server: the command of a program that speaks MCP on standard input and output, or an address
        such as http://127.0.0.1:8000/mcp.

    Raises:
      ValueError: the package `mcp` is not installed, the program is not found, or the address is
        not on loopback.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ValueError(f"mcp={server!r} needs the package mcp; pip install 'jaxrl[tools]'")
    if server.startswith(("http://", "https://")):
        try:
            name = http_post.split(server).hostname or ""
        except ValueError as error:
            raise ValueError(f"mcp={server!r}: {error}") from None
        try:
            loopback = name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError(
                f"mcp={server!r}: {name!r} is another machine; run the server on this one"
            )
    elif not shlex.split(server) or shutil.which(shlex.split(server)[0]) is None:
        raise ValueError(f"mcp={server!r}: its program is not found; give a path, or install it")


def connect(server: str, seconds: float = 30.0, memory_mb: int = 4096) -> list[Tool]:
    """The tools of a server, in a session of their own, which ends when one of them is closed.

    Args:
      server: see `check`.
      seconds: limit of the start, and of each call; a longer call is reported as an error.
      memory_mb: what the program, and each process that it starts, may take (Linux).

    Raises:
      RuntimeError: the server does not start, does not answer, or lists no tools or too many.
    """
    session = _Session(server, seconds, memory_mb)
    try:
        listed = session.wait(_listed(session.client, server))
        _check_listed(listed, server)
    except TimeoutError:
        session.close()
        raise RuntimeError(
            f"the MCP server {server!r} does not list its tools within {seconds:g} s"
        ) from None
    except BaseException:
        session.close()
        raise

    def make_tool(each: Any) -> Tool:
        def run(**arguments: Any) -> str:
            return session.call(each.name, arguments)

        parameters = {k: v for k, v in each.input_schema.items() if k != "type"}
        return Tool(each.name, each.description or "", parameters, run, session.close)

    return [make_tool(tool) for tool in listed]


def _check_listed(listed: list[Any], server: str) -> None:
    """Refuse a server without tools, whose session nobody would close, or with too much to read.

    Raises:
      RuntimeError: it is one.
    """
    if not listed:
        raise RuntimeError(f"the MCP server {server!r} lists no tools")
    if len(listed) > _TOOLS:
        raise RuntimeError(f"the MCP server {server!r} lists {len(listed)} tools, over {_TOOLS}")
    for tool in listed:
        size = len(json.dumps(tool.input_schema, default=str)) + len(tool.description or "")
        if size > _SCHEMA_BYTES:
            raise RuntimeError(
                f"the MCP server {server!r}: the tool {tool.name!r:.80} has a schema of {size} "
                f"bytes, over {_SCHEMA_BYTES}"
            )


async def _listed(client: Any, server: str) -> list[Any]:
    """The tools on all pages."""
    listed, cursor = [], None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        cursor = page.next_cursor
        if not cursor:
            return listed
    raise RuntimeError(f"the MCP server {server!r} lists more than {_PAGES} pages of tools")


@contextlib.contextmanager
def _lifeline() -> Iterator[str]:
    """Path of a pipe that the system closes at the latest when this process ends."""
    directory = scratch.Scratch()
    path = os.path.join(directory.name, "alive")
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield path
    finally:
        os.close(descriptor)
        directory.cleanup()


class _Session:
    """A client whose event loop has a thread of its own."""

    def __init__(self, server: str, seconds: float, memory_mb: int) -> None:
        self._seconds, self._memory_mb = seconds, memory_mb
        self._loop = asyncio.new_event_loop()
        self._ready: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._life = self._loop.create_task(self._serve(server))
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        try:
            self.client = self._ready.result(seconds)
        except TimeoutError:
            self.close()
            raise RuntimeError(
                f"the MCP server {server!r} does not start within {seconds:g} s"
            ) from None
        except Exception as error:
            self.close()
            raise RuntimeError(f"the MCP server {server!r} does not start: {error!r}") from error

    def wait(self, request: Coroutine[Any, Any, Any]) -> Any:
        """The result of a request.

        Raises:
          TimeoutError: it took too long.
        """
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            return future.result(self._seconds)
        finally:
            future.cancel()

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The text that a tool gives.

        Raises:
          ValueError: the text is an error, or the server refuses the arguments or is too slow.
        """
        import mcp  # optional

        try:
            result = self.wait(self.client.call_tool(name, arguments))
        except TimeoutError:
            raise ValueError(f"{name} took more than {self._seconds:g} s") from None
        except mcp.MCPError as error:
            if error.code != _INVALID_PARAMS:
                raise
            raise ValueError(error.message) from error
        text = "\n".join(getattr(part, "text", f"[{part.type}]") for part in result.content)
        if result.is_error:
            raise ValueError(text)
        return text

    def close(self) -> None:
        """End the session, also one that is about to begin, and the program that it has started."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._life.cancel)
        self._thread.join(_END_S)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._life)
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(RuntimeError(repr(error)))
        finally:
            self._loop.close()

    async def _serve(self, server: str) -> None:
        import mcp  # optional

        # It writes a traceback for each text that is no message, of which a server has any number.
        logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
        logging.getLogger("mcp.shared").setLevel(logging.CRITICAL)
        if server.startswith(("http://", "https://")):
            streams = mcp_bounds.open_streams(server, self._seconds, _END_S / 3)
            await self._hold(mcp.Client(streams))
            return
        keeper = str(Path(__file__).parents[1] / "bridges" / "keeper.py")
        variables = {k: v for k, v in os.environ.items() if k in _KEPT}
        with _lifeline() as alive:
            bounds = [str(self._memory_mb), str(mcp_bounds.LONGEST)]
            words = ["-I", "-S", keeper, alive, *bounds, *shlex.split(server)]
            program = mcp.StdioServerParameters(command=sys.executable, args=words, env=variables)
            await self._hold(mcp.Client(mcp_bounds.counted(mcp.stdio_client(program))))

    async def _hold(self, client: Any) -> None:
        async with client:
            self._ready.set_result(client)
            await asyncio.Event().wait()  # until it is cancelled
