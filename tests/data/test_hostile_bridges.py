"""Bridges to servers and programs of others: replies of wrong types, clients that are held, tools
that cannot be told apart. What each costs is an episode, and never a reward."""

import base64
import hashlib
import json
import socket
import struct
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from jaxrl.data import http_post, tasks
from jaxrl.data.environments import Environment, Opening, Reply, play, unscored
from jaxrl.data.environments.bridges import openenv_session, server_reply
from jaxrl.data.environments.tools import arguments, definition, schemas
from jaxrl.data.environments.wrappers import with_tools
from jaxrl.data.scoring import pool
from jaxrl.data.types import LARGEST_REWARD, Problem, Score, Task, is_reward
from tests.data.test_bundled_environments import played
from tests.data.test_hostile_servers import (
    ADAPTERS,
    LATE,
    OBSERVED,
    head,
    nemo_gym,
    openenv,
    plain,
    raw,
)  # fmt: skip
from tests.data.test_verifiers import MODULES
from tests.data.test_verifiers import NAME as VERIFIERS

__all__ = ["raw"]  # a fixture

NO_NUMBERS = (
    "true", "false", '"1"', '" 1_0 "', '"1e3"', "null", "[1]", '{"value": 1}', "NaN", "Infinity",
    "-Infinity", "1e400", "-1e400", "1e308", "1e39", "-1e16", "1" + "0" * 400, "9" * 4000,
)  # fmt: skip
"""JSON that is no reward."""


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number_is_no_reward(value):
    with pytest.raises(server_reply.WrongReply, match="reward") as error:
        fields = server_reply.read_object(f'{{"reward": {value}}}', "the reply")
        server_reply.number(server_reply.field(fields, "reward", "the reply"), "reward")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("value", ["0", "1", "-1", "0.5", "1e15", "-1e-300", "1.0"])
def test_numbers_are_rewards(value):
    assert server_reply.number(json.loads(value), "reward") == float(value)


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "1", "null", '"x"', "[" * 100_000, '{"a":' * 100_000, b"\xff\xfe"]
)
def test_what_is_no_object_is_an_error_that_shows_its_beginning(text):
    with pytest.raises(server_reply.WrongReply, match="the reply is ") as error:
        server_reply.read_object(text, "the reply")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("value", ["true", "false", 0, 1, None, [], [1], {}])
def test_what_is_no_flag_ends_no_episode(value):
    with pytest.raises(server_reply.WrongReply, match="neither true nor false"):
        server_reply.flag(value, "done")


@pytest.mark.parametrize("value", [1e16, -1e16, 1e308, 10**20, np.float64(1e39)])
def test_a_reward_that_leaves_a_batch_without_advantages_is_an_error(value):
    assert not is_reward(value) and is_reward(LARGEST_REWARD)
    with pytest.raises(ValueError, match="scale it"):
        Score(value)
    world = Environment(
        lambda problem, seed: (None, Opening(({"role": "user", "content": "x"},))),
        lambda state, action: Reply(reward=value, done=True),
    )
    task = Task("t", lambda split, seed, i: Problem("p", "", None), unscored, turns=world)
    reply = played(play.Player(task).answer, task.problem("train", 0, 0), "a")[-1]
    assert "at most 1e+15" in reply.error and reply.reward is None
    with pytest.raises(TypeError, match="at most"):
        play.checked(Reply(others={0: value}), Reply, world)


VERIFIED = (
    *(f'{{"reward": {value}}}' for value in NO_NUMBERS[:3]),
    '{"reward": 1, "mask_sample": true}', '{"reward": 1, "mask_sample": "false"}',
    '{"reward": 1, "mask_sample": true, "failure_reason": "the judge was away"}',
)  # fmt: skip
"""Answers to `verify` that give no reward: in the last ones the server says so."""


def test_a_resources_server_gives_numbers_of_episodes_that_it_judged(raw, tmp_path):
    current = []
    task = nemo_gym(raw, tmp_path, "/verify", lambda connection: connection.sendall(current[0]))
    for n, body in enumerate(VERIFIED):
        current[:] = [plain(body.encode())]
        end = played(play.Player(task).answer, task.problem("train", 0, 0), "done", episode=n)[-1]
        assert end.error and end.reward is None, body
        assert "away" not in body or "the judge was away" in end.error
    current[:] = [plain(b'{"reward": 1, "mask_sample": false}')]
    end = played(play.Player(task).answer, task.problem("train", 0, 0), "done", episode=n + 1)[-1]
    assert end.reward == 1.0


