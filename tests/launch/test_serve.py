"""The server, by real requests to a tiny model."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from data import tokenizers
from jaxrl.policy import Policy
from launch import openai, serve
from models import decoder
from models.config import DecoderConfig

LETTERS = "abcdefghijklmnopqrstuvwxyz .,:;"


def actor() -> Policy:
    config = DecoderConfig(
        vocab_size=len(LETTERS) + 1, hidden_size=16, intermediate_size=24, num_layers=1,
        num_heads=2, num_kv_heads=1, head_dim=8, max_positions=128, tie_embeddings=False,
    )  # fmt: skip
    tokenizer = tokenizers.characters(LETTERS)

    def chat(messages, tools=None):
        return tokenizer.encode(" ".join(f"{m['role']}: {m['content']}" for m in messages) + " ")

    return Policy(
        config,
        decoder.init(config, jax.random.key(0)),
        dataclasses.replace(tokenizer, chat=chat),
    )


@pytest.fixture(scope="module")
def server():
    made = serve.make_server(
        actor(),
        serve.ServeConfig(
            port=0, slots=4, chunk=4, max_prompt_tokens=64, max_new_tokens=64, max_body_bytes=4096
        ),
        "tiny",
    )
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def send(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=300)
    raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection.request(method, path, raw, headers)
    response = connection.getresponse()
    answer = response.read().decode()
    connection.close()
    return response.status, answer


def post(server, path, **body):
    status, answer = send(server, "POST", path, body)
    assert status == 200, answer
    return json.loads(answer)


def events(text):
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


GREEDY = {"prompt": "hello", "temperature": 0, "max_tokens": 20, "logit_bias": {"0": -100}}


def test_completion(server):
    got = post(server, "/v1/completions", **GREEDY, logprobs=2, n=2, return_token_ids=True)
    assert got["object"] == "text_completion" and got["model"] == "tiny"
    first, second = got["choices"]
    assert [first["index"], second["index"]] == [0, 1] and first["text"] == second["text"]
    assert len(first["text"]) == 20 and first["finish_reason"] == "length"
    assert tokenizers.characters(LETTERS).decode(first["token_ids"]) == first["text"]
    logprobs = first["logprobs"]
    assert "".join(logprobs["tokens"]) == first["text"]
    for token, logp, top in zip(*logprobs.values(), strict=True):
        assert len(top) == 2 and max(top, key=top.get) == token
        assert top[token] == pytest.approx(logp, abs=1e-5)
    assert got["usage"] == {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45}


def test_streaming_gives_the_same(server):
    whole = post(server, "/v1/completions", **GREEDY)["choices"][0]["text"]
    status, answer = send(server, "POST", "/v1/completions", {**GREEDY, "stream": True})
    chunks = events(answer)
    assert status == 200 and len(chunks) > 1
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]


def test_stop_strings_are_never_shown(server):
    whole = post(server, "/v1/completions", **GREEDY)["choices"][0]["text"]
    stop = whole[9:12]
    expected = whole[: whole.index(stop)]
    got = post(server, "/v1/completions", **GREEDY, stop=stop)["choices"][0]
    assert got["text"] == expected and got["finish_reason"] == "stop"
    body = {**GREEDY, "stop": [stop, "~"], "stream": True}
    chunks = events(send(server, "POST", "/v1/completions", body)[1])
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected


def test_chat(server):
    body = {"messages": [{"role": "user", "content": "hi"}], "seed": 3, "max_tokens": 12}
    got = post(server, "/v1/chat/completions", **body, logprobs=True, top_logprobs=1)
    assert got["object"] == "chat.completion"
    message = got["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert len(got["choices"][0]["logprobs"]["content"]) == got["usage"]["completion_tokens"]
    chunks = events(send(server, "POST", "/v1/chat/completions", {**body, "stream": True})[1])
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks)
    assert text == message["content"]  # the same seed


def test_seeds_and_token_prompts(server):
    body = {"prompt": [8, 5], "max_tokens": 16, "temperature": 2}
    texts = [
        post(server, "/v1/completions", **body, **seed)["choices"][0]["text"]
        for seed in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {}, {})
    ]
    assert texts[0] == texts[1] and len(set(texts)) == 4


def test_many_at_once(server):
    """More callers than slots, some of one seed; each gets what it gets alone."""
    bodies = [{"prompt": "abc"[: 1 + i % 3], "max_tokens": 3 + i, "seed": i % 5} for i in range(10)]
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda b: post(server, "/v1/completions", **b), bodies))
    for body, got in zip(bodies, together, strict=True):
        alone = post(server, "/v1/completions", **body)
        assert alone["choices"] == got["choices"]


def test_a_client_that_leaves_frees_its_slots(server):
    body = json.dumps({**GREEDY, "max_tokens": 64, "stream": True, "n": 4}).encode()
    for _ in range(3):
        with socket.create_connection(server.server_address[:2]) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            connection.recv(200)
    assert post(server, "/v1/completions", **GREEDY)["choices"][0]["text"]


def test_models_and_health(server):
    assert send(server, "GET", "/health")[0] == 200
    assert json.loads(send(server, "GET", "/v1/models")[1])["data"][0]["id"] == "tiny"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt"),
        ([], "object"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "é"}, "alphabet"),
        ({"prompt": [99]}, "token 99"),
        ({"prompt": "a" * 65}, "max-prompt-tokens"),
        ({"prompt": "a", "max_tokens": 65}, "max-new-tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "n": 1000}, "n"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"prompt": "a", "logit_bias": {"99": 1}}, "token 99"),
        ({"prompt": "a", "presence_penalty": 1}, "presence_penalty"),
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "stream": True, "logprobs": 1}, "logprobs"),
        (b"{", "JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN"),
        (b"[" * 4000, "JSON"),
    ],
)
def test_malformed(server, body, message):
    status, answer = send(server, "POST", "/v1/completions", body)
    assert status == 400
    assert message in json.loads(answer)["error"]["message"]


def test_refused_before_reading(server):
    assert send(server, "POST", "/v1/completions", b"{" + b" " * 4096)[0] == 413
    assert send(server, "POST", "/v1/completions", b"{}", Content_Type="text/plain")[0] == 415
    assert send(server, "POST", "/v1/completions", b"{}", Host="evil.example:80")[0] == 403
    assert send(server, "POST", "/v1/other", {})[0] == 404
    assert send(server, "GET", "/v1/completions")[0] == 404
    assert send(server, "PUT", "/v1/completions", b"{}")[0] == 501
    with socket.create_connection(server.server_address[:2]) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: -5\r\n\r\n"
        )
        assert b" 411 " in connection.recv(100)


def test_loopback_by_default_and_limits():
    assert serve.ServeConfig().host == "127.0.0.1"
    with pytest.raises(ValueError, match="128 positions"):
        serve.make_server(actor(), serve.ServeConfig(), "tiny")


def test_no_template():
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(ValueError, match="no chat template; use /v1/completions"):
        openai.parse(
            body,
            tokenizers.characters(LETTERS),
            chat=True,
            max_prompt_tokens=8,
            max_new_tokens=8,
        )
