"""Tools of MCP servers: a program, and an address on loopback."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl import untrusted
from jaxrl.data import tasks
from jaxrl.data.environments import play
from jaxrl.data.environments.tools import definition, mcp_tools
from jaxrl.data.environments.tools.formats import Call, write_call
from tests.data.test_bundled_environments import played

pytestmark = pytest.mark.extra
pytest.importorskip("mcp")

SERVER = """
import os, resource, sys, time
from mcp import MCPError
from mcp.server import MCPServer
server = MCPServer("notes")
notes = []

@server.tool()
def note(text: str) -> str:
    "Keeps a text, and says how many there are."
    notes.append(text)
    return f"{len(notes)} {'SECRET_KEY' in os.environ}"

@server.tool()
def fail() -> str:
    "Always fails."
    raise ValueError("no")

@server.tool()
def refuse(code: int) -> str:
    "Answers with an error of the protocol."
    raise MCPError(code, "choose another code")

@server.tool()
def grow() -> str:
    "Takes memory without end."
    kept = []
    try:
        while True:
            kept.append(bytearray(1 << 24))
    finally:
        kept.clear()

@server.tool()
def room() -> str:
    "Says how much memory it may take, in MB."
    return str(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    return f"{sys.executable} {tmp_path / 'server.py'}"


def called(made, name, **arguments):
    return definition.results(made, write_call(Call(name, arguments)))[0]


def test_a_program_gives_its_tools_to_a_task(program, monkeypatch):
    """Each episode has a server of its own, which sees no secret and ends with the episode."""
    monkeypatch.setenv("SECRET_KEY", "x")
    task = tasks.get("with_tools", name="arithmetic", tools="", mcp=program)
    problem = task.problem("train", 0, 0)
    (one, opening), (two, _) = (task.turns.begin(problem, 0) for _ in range(2))
    offered = {each["function"]["name"]: each["function"] for each in opening.tools}
    assert offered["note"]["description"] == "Keeps a text, and says how many there are."
    assert offered["note"]["parameters"]["required"] == ["text"]

    def say(bench, text):
        return task.turns.step(bench, write_call(Call("note", {"text": text}))).messages[0][
            "content"
        ]

    assert [say(one, "a"), say(one, "b"), say(two, "c")] == ["1 False", "2 False", "1 False"]
    assert called(one.tools, "fail").startswith("error: ")
    assert called(one.tools, "note", text=1).startswith("error: ")
    end = task.turns.step(one, "7")
    assert (end.answer, end.reward, end.done) == ("7", None, True) and task.turns.waits
    assert task.reward(problem, str(problem.answer)).value is not None
    for bench in (one, two):
        task.turns.close(bench)
    assert not any(bench.tools[0].close.__self__._thread.is_alive() for bench in (one, two))


def test_arguments_that_a_server_refuses_are_an_observation(program):
    """A name that is no tool does not reach it. Its other errors of the protocol are faults."""
    task = tasks.get("with_tools", name="arithmetic", tools="", mcp=program, calls=9)
    player, problem = play.Player(task), task.problem("train", 0, 0)
    calls = [("refuse", {"code": -32602}), ("refuse", {"code": "x"}), ("note", {}), ("list", {})]
    made = [write_call(Call(*each)) for each in (*calls, ("refuse", {"code": -32603}))]
    _, *said, last = played(player.answer, problem, *made)
    assert [each.error for each in said] == [None] * 4
    shown = [each.messages[0]["content"] for each in said]
    assert shown[0] == "error: choose another code" and "'x' is not of type" in shown[1]
    assert "required" in shown[2] and shown[3] == "error: there is no tool 'list'"
    assert "choose another code" in last.error
    player.close()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_a_server_that_takes_memory_without_end_is_stopped(program):
    """The policy is told that the call failed, and other servers are as before."""
    one, two = (mcp_tools.connect(program, memory_mb=512) for _ in range(2))
    assert called(one, "grow").startswith("error: ")
    assert called(two, "note", text="a").startswith("1 ")
    for made in (one, two):
        made[0].close()
    task = tasks.get("with_tools", tools="", mcp=program, memory_mb=512)
    bench, _ = task.turns.begin(task.problem("train", 0, 0), 0)
    said = task.turns.step(bench, write_call(Call("room", {}))).messages[0]["content"]
    assert said == "512"
    task.turns.close(bench)


PAGES = """
import json, sys
most = int(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        info = {"name": "pages", "version": "1"}
        version = asked["params"]["protocolVersion"]
        said = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked["method"] == "tools/list":
        page = int((asked.get("params") or {}).get("cursor") or 0)
        said = {"tools": [{"name": f"t{page}", "inputSchema": {"type": "object"}}]}
        if page + 1 < most:
            said["nextCursor"] = str(page + 1)
    elif asked["method"] == "tools/call":
        said = {"content": [{"type": "text", "text": asked["params"]["name"]}]}
    else:
        said = None
    answer = {"result": said} if said else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def test_all_pages_of_tools_are_read_and_pages_without_end_are_an_error(tmp_path):
    file = tmp_path / "pages.py"
    file.write_text(PAGES)
    made = mcp_tools.connect(f"{sys.executable} {file} 3")
    assert [each.name for each in made] == ["t0", "t1", "t2"] and called(made, "t2") == "t2"
    made[0].close()
    with pytest.raises(RuntimeError, match=r"server .*pages\.py 1000000.* pages of tools"):
        mcp_tools.connect(f"{sys.executable} {file} 1000000")


STUBBORN = SERVER.replace(
    "import os,",
    """import pathlib, signal, subprocess
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import os,""",
).replace(
    'server.run("stdio")',
    """pathlib.Path(__file__).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
        try:
            server.run("stdio")
        finally:
            time.sleep(300)""",
)
"""Ignores the end of its input, and has started a process that leaves its group."""


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds):
    """Whether all of them have ended in time; they have after it."""
    end = time.monotonic() + seconds
    while any(map(lives, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    alive = [pid for pid in pids if lives(pid)]
    for pid in alive:
        os.kill(int(pid), signal.SIGKILL)
    return not alive


@pytest.mark.skipif(sys.platform != "linux", reason="descendants are found on Linux alone")
@pytest.mark.parametrize("killed", (False, True))
def test_a_server_ends_with_its_session_and_with_the_process_that_has_it(tmp_path, killed):
    (tmp_path / "server.py").write_text(STUBBORN)
    end = "os.kill(os.getpid(), 9)" if killed else "made[0].close(); time.sleep(300)"
    trainer = subprocess.Popen([
        sys.executable,
        "-c",
        "import os, sys, time\nfrom jaxrl.data.environments.tools import mcp_tools\n"
        f"made = mcp_tools.connect(sys.executable + ' {tmp_path / 'server.py'}')\n"
        f"assert len(made) == 5\nprint('made', flush=True)\n{end}",
    ], stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert trainer.stdout.readline() == b"made\n"
        assert gone((tmp_path / "pids").read_text().split(), 15)
    finally:
        trainer.kill()
        trainer.communicate()


def test_an_address_on_loopback_gives_its_tools(program):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([*program.split(), str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        made = mcp_tools.connect(f"http://127.0.0.1:{port}/mcp")
        assert called(made, "note", text="a").startswith("1 ")
        made[0].close()
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("server", "why"),
    [("no-such-program", "not found"), ("http://10.0.0.1/mcp", "another machine")],
)
def test_servers_that_cannot_be_are_refused(server, why):
    with pytest.raises(ValueError, match=why):
        tasks.get("with_tools", name="arithmetic", mcp=server)
    with pytest.raises(ValueError, match="one or more"):
        tasks.get("with_tools", name="arithmetic", tools="")
    with pytest.raises(ValueError, match="memory_mb=0 must be positive"):
        tasks.get("with_tools", memory_mb=0)
    assert untrusted.foreign({"task_args": {"mcp": server}}) == {f"mcp={server!r}"}


def test_a_server_that_does_not_start_is_an_error():
    with pytest.raises(RuntimeError, match="does not start"):
        mcp_tools.connect(f"{sys.executable} -c pass", seconds=20)


def test_a_server_that_hangs_at_its_start_is_ended(tmp_path):
    """The error says which, and after how long."""
    file = tmp_path / "pid"
    program = f"echo $$ > {file}; exec sleep 300"
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"server .*exec sleep 300.* start within 1 s"):
        mcp_tools.connect(shlex.join(["sh", "-c", program]), seconds=1.0)
    assert time.monotonic() - start < 20
    assert not Path(f"/proc/{int(file.read_text())}").exists()
