"""The server of one episode: which requests it answers, with what, and which it refuses."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import CancelledError

import pytest

from jaxrl.data.environments.bridges.dialects import DIALECTS, Answer
from jaxrl.data.environments.bridges.gateway import Gateway
from tests.data.test_agent_program import FUNCTION, TOKENS


class Program:
    """Sends requests to a gateway, as a program would."""

    def __init__(self, put):
        self.gateway = Gateway(put)

    def post(self, body, path="chat/completions", base=None, method="POST", **headers):
        request = urllib.request.Request(
            f"{base or self.gateway.base}/v1/{path}",
            json.dumps(body).encode(),
            {name.replace("_", "-"): value for name, value in headers.items()},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def test_a_repeated_request_gets_the_answer_that_was_recorded():
    """Clients try again on their own: no turn is sampled twice, neither before nor after it."""
    seen = []
    program = Program(seen.append)
    body, answers = {"messages": [{"role": "user", "content": "Hello"}]}, []
    threads = [
        threading.Thread(target=lambda: answers.append(program.post(body))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while not seen:
        time.sleep(0.01)
    seen[0].answer.set_result(Answer(1, "Hi", (), TOKENS))
    for thread in threads:
        thread.join()
    answers.append(program.post({**body, "temperature": 2.0}))
    assert len(seen) == 1 and len(set(answers)) == 1 and len(answers) == 4
    assert json.loads(answers[0][1])["choices"][0]["message"]["content"] == "Hi"
    program.gateway.close()


def test_a_client_that_says_that_it_does_not_try_again_gets_a_turn_of_its_own():
    """As a program that asks the same several times, and votes on the answers."""
    seen = []
    program = Program(lambda pending: (seen.append(pending), pending.answer.set_result(
        Answer(len(seen), str(len(seen)), (), TOKENS))))  # fmt: skip
    body = {"messages": [{"role": "user", "content": "Hello"}]}

    def said(tried):
        answer = program.post(body, x_stainless_retry_count=tried)[1]
        return json.loads(answer)["choices"][0]["message"]["content"]

    assert [said(tried) for tried in ("0", "0", "1", "2", "0", "1")] == [
        "1",
        "2",
        "2",
        "2",
        "3",
        "3",
    ]
    assert len(seen) == 3
    program.gateway.close()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_retry_gets_the_answer_of_the_request_whose_client_went_away(lost):
    """Several identical requests wait at once, and one of their clients loses its connection."""
    seen, found = [], {}
    program = Program(seen.append)
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
    port = int(program.gateway.base.split(":")[2].split("/")[0])
    head = f"POST {program.gateway.path}/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"x-stainless-retry-count: 0\r\nContent-Length: {len(body)}\r\n\r\n"
    clients = []
    for count in (1, 2):
        clients.append(socket.create_connection(("127.0.0.1", port)))
        clients[-1].sendall(head.encode() + body)
        while len(seen) < count:
            time.sleep(0.01)
    clients[lost].close()
    retry = threading.Thread(
        target=lambda: found.update(
            answer=program.post(json.loads(body), x_stainless_retry_count="1")[1]
        )
    )
    retry.start()
    time.sleep(0.2)
    for number, pending in enumerate(seen):
        pending.answer.set_result(Answer(number, str(number), (), TOKENS))
    retry.join()
    clients[1 - lost].close()
    assert json.loads(found["answer"])["choices"][0]["message"]["content"] == str(lost)
    assert len(seen) == 2
    program.gateway.close()


def test_an_episode_that_ends_refuses_every_request_that_waits():
    seen, answers = [], []
    program = Program(seen.append)
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    threads = [
        threading.Thread(
            target=lambda: answers.append(program.post(body, x_stainless_retry_count="0"))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while len(seen) < 3:
        time.sleep(0.01)
    program.gateway.close()
    for thread in threads:
        thread.join(5)
    assert [status for status, _ in answers] == [410] * 3


def test_a_request_with_other_tools_or_stops_is_another_one():
    seen = []
    program = Program(lambda pending: (seen.append(pending), pending.answer.set_result(
        Answer(len(seen), str(len(seen)), (), TOKENS))))  # fmt: skip
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    changes = [{}, {"tools": [{"type": "function", "function": FUNCTION}]}, {"stop": ["x"]}]
    for n, change in enumerate(changes * 2):  # each of them twice
        _, said = program.post({**body, **change, "stream": False})
        assert json.loads(said)["choices"][0]["message"]["content"] == str(n % 3 + 1)
    assert len(seen) == 3
    program.gateway.close()


def test_only_the_episodes_own_address_is_answered():
    seen = []
    program = Program(seen.append)
    base = program.gateway.base
    good = {"messages": [{"role": "user", "content": "Hello"}]}
    assert base.startswith("http://127.0.0.1:")
    assert program.post(good, base=base[:-3] + "abc")[0] == 404
    assert program.post(good, path="models")[0] == 404
    status, models = program.post(None, path="models", method="GET")
    assert status == 200 and [each["id"] for each in json.loads(models)["data"]] == ["policy"]
    assert program.post(None, path="models?limit=20", method="GET") == (status, models)
    status, model = program.post(None, path="models/org/a%20name", method="GET")
    assert status == 200 and json.loads(model)["id"] == "org/a name"
    for path, start in (("models", base[:-3] + "abc"), ("models/x", base[:-3] + "abc")):
        assert program.post(None, path=path, base=start, method="GET")[0] == 404
    assert program.post(None, path="modelsx", method="GET")[0] == 404
    for bad in ([], {"messages": 1}, {"messages": [{"role": []}]}, {**good, "n": 2}):
        assert program.post(bad)[0] == 400
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]
    assert "image_url" in program.post({"messages": picture})[1]
    assert not seen
    thread = threading.Thread(target=lambda: seen.append(program.post(good)))
    thread.start()
    while len(seen) < 1:
        time.sleep(0.01)
    program.gateway.close()
    thread.join(5)
    assert seen[1][0] == 410


ASKED = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "responses": {"input": [{"role": "user", "content": "Hello"}]},
    "messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9},
}
TOOLS = {
    "chat/completions": lambda tool: {"type": "function", "function": tool},
    "responses": lambda tool: {"type": "function", **tool},
    "messages": lambda tool: tool,
}
CALLS = {
    "chat/completions": lambda call: {
        "messages": [{"role": "assistant", "tool_calls": [{"id": "x", "function": call}]}]
    },
    "responses": lambda call: {"input": [{"type": "function_call", "call_id": "x", **call}]},
    "messages": lambda call: {
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {}, **call}]}]
    },
}
HALF = "\ud800"  # of a surrogate pair


def odd_bodies():
    """Of each protocol, by what is odd about them."""
    for path, good in ASKED.items():
        said, stop = "input" if path == "responses" else "messages", None
        if path != "responses":
            stop = "stop" if path == "chat/completions" else "stop_sequences"
        (message,) = good[said]
        changed = {
            "no object": [good],
            "no messages": {said: None},
            "messages are empty": {said: []},
            "messages are a number": {said: 5},
            "messages are an object": {said: {}},
            "a message is a text": {said: ["Hello"]},
            **{
                f"role {role!r}": {said: [message | {"role": role}]}
                for role in (5, None, [], "robot", HALF)
            },
            **{
                f"content {content!r}": {said: [message | {"content": content}]}
                for content in (
                    5, 0, False, {}, HALF, ["Hello"], [{"type": "text", "text": 5}], [{"text": "x"}]
                )
            },
            **{f"tools {tools!r}": {"tools": tools} for tools in (5, 0, "", {}, [5], [{}])},
            **{
                f"tool {tool!r}": {"tools": [TOOLS[path]({"name": "add"} | tool)]}
                for tool in (
                    {"name": 5}, {"name": HALF}, {"name": None}, {"description": 5},
                    {"description": [HALF]},
                    {"input_schema" if path == "messages" else "parameters": "x"},
                    {"input_schema" if path == "messages" else "parameters": [1]},
                )
            },
            **{
                f"a call of {name!r}": CALLS[path]({"name": name, "arguments": "{}"})
                for name in (5, None, [], HALF)
            },
        }  # fmt: skip
        if path == "responses":
            changed |= {
                f"after {i!r}": {"previous_response_id": i} for i in (5, 0, {}, ["x"], HALF)
            }
            changed |= {f"instructions {i!r}": {"instructions": i} for i in (5, ["x"], {}, HALF)}
        else:
            stops = (5, 0, "", {}, {"x": 1}, [["a"]], [1], [""], [HALF])
            changed |= {f"stop {value!r}": {stop: value} for value in stops}
        if path == "messages":
            changed |= {f"system {each!r}": {"system": each} for each in (5, 0, {}, ["x"], HALF)}
        for name, change in changed.items():
            body = change if isinstance(change, list) else good | change
            yield pytest.param(path, body, id=ascii(f"{path}: {name}"))


@pytest.fixture
def echo():
    """A gateway whose policy says `Hi`; the requests that reached it are `seen`."""
    seen = []
    program = Program(
        lambda pending: (
            seen.append(pending),
            pending.answer.set_result(Answer(len(seen), "Hi", (), TOKENS)),
        )
    )
    program.seen = seen
    yield program
    program.gateway.close()


@pytest.mark.sample(30, broad=15)
@pytest.mark.parametrize(("path", "body"), odd_bodies())
def test_a_body_that_is_no_request_is_refused_and_the_episode_goes_on(path, body, echo):
    """It reaches no policy. In the episode it would be an error, and the episode void."""
    status, why = echo.post(body, path=path)
    assert status == 400 and "cannot be read" in why and not echo.seen
    assert echo.post(ASKED[path], path=path)[0] == 200 and len(echo.seen) == 1


ALLOWED = [
    ("chat/completions", {"stop": None, "tools": None, "tool_choice": None}),
    ("chat/completions", {"stop": [], "tools": []}),
    ("chat/completions", {"stop": ["a", "b"]}),
    ("chat/completions", {"messages": [{"role": "user", "content": ""}]}),
    ("chat/completions", {"messages": [{"role": "assistant", "content": None}]}),
    ("chat/completions", {"tools": [{"type": "function", "function": {"name": "add"}}]}),
    ("responses", {"input": "Hello", "instructions": None, "previous_response_id": None}),
    ("responses", {"input": [], "previous_response_id": "resp_1"}),
    ("messages", {"system": "Be brief.", "stop_sequences": None, "tools": None}),
    ("messages", {"messages": [{"role": "user", "content": []}]}),
]


@pytest.mark.parametrize(("path", "change"), ALLOWED)
def test_what_the_protocols_leave_open_is_answered(path, change, echo):
    assert echo.post(ASKED[path] | change, path=path)[0] == 200 and len(echo.seen) == 1


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x", str((1 << 22) + 1)])
def test_a_length_that_cannot_be_is_refused(length, echo):
    port = int(echo.gateway.base.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        head = f"POST {echo.gateway.path}/v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404 ")


def test_a_request_that_comes_after_the_end_is_refused(echo):
    """As of a program whose request was on its way when the episode was closed."""
    before = threading.active_count()
    asked = DIALECTS["chat/completions"].read(ASKED["chat/completions"])
    echo.gateway.close()
    with pytest.raises(CancelledError):
        echo.gateway.turn(asked, first=True, gone=lambda: False)
    assert not echo.seen and threading.active_count() < before


def test_a_socket_that_is_asked_for_after_the_end_is_not_opened(echo, tmp_path):
    echo.gateway.close()
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="over"):
        echo.gateway.listen(tmp_path / "socket")
    assert threading.active_count() == before and not (tmp_path / "socket").exists()
