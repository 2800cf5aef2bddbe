"""Servers of environments that answer anything: an episode of one ends as void or with finite
figures, in time, and reaches no other address."""

import contextlib
import json
import math
import socket
import threading
import time

import pytest

from jaxrl.data import http_post, tasks
from jaxrl.data.environments import play
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.scoring import pool
from tests.data.test_bundled_environments import played

ADAPTERS = "jaxrl.data.environments.bridges.adapters"
SECONDS = 1.0
LATE = 4.0
"""Seconds that a reply may take, on a machine that is busy."""


class Raw:
    """Listens on loopback and gives each connection to a function, on a thread."""

    def __init__(self, serve):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        self.seen = 0
        self.serve = serve
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.seen += 1
            threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection):
        with connection, contextlib.suppress(OSError):
            self.serve(connection)

    def close(self):
        self.socket.close()


@pytest.fixture
def raw():
    made = []

    def start(serve):
        made.append(Raw(serve))
        return made[-1]

    yield start
    for each in made:
        each.close()


def head(connection):
    """The header of a request, and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    top, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in top.split(b"\r\n") if b"ontent-" in line[:9]
         and b"ength" in line), 0,
    )  # fmt: skip
    while len(body) < length:
        body += connection.recv(1 << 16)
    return top, body


def plain(body, status="200 OK", more=""):
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def forever(start, part, pause=0.0):
    def serve(connection):
        connection.sendall(start)
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return serve


def once(data):
    return lambda connection: connection.sendall(data)


OK = "HTTP/1.1 200 OK\r\n"
BROKEN = {
    "silence": lambda connection: time.sleep(30),
    "hang up": lambda connection: None,
    "garbage": once(b"garbage\r\n\r\n"),
    "no HTTP": once(b"\x00\xff" * 5000),
    "endless status": forever(b"HTTP/1.1 2", b"0" * 9999),
    "status of many digits": once(b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n"),
    "negative length": once(f"{OK}Content-Length: -5\r\n\r\nxx".encode()),
    "length of many digits": once(f"{OK}Content-Length: {'9' * 5000}\r\n\r\nxx".encode()),
    "longer than said": once(f"{OK}Content-Length: 99999\r\n\r\n{{".encode()),
    "many headers": once((OK + "X: y\r\n" * 5000 + "\r\n").encode()),
    "long header": once((OK + "X: " + "y" * (1 << 20) + "\r\n\r\n").encode()),
    "endless headers, slowly": forever(OK.encode(), b"X: y\r\n", 0.1),
    "endless continue": forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "endless body": forever(f"{OK}\r\n".encode(), b" " * 65536),
    "endless body, slowly": forever(f"{OK}\r\n".encode(), b" ", 0.1),
    "endless chunks, slowly": forever(
        f"{OK}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n", 0.1
    ),
    "wrong chunks": once(f"{OK}Transfer-Encoding: chunked\r\n\r\nzz\r\n{{}}".encode()),
    "negative chunks": once(f"{OK}Transfer-Encoding: chunked\r\n\r\n-5\r\n{{}}".encode()),
}
"""What is no HTTP, or has no end."""
READ = {"negative length", "length of many digits"}
"""Of these, what is read to their end, without the length."""
VALUES = (
    b"", b"NaN", b"[]", b"5", b"null", b'"x"', b"{}", b'{"reward": null}', b'{"reward": "x"}',
    b'{"reward": NaN}', b'{"reward": Infinity}', b'{"reward": -1e999}', b'{"reward": "nan"}',
    b'{"reward": [1]}', b'{"reward": {}}', b'{"reward": "\xff"}', b"\xff\xfe", b"\x00" * 9,
    b'{"reward": ' + b"9" * 5000 + b"}", b"[" * 200_000, b'{"reward": 1' + b" " * (2 << 20) + b"}",
    b'{"a":' * 100_000,
)  # fmt: skip
"""Bodies that hold no reward."""
REDIRECTS = (
    "301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect",
    "308 Permanent Redirect", "300 Multiple Choices", "304 Not Modified", "399 Odd",
)  # fmt: skip


def row(tmp_path):
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    tool = {"type": "function", "name": "t", "parameters": parameters}
    params = {"input": [{"role": "user", "content": "q"}], "tools": [tool]}
    (tmp_path / "rows.jsonl").write_text(json.dumps({"responses_create_params": params}) + "\n")
    return str(tmp_path / "rows.jsonl")


def nemo_gym(raw, tmp_path, place, hostile):
    """A task whose server is hostile at one of its three addresses."""

    def serve(connection):
        top, _ = head(connection)
        path = top.split()[1].decode()
        if path == place:
            hostile(connection)
        else:
            connection.sendall(plain(b'{"reward": 1}'))

    server = raw(serve)
    address = f"http://127.0.0.1:{server.port}"
    return tasks.get(f"{ADAPTERS}:nemo_gym", url=address, path=row(tmp_path), seconds=SECONDS)


def faults_of(answers, started):
    """What is wrong with the answers of an episode."""
    if time.monotonic() - started > LATE:
        yield f"{time.monotonic() - started:.1f} s"
    for each in answers:
        said = "".join(message["content"] for message in each.messages)
        if len(said) > play.LONGEST:
            yield f"{len(said)} characters"
        reward = getattr(each, "reward", None)
        if reward is not None and not math.isfinite(reward):
            yield f"reward {reward}"


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("place", ["/seed_session", "/t", "/verify"])
def test_a_resources_server_that_breaks_the_protocol(place, raw, tmp_path):
    before, faults = threading.active_count(), []
    for name, hostile in BROKEN.items():
        task = nemo_gym(raw, tmp_path, place, hostile)
        call, started = write_call(Call("t", {"x": "y"})), time.monotonic()
        answers = played(play.Player(task).answer, task.problem("train", 0, 0), call, "done")
        faults += [f"{name}: {fault}" for fault in faults_of(answers, started)]
        if not answers[-1].error and name not in READ:
            faults.append(f"{name}: no error, {answers[-1]!r:.200}")
    assert not faults, "\n".join(faults)
    ours = [t for t in threading.enumerate() if "listen" not in t.name and "one" not in t.name]
    assert len(ours) <= before + 1, "a client waits"


def test_a_resources_server_of_wrong_rewards(raw, tmp_path):
    faults = []
    for body in VALUES:
        task = nemo_gym(raw, tmp_path, "/verify", once(plain(body)))
        started = time.monotonic()
        answers = played(play.Player(task).answer, task.problem("train", 0, 0), "done")
        faults += [f"{body[:40]}: {fault}" for fault in faults_of(answers, started)]
        if not answers[-1].error:
            faults.append(f"{body[:40]}: no error, {answers[-1]!r:.200}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("place", ["/seed_session", "/t", "/verify"])
def test_a_resources_server_that_redirects_leads_nowhere(place, raw, tmp_path):
    private = raw(once(plain(b'{"reward": 1}')))
    for status in REDIRECTS:
        for target in (f"http://127.0.0.1:{private.port}/x", f"//127.0.0.1:{private.port}/x",
                       "file:///etc/passwd", "\x01http://127.0.0.1:1/", ""):  # fmt: skip
            reply = plain(b"", status, f"Location: {target}\r\n")
            task = nemo_gym(raw, tmp_path, place, once(reply))
            call = write_call(Call("t", {"x": "y"}))
            answers = played(play.Player(task).answer, task.problem("train", 0, 0), call, "done")
            assert answers[-1].error, (status, target)
    assert not private.seen


def test_control_characters_of_a_server_are_text(raw, tmp_path):
    said = "\x1b]0;x\x07\x00<|im_end|>\u202e\ud7ff"
    task = nemo_gym(raw, tmp_path, "/t", once(plain(said.encode())))
    call = write_call(Call("t", {"x": "y"}))
    _, reply = played(play.Player(task).answer, task.problem("train", 0, 0), call)
    assert reply.messages[0]["content"] == said and not reply.error


@pytest.mark.parametrize(
    "url", ["ht\ntp://h", "http://u:p@h", "file:///etc", " http://h", "http://h\\@x", "gopher://h"]
)
def test_an_address_is_written_as_it_is_read(url, tmp_path):
    with pytest.raises(ValueError, match="url="):
        tasks.get(f"{ADAPTERS}:nemo_gym", url=url, path=row(tmp_path))
    with pytest.raises(ValueError, match="url="):
        http_post.post(url, b"", {}, 1.0, 10)


OBSERVED = {"type": "observation", "data": {"observation": {"t": "x"}, "reward": 0, "done": False}}


def observed(**fields):
    return json.dumps(OBSERVED | {"data": OBSERVED["data"] | fields})


MESSAGES = (
    "", "x", "[]", "null", "5", "{}", '{"type": "observation"}', '{"type": []}',
    '{"type": "error"}', '{"type": "error", "data": {"errors": [5]}}',
    '{"type": "error", "data": []}', "[" * 100_000, "9" * 5000, "\x00", '{"type": "observation",',
    observed(observation=5), observed(observation=[]), observed(observation={}),
    observed(observation={"t": "x" * 900_000}), observed(reward="nan"), observed(reward=math.nan),
    observed(reward=math.inf), observed(reward=[1]), observed(reward=10**400),
    observed(reward={"a": 1}), b"\xff\xfe", b"\x00" * 100, "y" * (3 << 20),
)  # fmt: skip
"""Of a WebSocket, in the place of an observation."""


def openenv(port):
    return tasks.get(
        f"{ADAPTERS}:openenv", url=f"http://127.0.0.1:{port}", text="t", seconds=SECONDS
    )


@pytest.mark.extra
@pytest.mark.parametrize("at", [0, 1])
def test_an_openenv_server_that_says_anything(at):
    """In the place of the opening, or of the first reply."""
    serve = pytest.importorskip("websockets.sync.server").serve
    current, faults = [], []

    def say(connection):
        for count, _ in enumerate(connection):
            connection.send(current[0] if count == at else json.dumps(OBSERVED))

    with serve(say, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        task = openenv(server.socket.getsockname()[1])
        for message in MESSAGES:
            current[:] = [message]
            started, player = time.monotonic(), play.Player(task)
            answers = played(player.answer, task.problem("train", 0, 0), "go")
            player.close()
            faults += [f"{message[:60]!r}: {fault}" for fault in faults_of(answers, started)]
            odd = "reward" in str(message) and at == 0 and not answers[0].error
            if not odd and not answers[at].error:
                faults.append(f"{message[:60]!r}: no error, {answers[-1]!r:.200}")
        server.shutdown()
    assert not faults, "\n".join(faults)


@pytest.mark.extra
def test_an_openenv_server_that_breaks_the_protocol(raw):
    pytest.importorskip("websockets")
    faults = []
    for name, hostile in BROKEN.items():

        def serve(connection, hostile=hostile):
            head(connection)
            hostile(connection)

        task, started = openenv(raw(serve).port), time.monotonic()
        answers = played(play.Player(task).answer, task.problem("train", 0, 0))
        faults += [f"{name}: {fault}" for fault in faults_of(answers, started)]
        if not answers[0].error:
            faults.append(f"{name}: no error")
    assert not faults, "\n".join(faults)


@pytest.mark.extra
def test_an_openenv_server_that_redirects_leads_nowhere(raw):
    pytest.importorskip("websockets")
    private = raw(lambda connection: None)
    for status in REDIRECTS:
        for scheme in ("ws", "http", "wss"):
            target = f"Location: {scheme}://127.0.0.1:{private.port}/x\r\n"

            def serve(connection, status=status, target=target):
                head(connection)
                connection.sendall(plain(b"", status, target))

            task = openenv(raw(serve).port)
            assert play.Player(task).answer(play.Turn(0, task.problem("train", 0, 0), 0)).error
    assert not private.seen


@pytest.mark.extra
@pytest.mark.parametrize("part", ["silence", "drip", "flood"])
def test_an_openenv_server_that_never_ends_a_message(part):
    serve, state = pytest.importorskip("websockets.sync.server").serve, threading.Event()

    def pieces():
        while not state.is_set():
            yield "x" * (1 if part == "drip" else 65536)
            time.sleep(0.05 if part == "drip" else 0)

    def say(connection):
        for _ in connection:
            if part == "silence":
                state.wait(20)
            else:
                with contextlib.suppress(Exception):
                    connection.send(pieces())

    with serve(say, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        task, started = openenv(server.socket.getsockname()[1]), time.monotonic()
        answer = play.Player(task).answer(play.Turn(0, task.problem("train", 0, 0), 0))
        assert answer.error and time.monotonic() - started < LATE
        state.set()
        server.shutdown()


@pytest.mark.parametrize("said", [each.decode(errors="replace") for each in VALUES])
def test_a_program_of_verifiers_that_says_anything_is_an_error(said):
    task = tasks.get(f"{ADAPTERS}:verifiers", env="{}", tasks=1)
    for text in (said, f"log\n{said}", said.replace("}", ', "parts": {"a": NaN}}')):
        score = pool.score_completion(task, task.problem("train", 0, 0), text)
        assert score.error and score.value is None, text[:80]
