"""The server, by real requests to a tiny model."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import json
import os
import socket
import string
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data.text import tokenizers
from jaxrl.launch.server import command, openai, openai_replies
from jaxrl.launch.server import engine as engines
from jaxrl.launch.server.http import Handler, ServeConfig, Server
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout.policy import Policy
from jaxrl.sampling import sampler
from jaxrl.sampling.slots import Features
from jaxrl.types import Completion, Request

LETTERS = "abcdefghijklmnopqrstuvwxyz .,:;"


def actor(letters: str = LETTERS, layers: int = 1) -> Policy:
    config = DecoderConfig(
        vocab_size=len(letters) + 1, hidden_size=16, intermediate_size=24, num_layers=layers,
        num_heads=2, num_kv_heads=1, head_dim=8, max_positions=128, tie_embeddings=False,
    )  # fmt: skip
    tokenizer = tokenizers.characters(letters)

    def chat(messages, tools=None, **variables):
        called = [c["function"]["name"] for m in messages for c in m.get("tool_calls", [])]
        offered = [tool["function"]["name"] for tool in tools or []]
        said = [f"{m['role']}: {m['content']}" for m in messages]
        words = [*offered, *(name.replace("_", "") for name in variables), *said, *called]
        return tokenizer.encode(" ".join(words) + " ")

    return Policy(
        config,
        decoder.init(config, jax.random.key(0)),
        dataclasses.replace(tokenizer, chat=chat),
    )


@pytest.fixture(scope="module")
def server():
    with serving(actor()) as made:
        yield made


@contextlib.contextmanager
def serving(policy: Policy, **limits: int | str) -> Iterator[Server]:
    limits = {"max_prompt_tokens": 64, "max_new_tokens": 64, "max_body_bytes": 4096} | limits
    made = command.make_server(policy, ServeConfig(port=0, slots=4, chunk=4, **limits), "tiny")
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


@pytest.mark.broad
@pytest.mark.parametrize("fields", [{"drafts": "group"}, {"drafts": "layers", "draft_layers": 1}])
def test_drafts_change_no_answer(fields):
    body = {"prompt": [5, 9, 5, 9, 5, 9], "max_tokens": 24, "return_token_ids": True}
    bodies = [{**body, "temperature": temperature, "seed": 3} for temperature in (0, 0.3, 1)]
    policy = actor(layers=2)
    with serving(policy) as plain, serving(policy, **fields) as drafted:
        for each in bodies:
            expected, answer = (post(s, "/v1/completions", **each) for s in (plain, drafted))
            assert answer["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    with pytest.raises(ValueError, match="draft_tokens=5 with drafts='none'"):
        command.make_server(
            actor(), ServeConfig(max_prompt_tokens=8, max_new_tokens=8, draft_tokens=5), "tiny"
        )
    with (
        pytest.raises(ValueError, match="one layer, so there are no first layers"),
        serving(actor(), drafts="layers", draft_layers=1),
    ):
        pass


def test_ids_of_the_prompt_stand_where_vllm_puts_them(server):
    """Beside the choices of a chat, and in each choice of a completion; in a stream, once."""
    asking = {**GREEDY, "return_token_ids": True}
    prompt = tokenizers.characters(LETTERS).encode("hello")
    whole = post(server, "/v1/completions", **asking, n=2)
    assert [c["prompt_token_ids"] for c in whole["choices"]] == [prompt, prompt]
    status, answer = send(server, "POST", "/v1/completions", {**asking, "stream": True})
    chunks = [c["choices"][0] for c in events(answer)]
    assert status == 200 and chunks[0]["prompt_token_ids"] == prompt
    assert not any("prompt_token_ids" in c for c in chunks[1:])

    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1}
    assert "prompt_token_ids" not in post(server, "/v1/chat/completions", **chat)
    chat |= {"return_token_ids": True}
    whole = post(server, "/v1/chat/completions", **chat)
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"] > 0
    status, answer = send(server, "POST", "/v1/chat/completions", {**chat, "stream": True})
    chunks = events(answer)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in c for c in chunks[1:])


GENERATE = "/inference/v1/generate"


def test_token_ids_alone(server):
    """vLLM's endpoint draws the tokens of a completion with the same prompt and seed."""
    prompt = tokenizers.characters(LETTERS).encode("hello")
    params = {"max_tokens": 12, "seed": 4, "n": 2, "logprobs": 1, "temperature": 0.8}
    whole = post(server, "/v1/completions", prompt=prompt, **params, return_token_ids=True)
    params |= {"top_k": -1, "stop_token_ids": [0], "skip_special_tokens": False, "top_p": None}
    reply = post(server, GENERATE, model="tiny", token_ids=prompt, sampling_params=params)
    assert reply["usage"] == whole["usage"] and reply["request_id"]
    for choice, expected in zip(reply["choices"], whole["choices"], strict=True):
        assert choice["token_ids"] == expected["token_ids"]
        assert choice["finish_reason"] == expected["finish_reason"]
        content = choice["logprobs"]["content"]
        assert [x["token"] for x in content] == [f"token_id:{i}" for i in choice["token_ids"]]
        assert [x["logprob"] for x in content] == expected["logprobs"]["token_logprobs"]
        assert "text" not in choice and "sampling_mask" not in choice


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'token_ids' is a required property"),
        ({"token_ids": []}, "token_ids: []"),
        ({"token_ids": "hello"}, "token_ids: 'hello'"),
        ({"token_ids": [1.5]}, "1.5 is no token id"),
        ({"token_ids": [99]}, "99"),
        ({"token_ids": [1], "stream": True}, "stream"),
        ({"token_ids": [1], "features": {}}, "features"),
        ({"token_ids": [1], "sampling_params": {"stop_token_ids": [0, 7]}}, "[7] do not end"),
        ({"token_ids": [1], "sampling_params": {"min_tokens": 2}}, "min_tokens"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 65}}, "max_tokens=65"),
        ({"token_ids": [1], "sampling_params": [1]}, "sampling_params"),
        ([1], "body"),
    ],
)
def test_bodies_of_token_ids_that_are_refused(server, body, message):
    status, answer = send(server, "POST", GENERATE, body)
    assert status == 400 and message in json.loads(answer)["error"]["message"], answer


