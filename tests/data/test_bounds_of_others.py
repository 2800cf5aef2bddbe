"""What servers, programs and files of others may take: connections, memory, time and files."""

import json
import os
import shlex
import socket
import sqlite3
import sys
import threading
import time

import pytest

from jaxrl.data.environments.bridges import gateway
from jaxrl.data.environments.bridges.dialects import Answer
from jaxrl.data.environments.tools import mcp_tools
from jaxrl.data.rewards.programs import queries
from jaxrl.data.sandbox import runner as sandbox
from jaxrl.data.text import tokenizer_limits
from tests.data.test_agent_program import TOKENS
from tests.data.test_gateway import Program
from tests.data.test_sandbox import python
from tests.data.test_sandbox_escapes import filtered

BODY = {"messages": [{"role": "user", "content": "Hello"}]}


def connected(program):
    address = ("127.0.0.1", program.gateway._server.server_address[1])
    return socket.create_connection(address, 5)


def is_closed(connection, seconds=5.0):
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.broad
def test_connections_of_an_episode_are_bounded(monkeypatch):
    monkeypatch.setattr(gateway, "MOST", 8)
    program = Program(lambda pending: pending.answer.set_result(Answer(1, "Hi", (), TOKENS)))
    before = threading.active_count()
    held = [connected(program) for _ in range(60)]
    time.sleep(0.5)
    assert threading.active_count() - before <= 2 * gateway.MOST + 2
    assert sum(is_closed(each, 0.02) for each in held) >= 60 - gateway.MOST - 1
    for each in held:
        each.close()
    time.sleep(0.3)
    assert program.post(BODY)[0] == 200
    program.gateway.close()


@pytest.mark.parametrize(
    "sent", [b"", b"POST /x", b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"]
)
def test_a_request_that_is_not_whole_is_given_up(sent, monkeypatch):
    monkeypatch.setattr(gateway, "WHOLE_S", 0.5)
    program = Program(lambda pending: None)
    slow = connected(program)
    slow.sendall(sent)
    assert is_closed(slow) or sent  # what has no such path is refused with an answer
    slow.settimeout(3)
    try:
        while slow.recv(4096):
            pass
    except ConnectionError:
        pass
    program.gateway.close()


def test_a_body_that_drips_is_given_up(monkeypatch):
    monkeypatch.setattr(gateway, "WHOLE_S", 0.5)
    program = Program(lambda pending: None)
    slow = connected(program)
    path = f"{program.gateway.path}/v1/chat/completions"
    slow.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: 1000\r\n\r\n".encode())
    started = time.monotonic()
    try:
        while time.monotonic() - started < 5:
            slow.sendall(b" ")
            time.sleep(0.05)
    except OSError:
        pass
    assert time.monotonic() - started < 3
    program.gateway.close()


def test_a_program_that_waits_for_its_turn_is_not_given_up(monkeypatch):
    monkeypatch.setattr(gateway, "WHOLE_S", 0.2)

    def later(pending):
        answer = Answer(1, "Hi", (), TOKENS)
        threading.Timer(0.8, pending.answer.set_result, [answer]).start()

    program = Program(later)
    assert program.post(BODY)[0] == 200
    program.gateway.close()


@filtered
def test_buffers_of_sockets_cannot_grow(isolation):
    source = (
        "import socket\n"
        "a, b = socket.socketpair()\n"
        "for option in (7, 8, 32, 33):\n"
        "    try: a.setsockopt(socket.SOL_SOCKET, option, 1 << 22); print('grew')\n"
        "    except OSError as error: print(error.errno)\n"
        "a.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)"
    )
    assert python(source, isolation).stdout.split() == ["1"] * 4


@filtered
@pytest.mark.parametrize("inet", [False, True])
def test_sockets_of_the_internet_are_for_agent_programs(isolation, inet):
    source = (
        "import socket\n"
        "for family in (2, 10):\n"
        "    for kind in (1, 2):\n"
        "        try: socket.socket(family, kind); print('made')\n"
        "        except PermissionError: print('refused')"
    )
    assert set(python(source, isolation, inet=inet).stdout.split()) == {
        "made" if inet else "refused"
    }


@filtered
def test_memory_in_sockets_is_bounded(isolation):
    """What one process can hold in datagrams, as docs/security.md has it."""
    source = (
        "import socket, resource\n"
        "held = 0\n"
        "kept = []\n"
        "try:\n"
        "    while True:\n"
        "        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "        kept += [a, b]\n"
        "        a.setblocking(False)\n"
        "        try:\n"
        "            while True: held += a.send(b'x' * 50_000)\n"
        "        except BlockingIOError: pass\n"
        "except OSError: pass\n"
        "print(held)"
    )
    limits = sandbox.Limits(wall_s=20, memory_mb=256)
    assert int(python(source, isolation, limits).stdout) < 64 << 20


@filtered
@pytest.mark.parametrize(
    "call",
    [
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", "os.setpriority(0, 0, 5)",
        "os.sched_setaffinity(os.getppid(), {0})", "os.nice(1)",
        "os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))",
        "os.sched_setparam(os.getppid(), os.sched_param(0))",
    ],
)  # fmt: skip
def test_no_priority_can_be_changed(isolation, call):
    source = f"import os\ntry: {call}; print('changed')\nexcept PermissionError: print('refused')"
    assert python(source, isolation).stdout == "refused\n"


SERVER = """
import json, sys
tools = {tools}
for line in sys.stdin:
    asked = json.loads(line)
    said = {{"jsonrpc": "2.0", "id": asked.get("id")}}
    if asked.get("method") == "initialize":
        version = asked["params"]["protocolVersion"]
        said["result"] = {{"protocolVersion": version, "capabilities": {{"tools": {{}}}},
                          "serverInfo": {{"name": "x", "version": "1"}}}}
    elif asked.get("method") == "tools/list":
        said["result"] = {{"tools": tools}}
    else:  # the client asks for more than older servers know, and would wait for an answer
        said["error"] = {{"code": -32601, "message": "unknown"}}
    if said["id"] is not None:
        print(json.dumps(said), flush=True)
"""
TOOL = '{"name": "t", "inputSchema": {"type": "object"}}'


@pytest.mark.extra
@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ("[]", "lists no tools"),
        (f"[{TOOL}] * 2000", "over 1000"),
        ("[{'name': 't', 'inputSchema': {'type': 'object', 'properties': {f'p{i}': {} for i in "
         "range(50_000)}}}]", "has a schema of"),
        ("[{'name': 't', 'description': 'y' * 10**6, 'inputSchema': {'type': 'object'}}]",
         "has a schema of"),
    ],
)  # fmt: skip
def test_a_server_of_no_or_too_many_tools_is_refused_and_ended(tmp_path, tools, why):
    pytest.importorskip("mcp")
    program = tmp_path / "server.py"
    program.write_text(SERVER.format(tools=tools))
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=why):
            mcp_tools.connect(f"{sys.executable} {program}", 60)
    assert time.monotonic() - started < 60
    assert len(os.listdir("/proc/self/fd")) <= files + 1
    assert threading.active_count() <= threads


