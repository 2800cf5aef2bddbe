"""MCP servers that break HTTP, or send lines and requests without an end: each costs a call."""

import contextlib
import functools
import http.server
import json
import os
import sys
import threading
import time
import zlib

import pytest

from jaxrl.data.environments.tools import mcp_bounds, mcp_tools

pytestmark = pytest.mark.extra
pytest.importorskip("mcp")

TOOL = {"name": "t", "inputSchema": {"type": "object"}}
START = {"capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
OK = {"content": [{"type": "text", "text": "ok"}]}


LONGEST = 1 << 20
"""In place of the bound, which takes longer to reach."""


@functools.cache
def bomb(wbits):
    """A text of 256 MB, compressed."""
    packer = zlib.compressobj(1, zlib.DEFLATED, wbits)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(mcp_bounds, "LONGEST", LONGEST)
    monkeypatch.setattr(mcp_bounds, "MOST_REQUESTS", 100)


def note(**fields):
    return b"data: " + json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n\n"


NOTE = note(method="notifications/message", params={"level": "info", "data": "x"})
PING = b"".join(note(id=number, method="ping") for number in range(500))
JSON, EVENTS = "application/json", "text/event-stream"
ENDLESS = {
    "a body": (200, JSON, b" " * 65536, {}),
    "an error": (500, JSON, b" " * 65536, {}),
    "a redirect": (307, JSON, b" " * 65536, {"location": "/mcp"}),
    "text": (200, "text/plain", b" " * 65536, {}),
    "an event": (200, EVENTS, b"data: x" * 8000, {}),
    "comments": (200, EVENTS, b": ping\n\n" * 8000, {}),
    "empty events": (200, EVENTS, b"id: 1\ndata: \n\n" * 1000, {}),
    "notes": (200, EVENTS, NOTE * 500, {}),
    "requests": (200, EVENTS, PING, {}),
    "no messages": (200, EVENTS, b"data: []\n\n" * 500, {}),
}
"""Status, type and headers of a reply, and what its body repeats."""
BOMBS = {
    (kind, encoding): (200, kind, encoding)
    for kind in (JSON, EVENTS)
    for encoding in ("gzip", "deflate", "gzip, gzip", "br", "zstd")
}
MODES = (
    *ENDLESS, *BOMBS, "interim", "headers", "byte by byte", "nested", "elsewhere", "itself",
    "again", "stream", "end", "ok",
)  # fmt: skip
SLOW, GOOD = ("interim", "byte by byte"), ("stream", "end", "ok")
ORDINARY = ("a body", (JSON, "gzip"), "an event", "requests")


@contextlib.contextmanager
def serving(mode, elsewhere=""):
    """Address of a server, and the methods and paths that it was asked for."""
    asked, over = [], threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, status, kind, body, **headers):
            self.send_response(status)
            for name, value in {"content-type": kind, **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def repeat(self, status, kind, part, headers):
            self.send_response(status)
            for name, value in {
                "content-type": kind,
                "transfer-encoding": "chunked",
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            while not over.is_set():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                over.wait(0.05 if len(part) == 1 else 0)

        def forever(self, text):
            while not over.is_set():
                self.wfile.write(text)

        def do_GET(self):
            asked.append(("GET", self.path))
            if mode == "stream":
                self.repeat(*ENDLESS["an event"])
            self.reply(405, JSON, b"")

        def do_DELETE(self):
            asked.append(("DELETE", self.path))
            over.wait(60)

        def do_POST(self):
            said = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((said["method"], self.path))
            answer = {"jsonrpc": "2.0", "id": said.get("id")}
            session = {"mcp-session-id": "s"} if mode in ("stream", "end") else {}
            match said["method"]:
                case "initialize":
                    version = said["params"]["protocolVersion"]
                    answer["result"] = {"protocolVersion": version, **START}
                case "tools/list":
                    answer["result"] = {"tools": [TOOL]}
                case "tools/call":
                    answer["result"] = OK
                    if self.answer_badly():
                        return
                case _ if answer["id"] is None:
                    return self.reply(202, JSON, b"")
                case _:
                    answer["error"] = {"code": -32601, "message": "no"}
            self.reply(200, JSON, json.dumps(answer).encode(), **session)

        def answer_badly(self):
            if mode in ENDLESS:
                self.repeat(*ENDLESS[mode])
            elif mode in BOMBS:
                status, kind, encoding = BOMBS[mode]
                wbits = 15 if encoding == "deflate" else 31
                self.reply(status, kind, bomb(wbits), **{"content-encoding": encoding})
            elif mode == "interim":
                self.forever(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
            elif mode == "headers":
                self.forever(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100)
            elif mode == "byte by byte":
                self.repeat(200, JSON, b" ", {})
            elif mode == "nested":
                self.reply(200, JSON, b"[" * 10**6)
            elif mode in ("elsewhere", "itself"):
                self.reply(308, JSON, b"", location=elsewhere or self.path)
            elif mode == "again":
                self.reply(200, EVENTS, b"id: 1\nretry: 0\ndata: \n\n")
            return mode not in GOOD

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp", asked
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def megabytes():
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def call(tool):
    try:
        return tool.run()
    except Exception as error:  # a fault of the server, or what the policy is told
        return f"error: {error}"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, id=str(mode), marks=() if mode in ORDINARY else pytest.mark.broad)
        for mode in MODES
    ],
)
def test_a_server_that_breaks_http_costs_a_call(mode, capfd):
    """Within its time, and in little memory; nothing of it is left when the session is closed."""
    with serving(mode) as (url, asked):
        before = megabytes()
        (tool,) = mcp_tools.connect(url, 5.0 if mode in SLOW else 60.0)
        session = tool.close.__self__
        started = time.monotonic()
        said = call(tool)
        assert time.monotonic() - started < 50
        assert said == "ok" if mode in GOOD else said.startswith("error: ")
        assert megabytes() - before < 100
        tool.close()
        assert not session._thread.is_alive()
        assert ("DELETE", "/mcp") in asked or mode not in ("stream", "end")
    assert len(capfd.readouterr().err) < 10_000