_CLIENT = """
import asyncio, json, sys, types
from openai import AsyncOpenAI
from renderers.client import generate
from verifiers.v1.clients.train import response_from_generate

parsed = types.SimpleNamespace(
    tool_calls=[], content="", reasoning_content=None, reasoning_complete=True)
renderer = types.SimpleNamespace(
    supports_tools=True, get_stop_token_ids=lambda: [0], parse_response=lambda *_, **__: parsed)
result = asyncio.run(generate(
    client=AsyncOpenAI(base_url=sys.argv[1], api_key="none"), renderer=renderer, messages=[],
    model="tiny", prompt_ids=[5, 9, 5], sampling_params={"max_tokens": 6, "top_p": 0.5, "seed": 1}))
tokens = response_from_generate(result, "tiny").tokens
print(json.dumps([tokens.completion_ids, tokens.completion_logprobs,
                  tokens.sampling_mask.counts.tolist(), tokens.sampling_mask.ids.tolist()]))
"""


def test_the_tokens_that_each_was_drawn_among():
    with serving(actor(), sampling_masks=True) as server:
        params = {"max_tokens": 8, "seed": 2, "logprobs": 1, "top_k": 3}
        (choice,) = post(server, GENERATE, token_ids=[5, 9], sampling_params=params)["choices"]
        pairs = zip(choice["token_ids"], choice["sampling_mask"], strict=True)
        assert all(len(mask) == 3 and token in mask for token, mask in pairs)
        params |= {"top_k": 0}
        (choice,) = post(server, GENERATE, token_ids=[5, 9], sampling_params=params)["choices"]
        assert "sampling_mask" not in choice  # among all
        if python := os.environ.get("VERIFIERS_PYTHON"):
            address = f"http://127.0.0.1:{server.server_address[1]}/v1"
            command = [python, "-c", _CLIENT, address]
            printed = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout
            ids, logprobs, counts, masks = json.loads(printed.splitlines()[-1])
            assert len(ids) == len(logprobs) == len(counts) and sum(counts) == len(masks)
            starts = np.cumsum([0, *counts])
            for token, start, end in zip(ids, starts, starts[1:], strict=False):
                assert token in masks[start:end]