ANSWERING = """
import json, os, sys, time
mode = sys.argv[1]
def send(value):
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\\n")
    sys.stdout.flush()
def forever(text):
    while True:
        send(text)
for line in sys.stdin:
    asked = json.loads(line)
    number, method = asked.get("id"), asked.get("method")
    said = {"jsonrpc": "2.0", "id": number}
    if method == "initialize":
        version = asked["params"]["protocolVersion"]
        send(said | {"result": {"protocolVersion": version, "capabilities": {"tools": {}},
                                "serverInfo": {"name": "x", "version": "1"}}})
    elif method == "tools/list":
        send(said | {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        text = lambda value: {"content": [{"type": "text", "text": value}]}
        match mode:
            case "hang": time.sleep(1000)
            case "end": os._exit(3)
            case "huge": send(said | {"result": text("A" * 50_000_000)})
            case "surrogate": send(json.dumps(said | {"result": text("\\ud800\\x00\\x1b[2J")}))
            case "flood": forever("x" * 65536)
            case "notes": forever(json.dumps({"jsonrpc": "2.0", "method": "notifications/message",
                                              "params": {"level": "info", "data": "x"}}))
            case "garbage":
                send("garbage\\n" * 2000)
                send(said | {"result": text("ok")})
            case "no content": send(said | {"result": {"content": None}})
            case "other number": send({**said, "id": 12345, "result": text("ok")})
            case "an error": send(said | {"result": text("e" * 10**6) | {"isError": True}})
            case "refusal": send(said | {"error": {"code": -32602, "message": "\\x1b[2J" * 10**5}})
            case "once, then ends": send(said | {"result": text("ok")}); os._exit(0)
    elif number is not None:
        send(said | {"error": {"code": -32601, "message": "unknown"}})
"""
ANSWERED = ("end", "garbage", "no content", "an error", "refusal", "once, then ends")
WAITED_FOR = ("hang", "huge", "surrogate", "flood", "notes", "other number")


@pytest.mark.extra
def test_a_server_that_answers_anything_costs_a_call(tmp_path, capfd):
    pytest.importorskip("mcp")
    program = tmp_path / "server.py"
    program.write_text(ANSWERING)
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for mode in (*ANSWERED, *WAITED_FOR):
        command = f"{sys.executable} {program} {shlex.quote(mode)}"
        (tool,) = mcp_tools.connect(command, 60)
        started = time.monotonic()
        if mode in WAITED_FOR:
            tool.close.__self__._seconds = 1.0
        try:
            said = tool.run()
        except Exception as error:
            said = str(error)
        tool.close()
        assert time.monotonic() - started < 60, mode
        assert mode not in ("garbage", "once, then ends") or said == "ok"
    assert len(os.listdir("/proc/self/fd")) <= files + 1
    assert threading.active_count() <= threads
    assert len(capfd.readouterr().err) < 10_000


