"""`jaxrl serve --train` behind a program that misuses its policy's address in every way."""

import textwrap

import pytest

from tests.data.test_agent_program import HEAD
from tests.launch.test_agents import trained

HOSTILE = """
import socket, threading, urllib.error, urllib.parse, urllib.request

said = [{"role": "user", "content": sys.stdin.read()}]
base = os.environ["OPENAI_BASE_URL"]
at = urllib.parse.urlsplit(base)
good = {"messages": said, "model": "policy"}
deep = "[" * 5000 + "]" * 5000
bodies = [b"", b"x", b"[]", b"null", b"\\xff", b"{", deep.encode()]
bodies += [b'{"messages": ' + b"9" * 5000 + b"}"]
odd = (None, 5, [], [5], [{}], "x", {}, [{"role": "x", "content": 5}],
       [{"role": [], "content": "a"}],
       [{"role": "user", "content": chr(0xD800)}], [{"role": "user"}] * 3)
bodies += [json.dumps({"messages": each}).encode() for each in odd]
wrong = [{"role": "user", "content": 5}]
for key in ("n", "max_tokens", "temperature", "top_p", "stop", "seed", "tools", "stream",
            "logprobs",
            "top_logprobs", "tool_choice", "response_format", "logit_bias"):
    for value in (-1, 1e308, "x", [[]], {"a": {}}, 10**30, "\\x1b[2J" * 3):
        bodies.append(json.dumps({**good, "messages": wrong, key: value}).encode())
codes = set()
for path in ("/chat/completions", "/responses", "/messages", "/completions", "/../x", "/%00", ""):
    for body in bodies if path == "/chat/completions" else bodies[:12]:
        try:
            urllib.request.urlopen(urllib.request.Request(base + path, body), timeout=20).read()
            codes.add(200)
        except urllib.error.HTTPError as error:
            codes.add(error.code)
        except OSError:
            codes.add(0)
held = []
for raw in (b"", b"GET / HTTP/1.1\\r\\n", b"\\x00" * 9999, b"POST /x HTTP/9.9\\r\\n\\r\\n",
            b"POST / HTTP/1.1\\r\\nContent-Length: 99999999999\\r\\n\\r\\n",
            b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"):
    for _ in range(12):
        each = socket.create_connection((at.hostname, at.port))
        try:
            each.sendall(raw)
        except OSError:
            pass
        held.append(each)
for each in held:
    each.close()
assert not {c for c in codes if c >= 500}, codes
print(ask(said)["message"]["content"])
"""


@pytest.mark.broad
def test_a_program_that_sends_anything_trains_on_its_whole_turns(tmp_path):
    rows, logged = trained(tmp_path, HEAD + textwrap.dedent(HOSTILE))
    assert len(rows) == 2
    for row in rows:
        assert row["episode/errors"] == 0 and row["logp_gap_max"] < 1e-4
        assert row["episode/turns"] >= 1
    assert all(each["error"] is None and each["reward"] is not None for each in logged)
