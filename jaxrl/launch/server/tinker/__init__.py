"""`jaxrl serve --tinker MODEL --port P --run-dir D`: the Tinker API on one's own devices.

The same command in the same run directory continues, also after the server was killed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import urllib.parse
from typing import Any, NoReturn

from jaxrl.config import Config
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.server.http import Connection, Refused, Server
from jaxrl.launch.server.tinker import bodies, ledger, service, tenants, work
from jaxrl.launch.server.tinker.ledger import Ledger
from jaxrl.launch.server.tinker.service import Service, TinkerConfig
from jaxrl.launch.server.tinker.tenants import Tenant
from jaxrl.launch.settings import flags
from jaxrl.mesh import mesh
from jaxrl.models import catalog, decoder
from jaxrl.rollout import policy
from jaxrl.rollout.policy import Policy

_ROOT = "/api/v1/"
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_WAIT_S = 20.0
"""Time that a caller waits for an answer before it is asked to ask again."""
_SETTINGS = {
    "parallel_fwdbwd_chunks": False,  # requests of a model come in order
    "proto_compress_fwdbwd": False,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,  # the client computes them, and sends their gradient
    "sample_join_sampling_session": False,
}
"""What clients are told to do, and not."""


_FINISH = re.compile("sessions/([^/]+)/finish")


class Handler(Connection):
    """One connection."""

    service: Service
    tenant: Tenant
    """Whose key was sent, once it was checked."""

    def do_GET(self) -> None:
        """Health, what is served, and samplers."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """All else."""
        self._answer(self._post)

    def _key(self) -> tuple[str, str]:
        key = self.headers.get("X-API-Key") or super()._key()[0]
        return key, "X-API-Key: send a key that the server knows (TINKER_API_KEY of the client)"

    def _check_key(self) -> None:
        key, where = self._key()
        tenant = tenants.find(self.service.tenants.values(), key)
        if tenant is None:
            raise Refused(401, where)
        self.tenant = tenant

    def _most_bytes(self) -> int:
        most = super()._most_bytes()
        return min(most, self.tenant.max_body_bytes or most)

    @property
    def _ledger(self) -> Ledger:
        """Of the caller."""
        return self.service.ledgers[self.tenant.name]

    def _get(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path == f"{_ROOT}healthz":
            self._send(200, {"status": "ok"})
            return
        self._check_key()
        book, samplers = self._ledger, f"{_ROOT}samplers/"
        if path == f"{_ROOT}get_server_capabilities":
            served = {
                "model_name": book.name, "max_context_length": book.context, "trainable": True,
                "sampleable": True,
            }  # fmt: skip
            self._send(200, {"supported_models": [served]})
        elif path.startswith(samplers):
            name = path.removeprefix(samplers)
            with self.service.changed:
                sampler = book.samplers.get(name)
            if sampler is None:
                raise Refused(404, f"sampler {name[:200]!r} is not known here")
            self._send(
                200, {"sampler_id": name, "base_model": book.name, "model_path": sampler.path}
            )
        else:
            self._no_such_path()

    def _post(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(_ROOT)
        finished = _FINISH.fullmatch(name)
        if finished:
            name = "finish_session"
        if not path.startswith(_ROOT) or not (finished or name in _NAMES):
            self._no_such_path()
        self._check_key()
        if encoding := self.headers.get("Content-Encoding"):
            raise Refused(415, f"Content-Encoding is {encoding[:40]!r}; send the body as it is")
        raw = self._raw(_PROTOBUF if name == "forward_backward" else _JSON)[1]
        if finished:
            raw = _with_session(raw, urllib.parse.unquote(finished[1]))
        if name == "retrieve_future":
            self._future(bodies.read(bodies.Future, raw))
        elif name in _REPLIES:
            with self.service.changed:
                reply = _REPLIES[name](self.service, self._ledger, raw)
            self._send(200, reply)
        else:
            self._accept(name, raw)

    def _accept(self, kind: str, raw: bytes) -> None:
        """Answer with the id of the request, or with what it made where that takes no work."""
        key = self.headers.get("X-Idempotency-Key", "")[:200]
        operation = service.accept(self.service, kind, raw, key, self.tenant.name)
        match kind:
            case "create_session":
                reply = {"type": kind, "session_id": operation.id}
            case "finish_session":
                reply = {"type": kind, "session_id": operation.owner}
            case "create_sampling_session":
                reply = {"type": kind, "sampling_session_id": operation.id}
            case "asample":
                ids = [f"{operation.id}:{i}" for i in range(operation.body.num_samples)]
                reply = {"request_id": operation.id, "sample_sequence_ids": ids}
            case _:
                reply = {"request_id": operation.id, "model_id": operation.owner}
        self._send(200, reply)

    def _future(self, body: bodies.Future) -> None:
        reply = service.answer(self.service, body.request_id, _WAIT_S, self.tenant.name)
        if reply is None:
            again = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
            self._send(408, again)
        else:
            self._send_raw(200, reply.raw, _JSON if reply.kind == "json" else _PROTOBUF)

    def _no_such_path(self) -> NoReturn:
        raise Refused(
            404,
            f"no {self.command} {self.path[:100]}; under {_ROOT} there are GET healthz, "
            "get_server_capabilities, samplers/ID, and POST sessions/ID/finish, "
            + ", ".join(sorted(_NAMES)),
        )


def _with_session(raw: bytes, session: str) -> bytes:
    """The body of a request that has its session in the path."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(fields, dict):
        raise Refused(400, "the body is no JSON object; send one")
    return json.dumps(fields | {"session_id": session}).encode()


