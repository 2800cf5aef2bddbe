"""Requests that no client sends: each is answered or its connection ended, and others go on."""

import json
import socket
import time

import pytest

from tests.launch.test_serve import post, send, server  # noqa: F401

pytestmark = pytest.mark.broad

SELF = {"type": "object", "properties": {"a": {"$ref": "#"}}}
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


def tool(parameters, name="f"):
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


USER = [{"role": "user", "content": "hi"}]
CHATS = (
    {"messages": USER, "tools": tool(SELF)}, {"messages": USER, "tools": tool(LOOP)},
    {"messages": USER, "tools": tool({"$ref": "http://127.0.0.1:1/x"})},
    {"messages": USER, "tools": tool(nested(150))}, {"messages": USER, "tools": tool(5)},
    {"messages": USER, "tools": tool({}, "")}, {"messages": USER, "tools": tool({}, "\x1b[2J")},
    {"messages": USER, "tools": tool({}, "a" * 3000)}, {"messages": USER, "tools": [None]},
    {"messages": USER, "tools": [{"type": "function"}]}, {"messages": USER, "tools": {"a": 1}},
    {"messages": USER, "tools": tool({}) * 50}, {"messages": USER, "tool_choice": {"a": 1}},
    {"messages": USER, "response_format": {"type": "json_schema", "json_schema": LOOP}},
    {"messages": USER, "response_format": {"type": "grammar", "grammar": "root ::= root"}},
    {"messages": USER, "response_format": 5}, {"messages": USER, "response_format": nested(100)},
    {"messages": [{"role": "root", "content": "x"}]}, {"messages": [{"role": 5, "content": "x"}]},
    {"messages": [{"role": "user"}]}, {"messages": [{"content": "x"}]}, {"messages": [[]] * 9},
    {"messages": [{"role": "user", "content": nested(90)}]}, {"messages": "x"}, {"messages": {}},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "file:///x"}]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 2000}}]}]},
    {"messages": [{"role": "tool", "content": "x", "tool_call_id": nested(20)}]},
    {"messages": USER * 90}, {"messages": USER, "chat_template": "{{ 1/0 }}"},
    {"messages": USER, "chat_template_kwargs": {"a": nested(90)}},
    {"messages": USER, "max_completion_tokens": -1},
    {"messages": USER, "max_completion_tokens": 1e9},
    {"messages": USER, "n": -1}, {"messages": USER, "n": 0}, {"messages": USER, "n": 10**30},
    {"messages": USER, "stop": ["x"] * 900}, {"messages": USER, "stop": ["x" * 3000]},
    {"messages": USER, "stop": 5}, {"messages": USER, "stop": [["a"]]},
    {"messages": USER, "stop": "\ud800"}, {"messages": USER, "user": "\ud800\x00"},
    {"messages": USER, "logprobs": True, "top_logprobs": 10**9},
    {"messages": USER, "logit_bias": {"1": 1e308, "x": 1}}, {"messages": USER, "logit_bias": [1]},
    {"messages": USER, "logit_bias": {str(i): 1 for i in range(300)}},
    {"messages": USER, "seed": -1}, {"messages": USER, "seed": 1.5},
    {"messages": USER, "stream": 1},
    {"messages": USER, "temperature": 1e-320}, {"messages": USER, "temperature": "0"},
    {"messages": USER, "model": nested(50)}, {"messages": USER, "model": "../../etc/passwd"},
    {"messages": USER, "__class__": 1}, {"messages": USER, "": 1}, {"messages": USER, "\x1b[2J": 1},
)  # fmt: skip
RAW = (
    b'{"prompt": "a", "prompt": "b", "max_tokens": 1}', b'{"prompt": "a", "max_tokens": Infinity}',
    b'{"prompt": "a", "max_tokens": ' + b"9" * 4000 + b"}", b'{"a":' * 700, b"\xff\xfe", b"\x00",
    b'{"prompt": "\\ud800"}', b'{"prompt": "a", "temperature": 1e99999}', b"null", b"1", b'"x"',
    b"", b"\xef\xbb\xbf{}", b'{"prompt": "a"}{"prompt": "b"}', b"[" * 2000 + b"]" * 2000,
)  # fmt: skip
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STREAMS = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", HEAD + b"Content-Length: 9\r\n\r\n{",
    HEAD + b"X: y\r\n" * 5000 + b"\r\n", HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Expect: 100-continue\r\n\r\n",
    HEAD + b"Content-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}", b"\x00" * 5000 + b"\r\n\r\n",
    b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"A" * 70_000,
    b"POST http://evil/v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /v1/models\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", HEAD.replace(b"\r\n", b"\n") + b"\n",
)  # fmt: skip


def alive(server):  # noqa: F811
    assert post(server, "/v1/completions", prompt="hello", max_tokens=2)["choices"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_body_that_no_client_sends_is_refused_in_words(server, path):  # noqa: F811
    for body in (*CHATS, *RAW):
        body = body if isinstance(body, bytes) else body | {"max_tokens": 1}
        if path.endswith("v1/completions") and isinstance(body, dict):
            body = {"prompt": "hi"} | {k: v for k, v in body.items() if k != "messages"}
        start = time.monotonic()
        status, answer = send(server, "POST", path, body)
        assert status == 200 or 400 <= status < 500, (body, answer)
        assert time.monotonic() - start < 30
        if status != 200:
            message = json.loads(answer)["error"]["message"]
            assert message.strip() and "Traceback" not in message and len(message) < 5000, body
    alive(server)


def test_what_is_no_request_is_ended(server):  # noqa: F811
    for stream in STREAMS:
        with socket.create_connection(server.server_address[:2], timeout=30) as connection:
            try:
                connection.sendall(stream)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.makefile("rb").read()
            except TimeoutError:
                raise
            except OSError:  # it does not read on, and the connection is gone
                continue
        assert b" 500 " not in answer.split(b"\r\n")[0] and b"Traceback" not in answer, stream[:90]
    alive(server)


def test_bodies_that_do_not_come_hold_no_other_request(server):  # noqa: F811
    waiting = []
    for _ in range(60):
        waiting.append(socket.create_connection(server.server_address[:2], timeout=30))
        waiting[-1].sendall(HEAD + b"Content-Length: 4000\r\n\r\n{")
    alive(server)
    for connection in waiting:
        connection.close()
    alive(server)