def test_headers_of_a_response_are_bounded(raw):
    """Cookies are read without a limit of time: 90 headers of 65 KB took 14 s."""
    cookies = "".join(f"Set-Cookie: a{n}=b{';x=y' * 16_000}\r\n" for n in range(90))

    def serve(connection):
        head(connection)
        connection.sendall(plain(b"{}", more=cookies))

    server = raw(serve)
    with pytest.raises(http_post.TooLong, match="headers"):
        http_post.post(f"http://127.0.0.1:{server.port}/", b"", {}, 30.0, 100)


@pytest.mark.parametrize("said", NO_NUMBERS)
def test_a_program_of_verifiers_reports_numbers(said):
    task = tasks.get(VERIFIERS, env="{}", tasks=1)
    for text in (f'{{"reward": {said}, "parts": {{}}}}',
                 f'{{"reward": 1, "parts": {{"a": {said}}}}}'):  # fmt: skip
        score = pool.score_completion(task, task.problem("train", 0, 0), text)
        assert score.value is None and ("reward=" in score.error or "a=" in score.error)


PRINTING = """
import atexit, os, sys
atexit.register(print, '\\n{"reward": 1, "parts": {}}')
print("a line without an end", end="")
mode = os.environ["LC_MODE"]
if mode == "closes":
    os.close(1), os.close(2)
elif mode == "floods":
    for _ in range(3000):
        print("x" * 1000, file=sys.stderr)
        print("x" * 1000)
elif mode == "forks":
    if os.fork() == 0:
        import time
        time.sleep(600)
elif mode == "changes":
    import signal
    os.chdir("/"), os.environ.clear(), signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
"""An environment that prints a report, as it may print a completion."""


@pytest.mark.parametrize("mode", ["prints", "closes", "floods", "forks"])
def test_what_an_environment_of_verifiers_prints_is_no_report(mode, tmp_path, monkeypatch):
    for name, source in MODULES.items():
        path = tmp_path / "verifiers/v1" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source) + (PRINTING if "loaders" in name else ""))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LC_MODE", mode)
    task = tasks.get(VERIFIERS, env=json.dumps({"taskset": {"id": "sums"}}), tasks=2, seconds=60)
    player, problem = play.Player(task), task.problem("train", 0, 0)
    end = played(player.answer, problem, "7", "7")[-1]
    player.close()
    if mode == "closes":  # so that it cannot end well
        assert "status" in end.error
        return
    assert not end.error
    score = task.reward(problem, end.answer)
    assert score.value == 0.0 and dict(score.parts) == {"turns": 2.0}


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_a_program_that_kills_its_keeper_ends_with_it(tmp_path):
    from jaxrl.data.environments.bridges import agent_program

    program = tmp_path / "program.py"
    program.write_text(
        f"import os, signal, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)\n"
    )
    task = agent_program.task(f"{sys.executable} {program}", seconds=60)
    started, player = time.monotonic(), play.Player(task)
    opening = played(player.answer, task.problem("train", 0, 0))[0]
    player.close()
    assert "status -9" in opening.error and time.monotonic() - started < 50
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


def is_alive(pid):
    """Whether a process runs; one that has ended may have no parent that reads its status."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def accept(connection):
    """Begin a WebSocket by hand."""
    top, _ = head(connection)
    key = next(
        line.split(b": ")[1] for line in top.split(b"\r\n") if b"websocket-key" in line.lower()
    )
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    accepted = base64.b64encode(digest).decode()
    connection.sendall(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accepted}\r\n\r\n".encode()
    )


def frame(kind, data=b"", end=True):
    size = len(data)
    count = bytes([size]) if size < 126 else b"\x7e" + struct.pack("!H", size)
    return bytes([0x80 * end | kind]) + count + data


def reads_nothing(connection):
    connection.recv(1000)
    connection.sendall(frame(1, json.dumps(OBSERVED).encode()))
    time.sleep(20)


def pings(connection):
    while True:
        connection.sendall(frame(9, b"x" * 100) * 1000)


def empty_parts(connection):
    connection.sendall(frame(1, b"{", end=False))
    while True:
        connection.sendall(frame(0, b"", end=False) * 1000)


def says_goodbye(connection):
    connection.sendall(frame(8, struct.pack("!H", 1000) + b"bye"))
    time.sleep(20)