def test_chats_with_one_system_prompt(server):
    """They get the answers of a server without a cache, and usage has what was not read."""
    system = {"role": "system", "content": "you answer in few words"}
    chats = [[system, {"role": "user", "content": text}] for text in ("hi", "who", "who")]
    body = {"max_tokens": 8, "seed": 3, "return_token_ids": True}
    with serving(actor(), prefix_cache=1, prefix_block=8) as other:
        for messages, cached in zip(chats, (0, 32, 40), strict=True):
            expected, got = (
                post(s, "/v1/chat/completions", messages=messages, **body) for s in (server, other)
            )
            assert got["choices"] == expected["choices"]
            assert got["usage"].pop("prompt_tokens_details") == {"cached_tokens": cached}
            assert got["usage"] == expected["usage"]
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        sent = send(
            other, "POST", "/v1/chat/completions", {"messages": chats[0], **body, **streamed}
        )
        assert events(sent[1])[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 40}
        text = {"prompt": ["seventeen letters"] * 2, "n": 2, "max_tokens": 1}
        for cached in (0, 2 * 16):
            usage = post(other, "/v1/completions", **text)["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": cached}
            assert usage["prompt_tokens"] == 2 * 17
    for limits in ({"prefix_block": 8}, {"prefix_cache": -1}):
        with pytest.raises(ValueError, match=r"prefix_cache="), serving(actor(), **limits):
            pass


@pytest.mark.exact("a streamed reply of the server has the text of one sent whole")
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
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "top_k": 2**40}, "top_k"),
        ({"prompt": "a", "top_k": 0.5}, "top_k"),
        ({"prompt": "a", "seed": 2**70}, "seed"),
        (b'{"prompt": "a", "max_tokens": 1e400}', "max_tokens"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "stream_options": {}}, "stream_options"),
        ({"prompt": ["a"] * 9, "n": 8}, "n=8"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": 5}, "prompt=5 is neither"),
        ({"prompt": {"a": 1}}, "prompt={'a': 1} is neither"),
        ({"prompt": []}, "empty"),
        ({"prompt": [None]}, "None is no token id"),
        ({"prompt": ["a", [1]]}, "prompt=['a', [1]] is neither"),
        ({"prompt": [[1], "a"]}, "is neither"),
        ({"prompt": ["a", 1]}, "is neither"),
        ({"prompt": [1, "a"]}, "'a' is no token id"),
        ({"prompt": [[[1]]]}, "[1] is no token id"),
        ({"prompt": [True]}, "True is no token id"),
        ({"prompt": [1.5]}, "1.5 is no token id"),
        ({"prompt": [-1]}, "-1 is no token id"),
        ({"prompt": [2**31]}, "is no token id"),
        (b'{"prompt": [1e400]}', "inf is no token id"),
        ({"prompt": [1] * 65}, "max-prompt-tokens"),
        ({"prompt": ["a"] * 65}, "more than 64"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "n": 1000}, "n"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"prompt": "a", "logit_bias": {"99": 1}}, "token 99"),
        ({"prompt": "a", "presence_penalty": 1}, "presence_penalty"),
        ({"prompt": "a", "temprature": 1}, "temprature"),
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
            b"Content-Type: application/json\r\n\r\n"
        )
        assert b" 411 " in connection.recv(100)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Host: [", 400),
        ("Host: [::1", 400),
        ("Host: " + "a" * 60_000, 403),
        ("Host: a\r\nContent-Length: " + "9" * 5000, 403),
        ("Host: localhost\r\nContent-Length: " + "9" * 5000, 400),
        ("Host: localhost\r\nContent-Length: -5", 400),
        ("Host: localhost\r\nContent-Length: \xb2", 400),
        ("Host: localhost\r\nContent-Length: 1e3", 400),
        ("Host: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", 400),
    ],
)
def test_malformed_headers_get_an_answer(server, header, status):
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        start = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n{header}"
        connection.sendall(f"{start}\r\n\r\n{{}}   ".encode("latin-1"))
        answer = connection.makefile("rb").read()
    assert f" {status} ".encode() in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_loopback_by_default_and_limits():
    assert ServeConfig().host == "127.0.0.1"
    with pytest.raises(ValueError, match="128 positions"):
        command.make_server(actor(), ServeConfig(), "tiny")


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