def test_no_other_address_is_asked(monkeypatch):
    """Neither one that a redirect names nor the proxy of the environment."""
    with serving("ok") as (other, asked_other), serving("elsewhere", other) as (url, asked):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, other.removesuffix("/mcp"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        (tool,) = mcp_tools.connect(url, 60.0)
        assert "not followed" in call(tool)
        tool.close()
        assert asked and not asked_other


@pytest.mark.parametrize(
    "url",
    [
        "http://user:word@127.0.0.1/mcp", "http://127.0.0.1\n/mcp", "http://127.0.0.1\\@x/mcp",
        "http://\t127.0.0.1/", "http://x@127.0.0.1/", "http://127.0.0.1.evil/", "http://[::1/",
        "http://", "http://127.0.0.1:0x1f/mcp", "http://127.0.0.1/ mcp",
    ],
)  # fmt: skip
def test_an_address_that_is_read_in_two_ways_is_refused(url):
    with pytest.raises(ValueError, match="mcp="):
        mcp_tools.check(url)


LINES = """
import json, sys
mode = sys.argv[1]
def send(value):
    sys.stdout.write(json.dumps(value) + "\\n")
    sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": asked.get("id")}
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            send(answer | {"result": {"protocolVersion": version, **START}})
        case "tools/list":
            send(answer | {"result": {"tools": [TOOL]}})
        case "tools/call" if mode == "long":
            send(answer | {"result": {"content": [{"type": "text", "text": "x" * 10**6}]}})
        case "tools/call":
            number = 0
            while mode == "requests":
                number += 1
                send({"jsonrpc": "2.0", "id": number, "method": "sampling/createMessage",
                      "params": {"messages": [], "maxTokens": 1}})
            while True:
                sys.stdout.write("x" * 65536)
        case _ if answer["id"] is not None:
            send(answer | {"error": {"code": -32601, "message": "no"}})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("mode", ["line", "requests", "long"])
def test_a_program_that_writes_without_end_is_ended(tmp_path, mode):
    """A line without an end, and requests whose answers it does not read; a long text is read."""
    program = tmp_path / "server.py"
    program.write_text(f"TOOL, START = {TOOL!r}, {START!r}\n{LINES}")
    (tool,) = mcp_tools.connect(f"{sys.executable} {program} {mode}", 60.0)
    before = megabytes()
    said = call(tool)
    if mode == "long":
        assert len(said) == 10**6
    else:
        assert "Connection closed" in said
        assert call(tool).startswith("error: ")
    assert megabytes() - before < 100
    tool.close()
    assert not tool.close.__self__._thread.is_alive()
