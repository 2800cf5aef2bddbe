"""The HTTP side of `jaxrl serve`: connections, keys, limits, and answers whole or streamed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hmac
import ipaddress
import json
import queue
import re
import select
import socket
import sys
import threading
import time
import traceback
import urllib.parse
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch import streams
from jaxrl.launch.server import engine as engines
from jaxrl.launch.server import named_adapters, openai, openai_replies
from jaxrl.launch.server.engine import Gone
from jaxrl.launch.server.engine import Refused as Refused
from jaxrl.launch.server.named_adapters import AdapterBook
from jaxrl.sampling import constraints
from jaxrl.sampling.requests import check_requests
from jaxrl.types import Completion


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    request_queue_size = 1024  # many callers may come at once
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers that hang up before they have asked."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def serve(self, line: str) -> int:
        """Print a line, answer until Ctrl-C, and close; returns the exit status.

        A console that fails ends no answer, and not the thread that works on them.
        """
        with streams.lasting():
            streams.say(line, error=True)
            try:
                self.serve_forever()
            except KeyboardInterrupt:
                pass
            finally:
                self.server_close()
        return 0


_LENGTH = re.compile("[0-9]{1,12}")
"""A Content-Length."""
_DISCARD_S = 0.5
"""Seconds for each part of the body of a refused request to arrive."""


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Rules(Protocol):
    """What every connection works with."""

    config: Any
    """Settings, `host` and `max_body_bytes` among them."""
    key: str
    """That callers must send; empty: none."""
    answers: Counter[int]
    """Answers by status."""
    lock: threading.Lock
    """Of the counts."""


class Connection(BaseHTTPRequestHandler):
    """One connection; a subclass answers by `do_GET` and `do_POST`."""

    timeout = 60  # seconds that a silent client may hold a connection
    server_version = "jaxrl"

    def __init__(self, service: Rules, *args: Any) -> None:
        self.service, self.taken = service, False
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: prompts belong to whoever sent them."""

    def _answer(self, respond: Callable[[], None]) -> None:
        try:
            try:
                self._check_host()
                respond()
            except Refused as error:
                self._send(error.status, error_body(error.status, str(error)))
                self._discard()
            except ValueError as error:
                self._send(400, error_body(400, str(error)))
            except (OSError, Gone):
                raise
            except Exception as error:  # a caller must not be left without an answer
                traceback.print_exc()
                self._send(500, error_body(500, str(error)))
        except (OSError, Gone):  # the caller has hung up, or says nothing any more
            self.close_connection = True

    def _discard(self) -> None:
        # A client that is cut off while it sends may never see the answer, so what it has sent is
        # read, after the answer and for no longer than it takes to arrive.
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        if self.taken or not _LENGTH.fullmatch(length):
            return
        self.wfile.flush()
        self.connection.settimeout(_DISCARD_S)
        with contextlib.suppress(OSError):
            self.rfile.read(min(int(length), 1 << 16))

    def _check_host(self) -> None:
        # A page in a browser may resolve its own name to loopback; it cannot forge this header.
        try:
            name = urllib.parse.urlsplit("//" + self.headers.get("Host", "")).hostname
        except ValueError as error:
            raise Refused(400, f"Host is malformed: {error}; send a name or an address") from error
        if name and is_loopback(self.service.config.host) and not is_loopback(name):
            raise Refused(403, f"Host {name!r} is not this machine; use localhost or 127.0.0.1")

    def _check_key(self) -> None:
        key, where = self._key()
        if self.service.key and not hmac.compare_digest(
            key.encode("utf-8", "replace"), self.service.key.encode()
        ):
            raise Refused(401, where)

    def _key(self) -> tuple[str, str]:
        """What the caller sent as the key, and where it is to be."""
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return key, "Authorization: send the server's key as a bearer token"

    def _most_bytes(self) -> int:
        """Of a body."""
        return self.service.config.max_body_bytes

    def _raw(self, *kinds: str) -> tuple[str, bytes]:
        """The content type, one of `kinds`, and the body. Other types than JSON and protobuf could
        be sent by a web page without asking."""
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in kinds:
            raise Refused(415, f"Content-Type is {kind!r}; send {' or '.join(kinds)}")
        length = self.headers.get("Content-Length", "")
        if not length:
            raise Refused(411, "send a Content-Length")
        if not _LENGTH.fullmatch(length):
            raise Refused(400, f"Content-Length {length[:40]!r} is no number of bytes")
        if int(length) > (most := self._most_bytes()):
            raise Refused(413, f"the body has {length} bytes, more than {most}; send less at once")
        raw = self.rfile.read(int(length))
        self.taken = True
        return kind, raw

    def _body(self) -> Any:
        """The JSON body."""
        try:
            return json.loads(self._raw("application/json")[1], parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from error

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self._send_raw(status, json.dumps(body).encode(), "application/json")

    def _send_raw(self, status: int, raw: bytes, kind: str) -> None:
        self._count(status)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _count(self, status: int) -> None:
        with self.service.lock:
            self.service.answers[status] += 1


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as JSON, in the form that clients of OpenAI read."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


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
    drafts: Literal["none", "lookup", "group", "model", "layers"] = "none"
    """Guess next tokens and verify several in a pass: `none`, not at all; `lookup`, what followed
    the last ones before; `group`, there or in answers to the same prompt and adapter since the
    start; `model`, by `draft_model`; `layers`, by the first `draft_layers`. No token changes."""
    draft_tokens: int = 4
    """Most tokens of a draft."""
    draft_model: str = ""
    """A small model of the same tokenizer, a name, a directory or a run."""
    draft_layers: int = 0
    """How many layers draft, fewer than the model has."""
    prefix_cache: int = 0
    """MiB of beginnings of prompts that are kept for prompts that begin alike; 0: none."""
    prefix_block: int = 64
    """With `prefix_cache`: tokens that are kept together."""
    max_prompt_tokens: int = 1024
    """Longest prompt, in tokens."""
    max_new_tokens: int = 512
    """Longest completion, in tokens."""
    max_body_bytes: int = 1 << 20
    """Largest request body; a larger one is refused unread."""
    waiting: int = 64
    """Requests that may wait; further ones are answered with status 429."""
    key_variable: str = "JAXRL_API_KEY"
    """Environment variable with the bearer token that callers must send; if unset, none."""
    seed: int = 0
    """Random seed; a request with its own seed gets the same tokens each time."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of weights and activations."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""
    sampling_masks: bool = False
    """Keep the token ids that top-k, top-p and min-p left of each draw, for replies of
    `/inference/v1/generate`."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the model, NAME=DIRECTORY each: PEFT's, or a run. NAME is a model of the
    API."""
    adapter_directory: str = ""
    """Directory from which callers may load further adapters; empty: they may not."""
    max_adapters: int = 8
    """With `adapter_directory`: adapters that there is room for at once."""
    max_adapter_rank: int = 64
    """With `adapter_directory`: the greatest rank that there is room for."""


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
    adapters: AdapterBook | None = None
    """None: the base alone is served, under any name."""


class Handler(Connection):
    """One connection."""

    service: Service

    def do_GET(self) -> None:
        """Health and the models."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Completions and chat; adapters come and go."""
        self._answer(self._post)

    def _get(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path == "/health":
            self._send(200, {"status": "ok"})
            return
        self._check_key()
        book, base = self.service.adapters, self.service.model
        models = {base: {"id": base, "object": "model", "owned_by": "jaxrl", "created": 0}}
        for name in named_adapters.names(book) if book else ():
            models[name] = models[base] | {"id": name, "parent": base}
        if path == "/v1/models":
            self._send(200, {"object": "list", "data": [*models.values()]})
        elif path.removeprefix("/v1/models/") in models and path.startswith("/v1/models/"):
            self._send(200, models[path.removeprefix("/v1/models/")])
        elif path == "/metrics":
            self._send_raw(200, self._metrics().encode(), "text/plain; version=0.0.4")
        else:
            self._no_such_path()

    def _no_such_path(self) -> NoReturn:
        endpoints = (
            f"POST {', POST '.join(openai.PATHS)}, GET /v1/models, "
            f"GET /v1/models/{self.service.model}, GET /metrics, GET /health"
        )
        if self.service.adapters is not None:
            endpoints += ", POST /v1/load_lora_adapter, POST /v1/unload_lora_adapter"
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
        path, book = self.path.partition("?")[0], self.service.adapters
        if book is not None and path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            self._check_key()
            body = self._body()
            if path == "/v1/load_lora_adapter":
                line = named_adapters.load(book, self.service.engine, body)
            else:
                line = named_adapters.unload(book, body)
            self._send(200, {"message": line})
            return
        if path not in openai.PATHS:
            self._no_such_path()
        self._check_key()
        try:
            call = openai.PATHS[path](
                self._body(),
                self.service.tokenizer,
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
            if call.requests[0].constraint is not None:
                constraints.check(self.service.engine.setup, call.requests[0])
        except ValueError as error:
            raise Refused(400, str(error)) from error
        except RecursionError as error:
            raise Refused(400, "the body is nested too deeply; send a flatter one") from error
        if book is None:
            self._sample(call._replace(model=self.service.model), 0)
            return
        place = named_adapters.take(book, call.model)
        try:
            self._sample(call._replace(model=call.model or self.service.model), place)
        finally:
            named_adapters.leave(book, place)

    def _sample(self, call: openai.Call, adapter: int) -> None:
        requests = [dataclasses.replace(r, adapter=adapter) for r in call.requests]
        scores = call.echo is not None and call.top is not None
        job = engines.Job(requests, call.stream, scores)
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
        name, created = openai_replies.new_id(call), int(time.time())
        body = openai_replies.envelope(call, name, call.model, created, choices)
        self._send(200, {**body, "usage": openai_replies.usage(call, done, job.cached)})

    def _stream(self, call: openai.Call, job: engines.Job) -> None:
        """Server-sent events, one for each piece of text."""
        envelope = functools.partial(
            openai_replies.envelope, call, openai_replies.new_id(call), call.model, int(time.time())
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
                body = {**envelope([]), "usage": openai_replies.usage(call, done, job.cached)}
                self._event(json.dumps(body))
        except (RuntimeError, ValueError) as error:  # too late for a status
            self._event(json.dumps(error_body(500, str(error))))
        self._event("[DONE]")

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()