SCALARS = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.integers(), st.floats(allow_nan=False),
    st.sampled_from([2**31, 2**40, 2**63, 10**400, -1, 0, 1.0, 2.0, 0.5, 1e-320, 1e308, 7]),
)  # fmt: skip
ANY = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "developer"])},
        optional={
            "content": st.one_of(st.just("hi"), ANY, st.just([{"type": "text", "text": "a"}])),
            "tool_calls": ANY,
        },
    ),
    max_size=3,
)
PROMPTS = st.one_of(
    ANY, st.just("abc"), st.just([1, 2.0]), st.just([[3], [4, 5]]), st.just(["a", "b"])
)


def bodies(schema, first, values):
    names = [name for name in schema["properties"] if name not in (first, "max_tokens")]
    one = st.sampled_from(names).flatmap(lambda name: ANY.map(lambda value: {name: value}))
    budget = st.one_of(st.integers(0, 4), st.sampled_from([2.0, 65, 2**40, "1", None]))
    return st.tuples(values, budget, st.lists(one, max_size=3)).map(
        lambda made: (
            {first: made[0], "max_tokens": made[1]}
            | {name: value for field in made[2] for name, value in field.items()}
        )
    )


@given(
    st.one_of(
        st.tuples(st.just("/v1/completions"), bodies(openai.COMPLETION_SCHEMA, "prompt", PROMPTS)),
        st.tuples(
            st.just("/v1/chat/completions"),
            bodies(openai.CHAT_SCHEMA, "messages", st.one_of(ANY, MESSAGES)),
        ),
        st.tuples(st.just("/v1/completions"), ANY),
    )
)
@settings(max_examples=120, deadline=None)
def test_a_body_is_answered_and_harms_no_other(server, given):
    path, body = given
    innocent = {"prompt": "hello", "max_tokens": 2, "seed": 5}
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(send, server, "POST", "/v1/completions", innocent)
        status, answer = send(server, "POST", path, body)
        assert beside.result()[0] == 200
    assert status == 200 or 400 <= status < 500, answer
    if status >= 400:
        message = json.loads(answer)["error"]["message"]
        names = [*body, "body"] if isinstance(body, dict) else ["body"]
        assert any(name in message for name in names), message
    elif "data: " not in answer:
        json.loads(answer, parse_constant=lambda name: pytest.fail(name))


def engine_of(server):
    return server.RequestHandlerClass.args[0].engine


def ended(job):
    return [c for c in engines.completions(job) if c.finished]


def test_a_job_that_cannot_be_laid_out_fails_alone(server):
    """Past the checks of the protocol: the engine itself keeps jobs apart."""
    engine, good = engine_of(server), Request(1, (1, 2), 4, logit_bias=((0, -100.0),))
    for bad in (
        Request(64, (1,), 4, top_k=2**40),
        Request(64, (1,), 4, logit_bias=tuple((i % 9, 0.0) for i in range(1000))),
        Request(64, (1,), 4, min_p=2.0),
    ):
        jobs = [engines.Job([request], stream=False) for request in (bad, good)]
        for job in jobs:
            engines.submit(engine, job)
        with pytest.raises((ValueError, RuntimeError)):
            ended(jobs[0])
        (done,) = ended(jobs[1])
        assert len(done.tokens) == 4