REACHING = (
    "ATTACH DATABASE '{file}' AS x; CREATE TABLE x.t(y)",
    "CREATE TABLE t AS SELECT 1 AS y; VACUUM INTO '{file}'",
    "CREATE TABLE t(y); VACUUM",
    "ATTACH '{victim}' AS v; DROP TABLE v.keys",
    "ATTACH '{victim}' AS v; CREATE TABLE s AS SELECT * FROM v.keys",
    "attach 'file:{file}?mode=rwc' as x",
    "/**/ATTACH/**/'{file}'/**/AS/**/x",
    "SELECT load_extension('{file}')",
    "PRAGMA temp_store_directory = '{directory}'",
    "PRAGMA writable_schema = ON",
    "PRAGMA database_list; ATTACH '{file}' AS x",
    "CREATE TABLE t(y); CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT load_extension('x'); END; "
    "INSERT INTO t VALUES (1)",
    "BEGIN; CREATE TABLE t(y); COMMIT; ATTACH '{file}' AS x",
)


@pytest.mark.parametrize("run", [queries.execute, queries.execute_apart])
@pytest.mark.parametrize("script", REACHING)
def test_a_script_of_data_reaches_no_file(run, script, tmp_path):
    victim = tmp_path / "victim.db"
    with sqlite3.connect(victim) as connection:
        connection.execute("CREATE TABLE keys AS SELECT 'precious' AS k")
    connection.close()
    before = victim.read_bytes()
    names = {"file": tmp_path / "new.db", "victim": victim, "directory": tmp_path}
    with pytest.raises(queries.QueryError):
        run(script.format(**names) + ";", "SELECT 1")
    assert os.listdir(tmp_path) == ["victim.db"] and victim.read_bytes() == before


@pytest.mark.broad
@pytest.mark.parametrize("run", [queries.execute, queries.execute_apart])
def test_a_script_without_end_is_ended(run, monkeypatch):
    if run is queries.execute:
        monkeypatch.setattr(queries, "SCRIPT_S", 0.5)
    endless = (
        "CREATE TABLE z AS WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) "
        "SELECT count(*) FROM t"
    )
    started = time.monotonic()
    with pytest.raises((queries.QueryError, TimeoutError)):
        run(endless, "SELECT 1")
    assert time.monotonic() - started < 30
    with pytest.raises(queries.QueryError):  # or without end in memory
        run(endless.replace("count(*)", "n, zeroblob(1000000)"), "SELECT 1")


@pytest.mark.parametrize("run", [queries.execute, queries.execute_apart])
def test_scripts_as_dumps_have_them_run(run):
    script = (
        "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\nCREATE TABLE t(n INTEGER PRIMARY KEY);\n"
        "INSERT INTO t VALUES (1), (2);\nCREATE INDEX i ON t(n);\n"
        "CREATE VIEW v AS SELECT n FROM t;\n"
        "COMMIT;"
    )
    assert run(script, "SELECT sum(n) FROM v") == [(3,)]
    assert run("CREATE TABLE t(n); INSERT INTO t VALUES (5)", "SELECT * FROM t") == [(5,)]


def replace(text, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


@pytest.mark.parametrize(
    "fields",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [replace("a", "a" * 10)] * 12}},
        {"normalizer": replace("", "x")},
        {"decoder": {"type": "Sequence", "decoders": [replace("", "", "Regex")]}},
        {"normalizer": replace("a", "a" * 100_000)},
        {"normalizer": [[replace("ab", "c" * 1000)] * 200]},
        {"normalizer": {"type": "Replace", "content": "x"}},
        [],
    ],
)
def test_a_tokenizer_that_grows_without_end_is_refused(fields, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        tokenizer_limits.check(file)


def test_a_tokenizer_as_they_are_passes(tmp_path):
    file = tmp_path / "tokenizer.json"
    steps = {"type": "Sequence", "normalizers": [{"type": "Prepend"}, replace(" ", "\u2581")]}
    file.write_text(json.dumps({"normalizer": steps, "decoder": replace("\u2581", " ")}))
    tokenizer_limits.check(file)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 10**8), ("num_hidden_layers", -1), ("num_hidden_layers", 1.5),
     ("hidden_size", 10**12), ("vocab_size", 0), ("num_attention_heads", 0), ("head_dim", "x"),
     ("num_hidden_layers", 10**400)],
)  # fmt: skip
def test_sizes_that_no_model_has_are_refused(key, value):
    from jaxrl.models.checkpoints import hf_config

    raw = {"model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 8,
           "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}  # fmt: skip
    assert hf_config.read(raw).num_layers == 1
    with pytest.raises(ValueError, match=key):
        hf_config.read({**raw, key: value})
