"""What a service has accepted: sessions, models, saved weights, samplers, apart for each tenant.

It is known as soon as a request is accepted, before the request is worked on, and follows from the
requests alone. So a request that cannot be served is refused at once, and never in the middle of
others that wait.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxrl.launch.server.http import Refused
from jaxrl.launch.server.tinker import bodies, learner, wire
from jaxrl.models.config import DecoderConfig


@dataclasses.dataclass
class Model:
    """A model that was created."""

    config: bodies.Lora
    seed: int
    last: int = 0
    """The greatest `seq_id` accepted."""
    gradient: bool = False
    """Whether one will have been summed by then."""


class Saved(NamedTuple):
    """Weights that a client has named."""

    file: str
    """In the run directory."""
    config: bodies.Lora
    resumable: bool
    """Whether training can continue from it; else it is for samplers."""
    expires: float | None
    """Seconds since 1970; None: never."""


class Sampler(NamedTuple):
    """A sampling session."""

    file: str
    """Of the weights; empty: the base model."""
    path: str | None
    config: bodies.Lora | None


class Operation(NamedTuple):
    """A request that was accepted or can be."""

    kind: str
    id: str
    """The same for the same request, however often it is sent."""
    owner: str
    """The model or sampling session that it is about."""
    seq: int
    body: Any
    saved: Saved | None = None
    """Weights that it reads or writes."""


class Done(NamedTuple):
    """What is known of the body of a request whose result is on the disk."""

    forward_only: bool


@dataclasses.dataclass
class Ledger:
    """What was accepted of a tenant; it knows of no other's."""

    name: str
    """Of the base model."""
    model: DecoderConfig
    context: int
    """Most tokens of a sequence."""
    tenant: str = ""
    """Whose requests they are."""
    sessions: set[str] = dataclasses.field(default_factory=set)
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    """Sessions by the key of the request that created them."""
    models: dict[str, Model] = dataclasses.field(default_factory=dict)
    saved: dict[str, Saved] = dataclasses.field(default_factory=dict)
    """By path, `tinker://...`."""
    samplers: dict[str, Sampler] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of requests, by id."""


KINDS: dict[str, Callable[[bytes], Any]] = {
    "create_session": lambda raw: bodies.read(bodies.CreateSession, raw),
    "finish_session": lambda raw: bodies.read(bodies.FinishSession, raw),
    "create_sampling_session": lambda raw: bodies.read(bodies.CreateSampler, raw),
    "create_model": lambda raw: bodies.read(bodies.CreateModel, raw),
    "forward_backward": wire.read_batch,
    "optim_step": lambda raw: bodies.read(bodies.OptimStep, raw),
    "save_weights": lambda raw: bodies.read(bodies.SaveWeights, raw),
    "save_weights_for_sampler": lambda raw: bodies.read(bodies.SaveForSampler, raw),
    "load_weights": lambda raw: bodies.read(bodies.LoadWeights, raw),
    "asample": lambda raw: bodies.read(bodies.Sample, raw),
}
"""What reads the body of each kind of request."""


def digest(kind: str, raw: bytes) -> str:
    """Tells requests apart, and is the same for each attempt at one.

    Clients take another `sampling_session_seq_id` each time that they send the same
    `save_weights_for_sampler`; the session of the first attempt is the answer to all of them. A
    session is finished once, and the first reason stays.

    Args:
      kind: one of `KINDS`.
      raw: a body that was read.
    """
    if kind == "save_weights_for_sampler":
        fields = json.loads(raw)
        fields.pop("sampling_session_seq_id", None)
        raw = json.dumps(fields, sort_keys=True).encode()
    if kind == "finish_session":
        raw = b""
    return hashlib.sha256(kind.encode() + b"\n" + raw).hexdigest()


def prepare(ledger: Ledger, kind: str, body: Any, key: str, time: float) -> Operation:
    """The operation that a body asks for.

    Args:
      ledger: is not changed.
      kind: one of `KINDS`.
      body: as from `KINDS`.
      key: that tells requests for sessions apart.
      time: of the request, in seconds since 1970.

    Raises:
      Refused: it cannot be served; says why.
    """
    match kind:
        case "create_session":
            name = ledger.keys.get(key, _session(ledger.tenant, len(ledger.sessions)))
            return Operation(kind, name, name, 0, body)
        case "finish_session":
            name = _find(ledger.sessions, body.session_id, "session_id")
            return Operation(kind, finish_of(name), name, 0, body)
        case "create_sampling_session":
            _find(ledger.sessions, body.session_id, "session_id")
            name = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
            operation = Operation(kind, name, name, 0, body)
            if name in ledger.digests:
                return operation
            _check_free(ledger, name)
            return operation._replace(saved=_sampled(ledger, body, time))
        case "create_model":
            _find(ledger.sessions, body.session_id, "session_id")
            _check_base(ledger, body.base_model)
            with_value_errors(lambda: learner.shape_of(ledger.model, body.adapters))
            name = f"{body.session_id}:train:{body.model_seq_id}"
            return Operation(kind, f"{name}:0", name, 0, body)
        case "load_weights":
            return _load(ledger, body, time)
        case "asample":
            _find(ledger.samplers, body.sampling_session_id, "sampling_session_id")
            with_value_errors(lambda: _check_sample(ledger, body))
            name = body.sampling_session_id
            return Operation(kind, f"{name}:{body.seq_id}", name, body.seq_id, body)
    return _of_model(ledger, kind, body, time)


def _session(tenant: str, number: int) -> str:
    return f"{tenant}{'-' if tenant else ''}session-{number}"


def tenant_of(name: str) -> str:
    """The tenant whose session, model, sampler or request has a name: all begin with a session."""
    return name.partition(":")[0].rpartition("session-")[0].removesuffix("-")


def finish_of(name: str) -> str:
    """The request that finishes the session of a model, a sampler or a request."""
    return f"{name.partition(':')[0]}:finish"


def models_of(ledger: Ledger, session: str) -> list[str]:
    """The models of a session."""
    return [name for name in ledger.models if name.startswith(f"{session}:")]


def models_held(ledger: Ledger) -> list[bodies.Lora]:
    """The adapters of models in memory: those of sessions that are not finished."""
    rest = [name for name in ledger.models if finish_of(name) not in ledger.digests]
    return [ledger.models[name].config for name in rest]


def model_made(ledger: Ledger, operation: Operation) -> bodies.Lora | None:
    """The adapters of the model that an operation makes; None: it makes none."""
    if operation.owner in ledger.models:
        return None
    match operation.kind:
        case "create_model":
            return operation.body.adapters
        case "load_weights":
            assert operation.saved is not None
            return operation.saved.config
    return None


def _of_model(ledger: Ledger, kind: str, body: Any, time: float) -> Operation:
    """An operation on a model that is there."""
    model = _find(ledger.models, body.model_id, "model_id")
    operation = Operation(kind, f"{body.model_id}:{body.seq_id}", body.model_id, body.seq_id, body)
    if operation.id in ledger.digests:
        return operation
    _check_order(model, body.seq_id)
    match kind:
        case "forward_backward":
            with_value_errors(lambda: wire.check(ledger.model, body, ledger.context))
        case "optim_step":
            if not model.gradient:
                raise Refused(
                    400, "optim_step: there is no gradient; send a forward_backward first"
                )
        case "save_weights" | "save_weights_for_sampler":
            _check_free(ledger, sampler_of(operation))
            return operation._replace(saved=_save(ledger, kind, body, model, time))
    return operation


def _check_free(ledger: Ledger, sampler: str | None) -> None:
    """Refuse to begin a sampling session in the place of another."""
    if sampler is not None and sampler in ledger.samplers:
        raise Refused(
            400,
            f"sampling_session_seq_id={sampler.rpartition(':')[2]} is taken in this session; send "
            "another",
        )


def _check_order(model: Model, seq: int) -> None:
    if seq <= model.last:
        raise Refused(
            400,
            f"seq_id={seq}, but {model.last} was accepted before; send the requests of a model in "
            "order",
        )


def _save(ledger: Ledger, kind: str, body: Any, model: Model, time: float) -> Saved:
    path = path_of(kind, body)
    if path in ledger.saved and not getattr(body, "overwrite", False):
        raise Refused(400, f"path={body.path!r} is taken; name another, or set overwrite")
    return Saved(
        f"models/{body.model_id.replace(':', '-')}/{body.seq_id}.safetensors",
        model.config,
        kind == "save_weights",
        None if body.ttl_seconds is None else time + body.ttl_seconds,
    )


def path_of(kind: str, body: Any) -> str:
    """The path that a client reads of weights that it saves."""
    folder = "weights" if kind == "save_weights" else "sampler_weights"
    return f"tinker://{body.model_id}/{folder}/{body.path or body.seq_id}"


def _load(ledger: Ledger, body: bodies.LoadWeights, time: float) -> Operation:
    if body.model_id is None:
        _find(ledger.sessions, body.session_id, "session_id")
        name, seq = f"{body.session_id}:train:{body.model_seq_id}", 0
    else:
        _find(ledger.models, body.model_id, "model_id")
        name, seq = body.model_id, body.seq_id or 0
    operation = Operation("load_weights", f"{name}:{seq}", name, seq, body)
    if operation.id in ledger.digests:
        return operation
    saved = _saved(ledger, body.path, time)
    if not saved.resumable:
        raise Refused(400, f"path={body.path!r} is of a sampler; load one of save_weights")
    if body.base_model is not None:
        _check_base(ledger, body.base_model)
    if name in ledger.models:
        config = ledger.models[name].config
        _check_order(ledger.models[name], seq)
        if _matrices(config) != _matrices(saved.config):
            raise Refused(
                400,
                f"path={body.path!r} has {_matrices(saved.config)}, the model "
                f"{_matrices(config)}; create a model from the path",
            )
    return operation._replace(saved=saved)


def _matrices(config: bodies.Lora) -> dict[str, Any]:
    return config.model_dump(exclude={"seed"})


def _sampled(ledger: Ledger, body: bodies.CreateSampler, time: float) -> Saved | None:
    if body.base_model is not None:
        _check_base(ledger, body.base_model)
    return None if body.model_path is None else _saved(ledger, body.model_path, time)


def _saved(ledger: Ledger, path: str, time: float) -> Saved:
    saved = _find(ledger.saved, path, "path")
    if saved.expires is not None and time > saved.expires:
        raise Refused(404, f"path={path[:200]!r} has expired, as its ttl_seconds said")
    return saved


def _check_base(ledger: Ledger, name: str) -> None:
    if name != ledger.name:
        raise Refused(400, f"base_model={name[:200]!r} is not served; name {ledger.name!r}")


def _check_sample(ledger: Ledger, body: bodies.Sample) -> None:
    tokens = np.array(body.prompt.tokens, np.int64)
    if not len(tokens):
        raise ValueError("prompt: it is empty; send at least one token")
    wire.check_tokens(ledger.model, tokens, "prompt")
    stop_ids = bodies.stops(body.sampling_params.stop)[1] or []
    wire.check_tokens(ledger.model, np.array(stop_ids, np.int64), "sampling_params.stop")
    budget = body.sampling_params.max_tokens or 1
    if len(tokens) + budget > ledger.context:
        raise ValueError(
            f"prompt has {len(tokens)} tokens, which with max_tokens={budget} is more than "
            f"{ledger.context}; ask for fewer, or start the server with a greater "
            "--max-context-tokens"
        )


def enter(ledger: Ledger, operation: Operation, key: str, raw_digest: str) -> None:
    """Take note of an accepted operation."""
    kind, body, name = operation.kind, operation.body, operation.owner
    ledger.digests[operation.id] = raw_digest
    if name in ledger.models:
        ledger.models[name].last = operation.seq
    match kind:
        case "create_session":
            ledger.sessions.add(name)
            ledger.keys[key] = name
        case "create_sampling_session":
            ledger.samplers[name] = _sampler(operation.saved, body.model_path)
        case "create_model":
            seed = body.adapters.seed
            if seed is None:
                seed = number_of(name)
            ledger.models[name] = Model(body.adapters, seed)
        case "load_weights":
            assert operation.saved is not None
            if name not in ledger.models:
                ledger.models[name] = Model(operation.saved.config, number_of(name))
            ledger.models[name].gradient = False
        case "forward_backward":
            ledger.models[name].gradient |= not body.forward_only
        case "optim_step":
            ledger.models[name].gradient = False
        case "save_weights" | "save_weights_for_sampler":
            assert operation.saved is not None
            path = path_of(kind, body)
            ledger.saved[path] = operation.saved
            if (session := sampler_of(operation)) is not None:
                ledger.samplers[session] = _sampler(operation.saved, path)


def _sampler(saved: Saved | None, path: str | None) -> Sampler:
    return Sampler("", None, None) if saved is None else Sampler(saved.file, path, saved.config)


def sampler_of(operation: Operation) -> str | None:
    """The sampling session that saving weights begins, if it does."""
    seq = getattr(operation.body, "sampling_session_seq_id", None)
    return None if seq is None else f"{operation.owner.partition(':')[0]}:sample:{seq}"


def number_of(name: str) -> int:
    """A seed for what has none: it depends on the name alone, so it is the same after a restart."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


T = TypeVar("T")


def _find(entries: Any, name: str | None, field: str) -> Any:
    if name is None or name not in entries:
        raise Refused(404, f"{field}={(name or '')[:200]!r} is not known here")
    return entries[name] if isinstance(entries, dict) else name


def with_value_errors(function: Callable[[], T]) -> T:
    """What a function returns; its ValueError is a refusal with status 400."""
    try:
        return function()
    except ValueError as error:
        raise Refused(400, str(error)) from error