@pytest.mark.exact("a request that shares the server with one that fails gets the same tokens")
def test_a_job_that_breaks_decoding_fails_alone(server, monkeypatch):
    engine, real = engine_of(server), sampler.advance
    never = {"logit_bias": ((0, -100.0),)}
    first = Request(1, (1, 2), 12, **never)
    job = engines.Job([first], stream=True)
    engines.submit(engine, job)
    (alone,) = ended(job)

    def advance(setup, params, work, **more):
        done = real(setup, params, work, **more)
        if any(seat and seat.request.id == 999 for seat in work.seats):
            raise MemoryError("no memory for request 999")
        return done

    monkeypatch.setattr(sampler, "advance", advance)
    jobs = [
        engines.Job([first], stream=True),
        engines.Job([Request(999, (3,), 12, **never)], stream=False),
        engines.Job([Request(5, (1,), 3, **never), Request(6, (1,), 12, **never)], stream=False),
    ]
    for job in jobs:
        engines.submit(engine, job)
    with pytest.raises(RuntimeError, match="no memory for request 999"):
        ended(jobs[1])
    (again,) = ended(jobs[0])
    assert np.array_equal(again.tokens, alone.tokens)
    assert sorted(c.request.id for c in ended(jobs[2])) == [5, 6]


class Leaves(threading.Event):
    """Of a caller that hangs up after so many looks at whether it has."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def is_set(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("looks", range(1, 7))
def test_a_caller_may_hang_up_at_any_time(looks, server, monkeypatch):
    """Nobody's decoding fails of it, at whichever place of a round it happens."""
    engine, failures = engine_of(server), []
    monkeypatch.setattr(engines.traceback, "print_exc", lambda: failures.append(1))
    never = {"logit_bias": ((0, -100.0),)}
    leaving = engines.Job([Request(1, (1, 2), 64, **never)], stream=True, cancelled=Leaves(looks))
    staying = engines.Job([Request(2, (1, 2), 64, **never)], stream=True)
    for job in (leaving, staying):
        engines.submit(engine, job)
    (done,) = ended(staying)
    assert len(done.tokens) == 64 and not failures


def test_callers_that_hang_up_unanswered_are_not_decoded_for(server):
    engine = engine_of(server)
    before = engine.tokens
    # never the end token, so that each would take 64 x 64 tokens
    body = {"prompt": "hello", "max_tokens": 64, "n": 64, "logit_bias": {"0": -100}}
    raw = json.dumps(body).encode()
    for _ in range(4):
        with socket.create_connection(server.server_address[:2]) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                + f"Content-Length: {len(raw)}\r\n\r\n".encode()
                + raw
            )
    assert post(server, "/v1/completions", **GREEDY)["choices"][0]["text"]
    assert engine.tokens - before < 4 * 64 * 64 // 2


def test_two_hundred_callers_at_once(server):
    """Each is served or asked to come back; none is cut off."""
    body = {"prompt": "a", "max_tokens": 2}
    with ThreadPoolExecutor(200) as pool:
        statuses = list(
            pool.map(lambda _: send(server, "POST", "/v1/completions", body)[0], range(200))
        )
    assert set(statuses) <= {200, 429} and statuses.count(200) >= 64


