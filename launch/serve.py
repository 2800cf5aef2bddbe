"""`jaxrl serve MODEL_OR_RUN [flags]`: an OpenAI-compatible endpoint on the sampler.

For looking at a policy and for environments in other processes. Plain HTTP without authentication:
it listens on loopback alone unless told otherwise, and takes requests of bounded size.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import json
import queue
import secrets
import sys
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple, NoReturn

import jax

from data.tokenizers import Tokenizer
from jaxrl import mesh, policy, sampler
from jaxrl.config import Config
from jaxrl.policy import Policy
from jaxrl.requests import check_requests
from jaxrl.slots import Features
from jaxrl.types import Completion
from launch import engine as engines
from launch import flags, openai
from launch.cli import REFUSALS, refused


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """An HTTP server for completions and chat."""

    host: str = "127.0.0.1"
    """Address to listen on; whoever can reach it can use the model."""
    port: int = 8000
    """0 takes a free one."""
    slots: int = 16
    """Sequences decoded at once."""
    chunk: int = 8
    """Tokens between two looks for new requests, and between two streamed pieces."""
    max_prompt_tokens: int = 1024
    max_new_tokens: int = 512
    max_body_bytes: int = 1 << 20
    """A longer request body is refused unread."""
    waiting: int = 64
    """Requests that may wait; one more is told to come back."""
    seed: int = 0
    """Of the random streams; a request with a seed of its own gets equal tokens each time."""
    dtype: Literal["float32", "bfloat16"] = "float32"


def main(argv: list[str]) -> int:
    """Serve a packaged model, a model directory or a run until interrupted."""
    usage, what = "jaxrl serve MODEL_OR_RUN", "a model, its directory or a run"
    try:
        name, config = flags.named(ServeConfig(), argv, usage=usage, what=what)
        actor = policy.create(policy.named(name), mesh.make(Config().mesh))
        server = make_server(actor, config, name)
    except (*REFUSALS, OSError) as error:
        return refused(error)
    host, port = server.server_address[:2]
    print(f"serving {name} at http://{host}:{port}/v1; Ctrl-C ends it", file=sys.stderr)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def make_server(actor: Policy, config: ServeConfig, name: str) -> ThreadingHTTPServer:
    """A server that listens, its engine running; `serve_forever` answers.

    Raises:
      ValueError: limits that the model cannot serve.
      OSError: the address is taken or not ours.
    """
    model = dataclasses.replace(actor.model, dtype=config.dtype)
    total = config.max_prompt_tokens + config.max_new_tokens
    if total > model.max_positions:
        raise ValueError(
            f"max_prompt_tokens={config.max_prompt_tokens} + max_new_tokens="
            f"{config.max_new_tokens} exceed the model's {model.max_positions} positions; lower one"
        )
    setup = sampler.Setup(
        model,
        jax.random.key(config.seed),
        tuple(actor.tokenizer.eos_ids),
        config.max_prompt_tokens,
        total,
        sampler.SamplerConfig(slots=config.slots, chunk=config.chunk),
        Features(
            truncate=True,
            penalize=True,
            biases=openai.BIASES,
            top=min(openai.TOP_LOGPROBS, model.vocab_size),
        ),
        text=actor.tokenizer.decode,
        lean=True,
    )
    params = policy.sampling_params(actor.params, config.dtype)
    service = Service(
        engines.start(setup, params, waiting=config.waiting), actor.tokenizer, config, name
    )
    server = ThreadingHTTPServer((config.host, config.port), functools.partial(_Handler, service))
    server.daemon_threads = True
    return server


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Service(NamedTuple):
    """What every connection works with."""

    engine: engines.Engine
    tokenizer: Tokenizer
    config: ServeConfig
    model: str


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    timeout = 60  # seconds that a silent client may hold a connection
    server_version = "jaxrl"

    def __init__(self, service: Service, *args: Any) -> None:
        self.service, self.taken = service, False
        super().__init__(*args)

    def do_GET(self) -> None:
        """Health and the one model."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Completions and chat."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: prompts belong to whoever sent them."""

    def _answer(self, respond: Any) -> None:
        try:
            try:
                self._check_host()
                respond()
            except Refused as error:
                self._discard()
                self._send(error.status, _error(error.status, str(error)))
            except RuntimeError as error:
                self._send(500, _error(500, str(error)))
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    def _discard(self) -> None:
        # A client that is cut off while it sends may never see the answer.
        length = self.headers.get("Content-Length", "")
        if not self.taken and length.isdecimal():
            self.rfile.read(min(int(length), 1 << 16))

    def _check_host(self) -> None:
        # A page in a browser may resolve its own name to loopback; it cannot forge this header.
        name = urllib.parse.urlsplit("//" + self.headers.get("Host", "")).hostname
        if name and _is_loopback(self.service.config.host) and not _is_loopback(name):
            raise Refused(403, f"Host {name!r} is not this machine; use localhost or 127.0.0.1")

    def _get(self) -> None:
        if self.path == "/health":
            self._send(200, {"status": "ok"})
        elif self.path == "/v1/models":
            model = {"id": self.service.model, "object": "model", "owned_by": "jaxrl", "created": 0}
            self._send(200, {"object": "list", "data": [model]})
        else:
            self._no_such_path()

    def _no_such_path(self) -> NoReturn:
        known = "POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /health"
        raise Refused(404, f"no {self.command} {self.path[:100]}; there are {known}")

    def _post(self) -> None:
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self._no_such_path()
        try:
            call = openai.parse(
                self._body(),
                self.service.tokenizer,
                chat="chat" in self.path,
                max_prompt_tokens=self.service.config.max_prompt_tokens,
                max_new_tokens=self.service.config.max_new_tokens,
            )
            check_requests(self.service.engine.setup.config, call.requests)
        except ValueError as error:
            raise Refused(400, str(error)) from error
        job = engines.Job(call.requests, call.stream)
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

    def _body(self) -> Any:
        """The JSON body. Any other content type could be sent by a web page without asking."""
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"Content-Type is {kind!r}; send application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refused(411, "send a Content-Length")
        if int(length) > self.service.config.max_body_bytes:
            raise Refused(
                413, f"the body has {length} bytes, more than {self.service.config.max_body_bytes}"
            )
        raw = self.rfile.read(int(length))
        self.taken = True
        try:
            return json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from error

    def _whole(self, call: openai.Call, job: engines.Job) -> None:
        done = sorted(engines.completions(job), key=lambda c: c.request.id)
        choices = [
            openai.choice(
                call, self.service.tokenizer, c, openai.text_of(self.service.tokenizer, c)
            )
            for c in done
        ]
        body = openai.envelope(call, _name(call), self.service.model, int(time.time()), choices)
        self._send(200, {**body, "usage": openai.usage(call, done)})

    def _stream(self, call: openai.Call, job: engines.Job) -> None:
        """Server-sent events, one for each piece of text."""
        name, created = _name(call), int(time.time())
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for completion, text, first in self._pieces(job):
                chunk = openai.piece(call, completion, text, first=first)
                body = openai.envelope(call, name, self.service.model, created, [chunk])
                self._event(json.dumps(body))
        except RuntimeError as error:  # too late for a status
            self._event(json.dumps(_error(500, str(error))))
        self._event("[DONE]")

    def _pieces(self, job: engines.Job) -> Iterator[tuple[Completion, str, bool]]:
        """Each completion as it grows: the text that is new, and whether it is the first."""
        sent: dict[int, int] = {}
        for completion in engines.completions(job):
            text, name = openai.text_of(self.service.tokenizer, completion), completion.request.id
            before = sent.get(name, 0)
            if len(text) > before or completion.finished:
                yield completion, text[before:], name not in sent
                sent[name] = max(before, len(text))

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _send(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def _name(call: openai.Call) -> str:
    return ("chatcmpl-" if call.chat else "cmpl-") + secrets.token_hex(12)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _error(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