def _info(served: Service, book: Ledger, raw: bytes) -> dict[str, Any]:
    """What a model is."""
    body = bodies.read(bodies.Model, raw)
    model = book.models.get(body.model_id)
    if model is None:
        raise Refused(404, f"model_id={body.model_id!r} is not known here")
    name = book.name
    return {
        "type": "get_info",
        "model_id": body.model_id,
        "model_data": {
            "model_name": name,
            "arch": served.actor.model.family,
            "tokenizer_id": served.tokenizer_id,
        },
        "is_lora": model.config.rank > 0,
        "lora_rank": model.config.rank or None,
        "model_name": name,
    }


def _heartbeat(served: Service, book: Ledger, raw: bytes) -> dict[str, Any]:
    body = bodies.read(bodies.Session, raw)
    if body.session_id not in book.sessions:
        raise Refused(404, f"session_id={body.session_id!r} is not known here")
    return {"type": "session_heartbeat"}


_REPLIES = {
    "client/config": lambda served, book, raw: _SETTINGS,
    "client/dynamic_config": lambda served, book, raw: {},
    "session_heartbeat": _heartbeat,
    "get_info": _info,
    "telemetry": lambda served, book, raw: {"status": "accepted"},  # and is kept nowhere
}
"""Replies to what is no operation, from the service, what the caller has, and the body."""
_NAMES = {"retrieve_future", *_REPLIES, *ledger.KINDS} - {"finish_session"}
"""All that is answered under POST, but for the end of a session, whose path has its name."""


def main(argv: list[str]) -> int:
    """Serve a packaged model or a model directory until interrupted."""
    usage = "jaxrl serve --tinker MODEL"
    try:
        name, config = flags.name_and_settings(
            TinkerConfig(), argv, usage=usage, what="a model or its directory"
        )
        actor = policy.create(policy.config_of(name), mesh.make(Config().mesh), trust=config.trust)
        place = catalog.locate(name)
        server = make_server(actor, config, name, str(place) if place.is_dir() else None)
    except (*REFUSALS, OSError) as error:
        return refused(error)
    host, port = server.server_address[:2]
    return server.serve(
        f"serving {name} to Tinker clients at http://{host}:{port} (TINKER_BASE_URL); Ctrl-C ends "
        "it"
    )


def make_server(
    actor: Policy, config: TinkerConfig, name: str, tokenizer_id: str | None = None
) -> Server:
    """A server that listens, its thread at work; `serve_forever` answers.

    Args:
      actor: the base model.
      config: settings.
      name: of the base model.
      tokenizer_id: where a client on this machine finds the tokenizer; None: nowhere.

    Raises:
      ValueError: limits that the model cannot serve, or keys that are missing or wrong.
      OSError: the address is taken or not ours, or a file cannot be read.
    """
    model = dataclasses.replace(actor.model, dtype=config.dtype)
    params = decoder.cast(actor.params, config.dtype)
    placed = actor._replace(model=model, params=params)
    served = service.start(placed, name, config, tokenizer_id)
    server = Server((config.host, config.port), functools.partial(Handler, served))
    work.start(served)
    return server