@pytest.mark.extra
@pytest.mark.parametrize("hold", [reads_nothing, pings, empty_parts, says_goodbye])
def test_an_openenv_server_holds_no_client(hold, raw):
    pytest.importorskip("websockets")

    def serve(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        accept(connection)
        hold(connection)

    task, answers = openenv(raw(serve).port), []

    def episode():
        player = play.Player(task)
        answers.extend(played(player.answer, task.problem("train", 0, 0), "y" * 20_000_000))
        player.close()

    thread = threading.Thread(target=episode, daemon=True)
    thread.start()
    thread.join(5 * LATE)
    assert not thread.is_alive() and answers[-1].error


WRONG = (
    {"done": "false"}, {"done": None}, {"done": 0}, {"done": [1]}, {"reward": "1"},
    {"reward": 1e308}, {"observation": {}}, {"observation": None}, {"observation": "t"},
)  # fmt: skip
MISSING = ("done", "reward", "observation")


@pytest.mark.extra
def test_an_openenv_server_of_wrong_fields():
    serve = pytest.importorskip("websockets.sync.server").serve
    current = []

    def say(connection):
        for count, _ in enumerate(connection):
            connection.send(current[count])

    with serve(say, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        task = tasks.get(f"{ADAPTERS}:openenv", url=address, text="t", seconds=30.0)
        data, plainly = OBSERVED["data"], OBSERVED
        said = [data | fields for fields in WRONG]
        said += [{k: v for k, v in data.items() if k != name} for name in MISSING]

        def end(number):
            player = play.Player(task)
            answers = played(player.answer, task.problem("train", 0, 0), "go", episode=number)
            player.close()
            return answers[-1]

        for n, fields in enumerate(said):
            current[:] = map(json.dumps, (plainly, plainly | {"data": fields}))
            assert "WrongReply" in end(n).error, fields
        current[:] = map(json.dumps, (plainly, plainly | {"data": data | {"reward": True}}))
        assert end(100).reward == 1.0  # the protocol allows it
        current[:] = map(json.dumps, (plainly | {"data": data | {"done": True}}, plainly))
        assert "over at its reset" in end(101).error
        server.shutdown()


@pytest.mark.parametrize(
    "url", ["http://u:p@h", "ws://h\n", "http://h/?key=1", "http://h#x", "file:///x", "h:80", ""]
)
def test_an_address_of_openenv_is_written_as_it_is_read(url):
    with pytest.raises(ValueError, match="url="):
        openenv_session.address_of(url)


def test_addresses_of_openenv():
    assert openenv_session.address_of("https://h/a/") == "wss://h/a/ws"
    assert openenv_session.address_of("ws://h:1") == "ws://h:1/ws"


@pytest.mark.extra
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8000"])
def test_a_page_in_a_browser_plays_no_episode_of_ours(origin):
    client = pytest.importorskip("websockets.sync.client")
    from jaxrl.data.environments.bridges import openenv_server

    with openenv_server.served(tasks.get("game24")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/ws"
        with pytest.raises(Exception, match="403"), client.connect(address, origin=origin):
            pass
        server.shutdown()


NO_NAMES = ("", " ", "a\x00", "a\x1b[2J", "a\nb", "\u202ea", "\ud800", "x" * 129)


@pytest.mark.parametrize("names", [*((name,) for name in NO_NAMES), ("t", "t"), ("t", "u", "t")])
def test_tools_that_cannot_be_called_apart_are_refused_and_closed(names):
    closed, inner = [], tasks.get("arithmetic")
    tools = [
        definition.Tool(name, "", {}, lambda: "", lambda name=name: closed.append(name))
        for name in names
    ]
    world = with_tools.environment(inner, lambda seed: tools)
    with pytest.raises(ValueError, match="named"):
        world.begin(inner.problem("train", 0, 0), 0)
    assert closed == list(names)


def test_tools_of_a_schema_that_is_none_are_closed():
    closed, inner = [], tasks.get("arithmetic")
    odd = definition.Tool("t", "", {"properties": 5}, lambda: "", lambda: closed.append("t"))
    with pytest.raises(ValueError, match="no JSON schema"):
        with_tools.environment(inner, lambda seed: [odd]).begin(inner.problem("train", 0, 0), 0)
    assert closed == ["t"]


ITSELF = {"anyOf": [{"type": "object"}, *[{"$ref": "#/$defs/a"}] * 60]}
WIDE = {
    "properties": {"x": {"items": {"anyOf": [{"type": "string"}] * 300}}},
}
INVOLVED = {
    "a reference to itself": ({"properties": {"x": ITSELF}, "$defs": {"a": ITSELF}}, {"y": [1]}),
    "many branches of many items": (WIDE, [5] * 1000),
    "many values of many items": (
        {"properties": {"x": {"items": {"enum": list(range(900))}}}}, [899] * 1000
    ),
    "long errors": ({"properties": {"x": {"anyOf": [{"type": "string"}] * 300}}}, [5] * 20_000),
}  # fmt: skip


@pytest.mark.parametrize("name", INVOLVED)
def test_a_schema_of_others_takes_bounded_work(name):
    parameters, value = INVOLVED[name]
    started, why = time.process_time(), ""
    for compare in (
        lambda: arguments.check(parameters, {"x": value}),
        lambda: schemas.fitted({"x": value}, parameters, parameters),
    ):
        try:
            compare()
        except ValueError as error:
            why += str(error)
    assert "too involved" in why and time.process_time() - started < 20