def test_batches_echo_and_scores_of_prompts(server):
    body = {"prompt": ["abc", "b"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 1}
    got = post(server, "/v1/completions", **body, logit_bias={"0": -100})
    assert [c["text"][:-1] for c in got["choices"]] == ["abc", "abc", "b", "b"]
    assert [c["index"] for c in got["choices"]] == [0, 1, 2, 3]
    assert got["usage"]["prompt_tokens"] == 4
    read = post(server, "/v1/completions", prompt=[1, 2, 3], echo=True, logprobs=2, max_tokens=0)
    (choice,) = read["choices"]
    assert choice["text"] == "abc" and choice["finish_reason"] == "length"
    scores = choice["logprobs"]["token_logprobs"]
    assert scores[0] is None and choice["logprobs"]["top_logprobs"][0] is None
    assert got["choices"][0]["logprobs"]["token_logprobs"][1:3] == pytest.approx(scores[1:])
    for token, value, top in list(zip(*choice["logprobs"].values(), strict=True))[1:]:
        assert len(top) == 2 and max(top.values()) >= value - 1e-6, token
    nothing = post(server, "/v1/completions", prompt="abc", max_tokens=0)["choices"][0]
    assert nothing["text"] == ""


@pytest.mark.exact("log-probs of a prompt from the server equal the model's")
def test_scores_of_a_prompt_are_those_of_the_model():
    policy, prompt = actor(), [3, 1, 2, 9, 30, 1]
    setup = sampler.Setup(policy.model, jax.random.key(0), (0,), 64, 128)
    params = decoder.unstack(policy.params)
    got = engines.score(setup._replace(features=Features(top=3)), params, prompt)
    caches = decoder.empty_cache(policy.model, 1, 64)
    hidden, _ = decoder.extend(
        policy.model, params, np.array([prompt]), np.arange(len(prompt))[None], caches
    )
    matrix = np.asarray(decoder.unembedding(params), np.float64)
    logits = np.asarray(hidden[0], np.float64) @ matrix.T
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [logp[i, token] for i, token in enumerate(prompt[1:])]
    np.testing.assert_allclose(got.logp, expected, atol=1e-5)
    np.testing.assert_array_equal(got.top_ids, np.argsort(-logp[:-1], axis=-1)[:, :3])


def test_streams_of_log_probabilities_and_usage(server):
    body = {**GREEDY, "logprobs": 2, "n": 2}
    whole = post(server, "/v1/completions", **body)
    given = {**body, "stream": True, "stream_options": {"include_usage": True}, "echo": True}
    *chunks, last = events(send(server, "POST", "/v1/completions", given)[1])
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    for index, choice in enumerate(whole["choices"]):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in mine) == "hello" + choice["text"]
        tokens = [t for c in mine for t in c["logprobs"]["token_logprobs"]]
        assert tokens[0] is None
        assert tokens[5:] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-5)


def test_what_clients_send_beside(server):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "hi", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": "", "tool_call_id": "c"},
    ]
    body = {
        "messages": messages, "tools": [tool], "tool_choice": "auto", "max_completion_tokens": 2,
        "parallel_tool_calls": False, "response_format": {"type": "text"}, "store": False,
        "metadata": {"a": "b"}, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "u",
        "n": 1.0, "seed": -1, "top_k": 5.0, "temperature": 1e-9, "modalities": ["text"],
    }  # fmt: skip
    assert post(server, "/v1/chat/completions", **body)["object"] == "chat.completion"
    short = {"messages": messages[1:2], "max_tokens": 1}
    for more, words in (
        ({"reasoning_effort": "low"}, "reasoningeffort "),  # the template here shows names
        ({"chat_template_kwargs": {"thinking": False}}, "thinking "),
        ({"tools": [tool]}, "add "),
        ({"tool_choice": "none", "tools": [tool]}, ""),
    ):
        got = post(server, "/v1/chat/completions", **short, **more)
        assert got["usage"]["prompt_tokens"] == len(words + "user: hi ")


