"""The judge, against a server of our own that fails in every way."""

import asyncio
import http.server
import json
import threading

import pytest

from data.rewards import judge
from data.types import Problem

PROBLEM = Problem("p", "What is 2+2?", "4")


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.seen.append((self.path, dict(self.headers), body))
            status, reply = self.server.replies.pop(0)
            payload = (
                reply
                if isinstance(reply, bytes)
                else json.dumps(
                    {"choices": [{"message": {"role": "assistant", "content": reply}}]}
                ).encode()
            )
            if status == "drop":
                self.connection.close()
                return
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.seen, made.replies = [], []
        made.handle_error = lambda *_: None  # clients that hang up
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        made.url = f"http://127.0.0.1:{made.server_port}/v1"
        yield made
        made.shutdown()
        thread.join()


def endpoint(server, **changes):
    return judge.Endpoint(
        **{"url": server.url, "model": "m", "wait_s": 0.001, "timeout_s": 5.0, **changes}
    )


def score(reward, completion="4", problem=PROBLEM):
    return asyncio.run(reward(problem, completion))


def test_marks_are_weighed(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    server.replies = [(200, '{"right": 10, "brief": 4}'), (200, '```json\n{"own": 5}\n```')]
    reward = judge.rubric(endpoint(server), {"right": (3.0, "it is 4"), "brief": (1.0, "short")})
    got = score(reward, "{question} is 4")
    assert got.value == pytest.approx((3 * 1.0 + 0.4) / 4) and got.parts == {
        "right": 1.0,
        "brief": 0.4,
    }
    path, headers, body = server.seen[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer k"
    prompt = body["messages"][0]["content"]
    assert "{question} is 4" in prompt and "What is 2+2?" in prompt and body["temperature"] == 0.0
    own = Problem("p", "q", None, metadata={"rubric": {"own": (1.0, "x")}})
    assert score(reward, problem=own).value == 0.5


def test_retries_then_success(server):
    good = (200, '{"correct": 10}')
    server.replies = [(429, "wait"), (503, "busy"), (200, b"not json"), good]
    assert score(judge.correctness(endpoint(server))).value == 1.0
    assert len(server.seen) == 4
    server.replies = [("drop", ""), good]
    assert score(judge.correctness(endpoint(server))).value == 1.0


def test_failures_are_errors_not_zeros(server):
    reward = judge.correctness(endpoint(server, attempts=2))
    for replies, message in [
        ([(500, "x"), (500, "x")], "HTTP 500"),
        ([(401, "no")], "HTTP 401"),
        ([(200, "I think it is right")], "not JSON"),
        ([(200, "[10]")], "not a JSON object"),
        ([(200, '{"correct": 11}')], "is not marks"),
        ([(200, '{"correct": true}')], "is not marks"),
        ([(200, '{"other": 1}')], "is not marks"),
        ([(200, b'{"choices": []}')] * 2, "IndexError"),
    ]:
        server.replies = list(replies)
        got = score(reward)
        assert got.value is None and got.error.startswith("judge: ") and message in got.error
        assert not server.replies
    away = judge.correctness(judge.Endpoint("http://127.0.0.1:9/v1", "m", attempts=1))
    assert "refused" in score(away).error


def test_a_hung_judge_times_out(server):
    release = threading.Event()
    server.replies = [(200, "x")]
    original = server.RequestHandlerClass.do_POST
    server.RequestHandlerClass.do_POST = lambda self: release.wait(5) and original(self)
    got = score(judge.correctness(endpoint(server, timeout_s=0.1, attempts=1)))
    release.set()
    assert "time" in got.error.lower()


def test_the_cache_is_kept_by_prompt_and_shared(server, tmp_path):
    cached = endpoint(server, cache=str(tmp_path / "replies.db"))
    server.replies = [(200, '{"correct": 10}'), (200, '{"correct": 0}')]
    assert [score(judge.correctness(cached)).value for _ in range(3)] == [1.0] * 3
    assert score(judge.correctness(cached), "5").value == 0.0
    assert len(server.seen) == 2
