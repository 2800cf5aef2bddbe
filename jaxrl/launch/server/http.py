"""The HTTP side of `jaxrl serve`: connections, keys, limits, and answers whole or streamed."""

from __future__ import annotations

import dataclasses
import functools
import json
import queue
import secrets
import select
import socket
import threading
import time
import urllib.parse
from collections import Counter
from typing import Literal, NamedTuple, NoReturn

from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.server import engine as engines
from jaxrl.launch.server import openai, openai_replies
from jaxrl.launch.server.connection import Connection, Refused, error_body
from jaxrl.sampling.requests import check_requests
from jaxrl.types import Completion


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """An HTTP server for completions and chat."""

    host: str = "127.0.0.1"
    """Address to listen on. Everyone who can reach it can use the model."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    slots: int = 16
    """Sequences decoded at once."""
    chunk: int = 8
    """Decoding steps between two checks for new requests, and tokens per streamed piece."""
    max_prompt_tokens: int = 1024
    """Longest prompt, in tokens."""
    max_new_tokens: int = 512
    """Longest completion, in tokens."""
    max_body_bytes: int = 1 << 20
    """Largest request body; a larger one is refused unread."""
    waiting: int = 64
    """Requests that may wait; further ones are answered with status 429."""
    key_variable: str = "JAXRL_API_KEY"
    """Environment variable with the key that callers must send as a bearer token; no key is needed
    if it is unset."""
    seed: int = 0
    """Random seed; a request with its own seed gets the same tokens each time."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of weights and activations."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""


class Service(NamedTuple):
    """What every connection works with."""

    engine: engines.Engine
    tokenizer: Tokenizer
    config: ServeConfig
    model: str
    key: str
    """That callers must send; empty: none."""
    answers: Counter[int]
    """Answers by status."""
    lock: threading.Lock
    """Of the counts."""


class Handler(Connection):
    """One connection."""

    service: Service

    def do_GET(self) -> None:
        """Health and the one model."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Completions and chat."""
        self._answer(self._post)

    def _get(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path == "/health":
            self._send(200, {"status": "ok"})
            return
        self._check_key()
        model = {"id": self.service.model, "object": "model", "owned_by": "jaxrl", "created": 0}
        if path == "/v1/models":
            self._send(200, {"object": "list", "data": [model]})
        elif path == f"/v1/models/{self.service.model}":
            self._send(200, model)
        elif path == "/metrics":
            self._send_raw(200, self._metrics().encode(), "text/plain; version=0.0.4")
        else:
            self._no_such_path()

    def _no_such_path(self) -> NoReturn:
        endpoints = (
            "POST /v1/completions, POST /v1/chat/completions, GET /v1/models, "
            f"GET /v1/models/{self.service.model}, GET /metrics, GET /health"
        )
        raise Refused(404, f"no {self.command} {self.path[:100]}; there are {endpoints}")

    def _metrics(self) -> str:
        """Counts in the text format of Prometheus."""
        engine = self.service.engine
        lines = [f"jaxrl_waiting_requests {len(engine.inbox)}"]
        lines.append(f"jaxrl_sampled_tokens_total {engine.tokens}")
        with self.service.lock:
            for status, count in sorted(self.service.answers.items()):
                lines.append(f'jaxrl_answers_total{{status="{status}"}} {count}')
        return "\n".join(lines) + "\n"

    def _post(self) -> None:
        path = self.path.partition("?")[0]
        if path not in ("/v1/completions", "/v1/chat/completions"):
            self._no_such_path()
        self._check_key()
        try:
            call = openai.parse(
                self._body(),
                self.service.tokenizer,
                chat="chat" in path,
                max_prompt_tokens=self.service.config.max_prompt_tokens,
                max_new_tokens=self.service.config.max_new_tokens,
            )
            check_requests(
                self.service.engine.setup.config,
                [
                    dataclasses.replace(r, max_new_tokens=max(1, r.max_new_tokens))
                    for r in call.requests
                ],
            )
        except ValueError as error:
            raise Refused(400, str(error)) from error
        except RecursionError as error:
            raise Refused(400, "the body is nested too deeply; send a flatter one") from error
        scores = call.echo is not None and call.top is not None
        job = engines.Job(call.requests, call.stream, scores)
        try:
            engines.submit(self.service.engine, job)
        except queue.Full:
            raise Refused(429, "too many requests wait; try again later") from None
        try:
            if call.stream:
                self._stream(call, job)
            else:
                self._whole(call, job)
        finally:
            job.cancelled.set()

    def _present(self) -> bool:
        """Whether the caller has not hung up."""
        look = select.poll()
        look.register(self.connection, select.POLLIN)
        return not look.poll(0) or self.connection.recv(1, socket.MSG_PEEK) != b""

    def _whole(self, call: openai.Call, job: engines.Job) -> None:
        done = sorted(engines.completions(job, self._present), key=lambda c: c.request.id)
        choices = [
            openai_replies.choice(call, self.service.tokenizer, c, job.scored.get(c.request.prompt))
            for c in done
        ]
        name, created = _name(call), int(time.time())
        body = openai_replies.envelope(call, name, self.service.model, created, choices)
        self._send(200, {**body, "usage": openai_replies.usage(call, done)})

    def _stream(self, call: openai.Call, job: engines.Job) -> None:
        """Server-sent events, one for each piece of text."""
        envelope = functools.partial(
            openai_replies.envelope, call, _name(call), self.service.model, int(time.time())
        )
        self._count(200)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        pieces, done = openai_replies.Pieces(call, self.service.tokenizer), list[Completion]()
        try:
            for completion in engines.completions(job, self._present):
                scored = job.scored.get(completion.request.prompt)
                if (piece := pieces.next(completion, scored)) is not None:
                    self._event(json.dumps(envelope([piece])))
                done += [completion] if completion.finished else []
            if call.usage:
                body = {**envelope([]), "usage": openai_replies.usage(call, done)}
                self._event(json.dumps(body))
        except (RuntimeError, ValueError) as error:  # too late for a status
            self._event(json.dumps(error_body(500, str(error))))
        self._event("[DONE]")

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()


def _name(call: openai.Call) -> str:
    return ("chatcmpl-" if call.chat else "cmpl-") + secrets.token_hex(12)