def test_each_setting_of_a_client_has_its_effect(server):
    def texts(**changes):
        got = post(server, "/v1/completions", **{"prompt": "hello", "max_tokens": 12, **changes})
        return [choice["text"] for choice in got["choices"]]

    never = {"logit_bias": {"0": -100}}
    (plain,) = texts(temperature=0, **never)
    assert len(texts(n=3)) == 3 and len(texts(n=2, best_of=2)) == 2
    assert texts(seed=7, n=2) == texts(seed=7, n=2) != texts(seed=8, n=2)
    assert texts(temperature=0, logit_bias={"0": -100, "3": 100}) == ["c" * 12]
    assert texts(temperature=0, stop=["?", plain[3]], **never) == [plain[: plain.index(plain[3])]]
    many = [f"{letter}!" for letter in "abcdefghijklmno"]
    assert texts(temperature=0, stop=[*many, plain[3]], **never) == [plain[: plain.index(plain[3])]]
    assert texts(temperature=0, presence_penalty=0, frequency_penalty=0.0, **never) == [plain]
    for name, value in [("presence_penalty", 0.5), ("frequency_penalty", -1), ("best_of", 2)]:
        body = {"prompt": "hello", "max_tokens": 1, name: value}
        status, answer = send(server, "POST", "/v1/completions", body)
        said = json.loads(answer)["error"]["message"]
        assert status == 400 and f"{name}={value}" in said and "is not served; " in said


def test_tokens_that_are_spelled_alike_keep_the_best_score():
    tokenizer = dataclasses.replace(tokenizers.characters("ab"), decode=lambda ids: "x" * len(ids))
    call = openai.Call([Request(0, (1,), 1)], 1, False, False, 2, False, None, False, False, False)
    made = Completion(
        call.requests[0], np.array([1]), np.array([-0.5]), np.array([0.1]), np.array([0]), True,
        top_ids=np.array([[1, 2]]), top_logp=np.array([[-0.5, -3.0]]),
    )  # fmt: skip
    (top,) = openai_replies.choice(call, tokenizer, made, None)["logprobs"]["top_logprobs"]
    assert top == {"x": -0.5}


def test_a_refusal_is_read_as_what_the_assistant_said(server):
    def asked(content):
        return {
            "messages": [{"role": "assistant", "content": content}], "max_tokens": 8, "seed": 1,
            "return_token_ids": True,
        }  # fmt: skip

    parts = [{"type": "refusal", "refusal": "no"}]
    given = post(server, "/v1/chat/completions", **asked(parts))
    assert given["choices"] == post(server, "/v1/chat/completions", **asked("no"))["choices"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "refusal": "no"}]}]},
            "messages",
        ),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": 7}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": 7}]}]}, "tool_calls"),
        ({"messages": []}, "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema is missing",
        ),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"best_of": 2}, "best_of"),
        ({"tool_choice": "required"}, "tool_choice='required' needs tools"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [7]}, "tools"),
    ],
)
def test_malformed_chats(server, change, message):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **change}
    status, answer = send(server, "POST", "/v1/chat/completions", body)
    assert status == 400 and message in json.loads(answer)["error"]["message"]


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "shown", "names"),
    [
        (f"I add.\n{CALL}", "I add.", ["add"]),
        (f"{CALL}\n{CALL.replace('add', 'sub')}", "", ["add", "sub"]),
        ("no call", "no call", []),
        ("<tool_call>{", "<tool_call>{", []),
        (CALL.replace('{"a": 1}', "3"), CALL.replace('{"a": 1}', "3"), []),
        ('<tool_call>{"name": "f"}', "", ["f"]),
        (f"{CALL}<tool_call>[]</tool_call>", f"{CALL}<tool_call>[]</tool_call>", []),
    ],
)
def test_calls_of_tools(text, shown, names):
    tokenizer = tokenizers.characters("".join(sorted(set(text))))
    ids = np.array(tokenizer.encode(text), np.int32)
    zeros = np.zeros(len(ids), np.float32)
    call = openai.Call([Request(0, (1,), 99)], 1, True, True, 0, True, None, False, True, False)

    def at(n, finished):
        return Completion(
            call.requests[0], ids[:n], zeros[:n], zeros[:n], ids[:n], finished, finished=finished
        )

    choice = openai_replies.choice(call, tokenizer, at(len(ids), True), None)
    message = choice["message"]
    assert (message["content"] or "") == shown
    assert [c["function"]["name"] for c in message.get("tool_calls", [])] == names
    assert choice["finish_reason"] == ("tool_calls" if names else "stop")
    pieces = openai_replies.Pieces(call, tokenizer)
    made = [pieces.next(at(n, n == len(ids))) for n in range(len(ids) + 1)]
    deltas = [piece["delta"] for piece in made if piece]
    assert "".join(delta["content"] for delta in deltas).rstrip() == shown
    streamed = [c for delta in deltas for c in delta.get("tool_calls", [])]
    assert [c["function"]["name"] for c in streamed] == names
    assert all(json.loads(c["function"]["arguments"]) in ({"a": 1}, {}) for c in streamed)
    # Tokens of the calls, of which no text is streamed, arrive all the same.
    assert [i for piece in made if piece for i in piece["token_ids"]] == ids.tolist()
    assert sum(len(piece["logprobs"]["content"]) for piece in made if piece) == len(ids)


def test_models_metrics_and_key(server):
    model = json.loads(send(server, "GET", "/v1/models/tiny")[1])
    assert model["id"] == "tiny" and send(server, "GET", "/v1/models/other")[0] == 404
    post(server, "/v1/completions?x=1", **GREEDY)
    status, text = send(server, "GET", "/metrics")
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert status == 200 and int(counts['jaxrl_answers_total{status="200"}']) >= 1
    assert int(counts["jaxrl_sampled_tokens_total"]) >= 20
    service = server.RequestHandlerClass.args[0]._replace(key="s3cret")
    locked = Server(("127.0.0.1", 0), functools.partial(Handler, service))
    thread = threading.Thread(target=locked.serve_forever, daemon=True)
    thread.start()
    try:
        assert send(locked, "GET", "/health")[0] == 200
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer s3cr\xe9t"}):
            assert send(locked, "GET", "/v1/models", **given)[0] == 401
            assert send(locked, "POST", "/v1/completions", GREEDY, **given)[0] == 401
        right = {"Authorization": "Bearer s3cret"}
        assert send(locked, "POST", "/v1/completions", GREEDY, **right)[0] == 200
    finally:
        locked.shutdown()
        locked.server_close()
        thread.join()


@pytest.mark.parametrize("length", ["1000000000", "5000", "999999999999"])
def test_a_body_that_is_announced_too_large_is_answered_at_once(server, length):
    """Without a byte of it; the thread is then free, whether or not the client goes on."""
    started = time.monotonic()
    with socket.create_connection(server.server_address[:2], 30) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n" + f"Content-Length: {length}\r\n\r\n".encode()
        )
        assert b" 413 " in raw.recv(4096)
        assert time.monotonic() - started < 5
        while raw.recv(4096):  # until the server closes the connection
            pass
    assert time.monotonic() - started < 8


THEIR_PROBE = """
import dataclasses, json, sys
from openenv.core.harness.capture import validate_llm
report = validate_llm(sys.argv[1], "tiny", check_tools=False)
print(json.dumps(dataclasses.asdict(report)))
"""


@pytest.mark.extra
@pytest.mark.skipif("OPENENV_PYTHON" not in os.environ, reason="names a Python with openenv")
def test_openenv_counts_the_server_as_one_to_train_with():
    with serving(actor(string.printable)) as server:
        host, port = server.server_address[:2]
        done = subprocess.run(
            [os.environ["OPENENV_PYTHON"], "-c", THEIR_PROBE, f"http://{host}:{port}"],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["ok"], report["capture_level"]) == (True, "tokens"), report["findings"]
    assert report["n_prompt_ids"] > 0 and report["n_completion_ids"] > 0
