"""A service: what is accepted, what waits, and what was answered.

A request goes through the ledger, which refuses it or not, into the journal, and only then is its
caller told its id. A thread computes its answer and writes that into the journal too. After a
restart the journal is read: requests without an answer are worked on, and those that changed a
model after its last snapshot are computed again, which gives the same to the last bit.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import threading
import time
import traceback
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxrl.config import validate
from jaxrl.launch.server.http import Refused
from jaxrl.launch.server.tinker import learner, ledger, tenants
from jaxrl.launch.server.tinker.journal import (
    Journal,
    append,
    from_text,
    open_journal,
    read,
    rows,
    to_text,
)
from jaxrl.launch.server.tinker.learner import Learner
from jaxrl.launch.server.tinker.ledger import Ledger, Operation
from jaxrl.launch.server.tinker.tenants import Tenant
from jaxrl.rollout.policy import Policy
from jaxrl.sampling import prefixes
from jaxrl.sampling.prefixes import Prefixes
from jaxrl.sampling.work import SamplerConfig
from jaxrl.types import Params

_AT_ONCE = ("create_session", "create_sampling_session")
"""Kinds of requests that need no work."""


@dataclasses.dataclass(frozen=True)
class TinkerConfig:
    """An HTTP server of the Tinker API."""

    run_dir: str = ""
    """Directory of the journal, the models and the weights that are saved; required."""
    host: str = "127.0.0.1"
    """Address to listen on. Everyone who can reach it and has the key can use the model."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    max_context_tokens: int = 2048
    """Longest sequence, prompt and completion together; at most the model's positions."""
    slots: int = 16
    """Sequences decoded at once."""
    chunk: int = 16
    """Decoding steps between two checks for ended sequences."""
    prefix_cache: int = 0
    """MiB of beginnings of prompts that are kept from sample to sample under one set of weights; 0:
    none."""
    prefix_block: int = 64
    """With `prefix_cache`: tokens that are kept together."""
    max_body_bytes: int = 16 << 20
    """Largest request body; a larger one is refused unread."""
    waiting: int = 1024
    """Requests of a tenant that may wait; further ones are answered with status 429."""
    keys: str = ""
    """File of those who may call, one a line: name, key and limits; without it, all have one key
    and see each other's models."""
    snapshot_every: int = 16
    """Requests that change a model between two snapshots of it: the most that is computed again
    after a restart."""
    compact_bytes: int = 64 << 20
    """Growth of the journal, in bytes, after which it is written again without arrays that are no
    longer needed; it also has to double."""
    models_at_once: int = 1
    """Models whose samples are decoded in one batch, and whose small requests for gradients are
    computed in one program, where their ranks are alike up to the next power of two; 1: one model
    after another, its adapters added into the weights. With more than 32 no request is small
    enough, so that all gradients are computed alone."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the base model's weights and of activations; adapters are float32."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""

    @property
    def layout(self) -> SamplerConfig:
        """Of the sampler's memory."""
        return SamplerConfig(
            slots=self.slots,
            chunk=self.chunk,
            prefix_cache=self.prefix_cache,
            prefix_block=self.prefix_block,
        )


@dataclasses.dataclass
class AdapterStack:
    """Adapters of several models beside their base, see `jaxrl.models.lora_stack`."""

    params: Params
    places: OrderedDict[str, int] = dataclasses.field(default_factory=OrderedDict)
    """By file; the one that was used last is the last."""


class Answer(NamedTuple):
    """What a request is answered with."""

    kind: Literal["json", "protobuf"]
    raw: bytes


@dataclasses.dataclass
class Service:
    """What the thread and the connections share."""

    actor: Policy
    name: str
    config: TinkerConfig
    tenants: dict[str, Tenant]
    """Who may call, by name."""
    journal: Journal
    ledgers: dict[str, Ledger]
    """What was accepted, by the name of the tenant."""
    tokenizer_id: str | None
    """Where a client on this machine finds the tokenizer; None: nowhere."""
    answers: Counter[int] = dataclasses.field(default_factory=Counter)
    """Answers by status."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Of the counts."""
    changed: threading.Condition = dataclasses.field(default_factory=threading.Condition)
    """Held to read or change what follows, the journal and the ledgers."""
    places: dict[str, int] = dataclasses.field(default_factory=dict)
    """Where in the journal an answer is, by id."""
    queues: dict[str, deque[Operation]] = dataclasses.field(default_factory=dict)
    """What waits, by tenant, of those for whom something waits: first whose turn it is."""
    lost: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why a model that was there before a restart is not, by name."""
    snapshots: dict[str, int] = dataclasses.field(default_factory=dict)
    """The last request that the snapshot on the disk has, by model."""
    compact_at: int = 0
    """Size of the journal at which it is compacted."""
    learners: dict[str, Learner] = dataclasses.field(default_factory=dict)
    """Of the thread alone, as is what follows."""
    since: Counter[str] = dataclasses.field(default_factory=Counter)
    """Requests that changed a model after its last snapshot."""
    batches: dict[str, deque[tuple[int, float]]] = dataclasses.field(default_factory=dict)
    """Of each kind, the requests of the last two batches, and the seconds that each took."""
    weights: OrderedDict[str, Params] = dataclasses.field(default_factory=OrderedDict)
    """In the sampler's form, by file."""
    stacks: OrderedDict[int, AdapterStack] = dataclasses.field(default_factory=OrderedDict)
    """In the sampler's form with adapters beside them, by rank."""
    prefixes: Prefixes = dataclasses.field(default_factory=Prefixes)
    """Of `TinkerConfig.prefix_cache`."""

    @property
    def directory(self) -> Path:
        """Of the run."""
        return Path(self.config.run_dir)


def start(
    actor: Policy, name: str, config: TinkerConfig, tokenizer_id: str | None = None
) -> Service:
    """Begin a service, or continue that of the run directory.

    Raises:
      ValueError: limits that the model cannot serve, a run directory of another service, or keys
        that are missing or wrong.
      OSError: a file cannot be read or written.
    """
    callers = tenants.load(config.keys, config.host)
    if not config.run_dir:
        raise ValueError("--run-dir is missing; name a directory for the journal and the models")
    model = actor.model
    if not 1 < config.max_context_tokens <= model.max_positions:
        raise ValueError(
            f"max_context_tokens={config.max_context_tokens}: the model has {model.max_positions} "
            "positions; choose 2 or more, and no more than those"
        )
    if config.models_at_once < 1:
        raise ValueError(f"models_at_once={config.models_at_once}: must be at least 1")
    validate.check_prefixes(config.layout)
    if mib := config.prefix_cache:
        prefixes.check(mib, config.prefix_block, (model,))
    if config.compact_bytes < 1:
        raise ValueError(f"compact_bytes={config.compact_bytes}: must be at least 1")
    header = {"journal": 1, "model": name, "dtype": config.dtype}
    opened = open_journal(Path(config.run_dir), header)
    books = {t: Ledger(name, model, config.max_context_tokens, t) for t in callers}
    service = Service(actor, name, config, callers, opened, books, tokenizer_id)
    service.compact_at = config.compact_bytes
    _continue(service)
    return service


def ledger_of(service: Service, name: str) -> Ledger:
    """What was accepted of the tenant that has a session, a model, a sampler or a request."""
    tenant, context = ledger.tenant_of(name), service.config.max_context_tokens
    book = Ledger(service.name, service.actor.model, context, tenant)  # of one who may call no more
    return service.ledgers.setdefault(tenant, book)


def _wait(service: Service, operation: Operation) -> None:
    queues = service.queues
    queues.setdefault(ledger.tenant_of(operation.owner), deque()).append(operation)


def _continue(service: Service) -> None:
    """Read the journal: what was accepted, what was answered, and what has to be computed.

    Raises:
      ValueError: a request in it is refused under these settings.
    """
    failed, done = set[str](), service.snapshots
    for place, row in rows(service.journal):
        if "ended" in row:
            service.places[row["ended"]] = place
            failed |= {row["ended"]} if row["failed"] else set()
    for _, row in rows(service.journal):
        if "kind" not in row:
            continue
        book = ledger_of(service, row["id"])
        operation, digest = _accepted(service, book, row)
        ledger.enter(book, operation, row["key"], digest)
        name = operation.owner
        if ledger.finish_of(name) in service.places:  # its models are gone
            continue
        if name in book.models and name not in done:
            done[name] = _restore(service, name)
        if row["kind"] in ("asample", "finish_session"):
            needed = operation.id not in service.places
        else:
            needed = row["kind"] not in _AT_ONCE and operation.seq > done[name]
        if needed and operation.id not in failed:
            if "body" not in row:
                raise ValueError(
                    f"{snapshot_path(service, name)} is missing or older than the journal, which "
                    f"has no longer what {operation.id} asked for; put the file back"
                )
            _wait(service, operation)


def _accepted(service: Service, book: Ledger, row: dict[str, Any]) -> tuple[Operation, str]:
    """The operation of a row, and its digest; one that was compacted has no body but `Done`.

    Raises:
      ValueError: it is refused under these settings.
    """
    if "body" not in row:
        body = ledger.Done(row["forward_only"])
        operation = Operation(row["kind"], row["id"], row["owner"], row["seq"], body)
        return operation, row["digest"]
    raw = from_text(row["body"])
    try:
        body = ledger.KINDS[row["kind"]](raw)
        operation = ledger.prepare(book, row["kind"], body, row["key"], row["time"])
    except (Refused, ValueError) as error:
        raise ValueError(
            f"the journal in {service.directory} holds a request that these settings "
            f"refuse: {error}; start with those that it was begun with"
        ) from error
    return operation, ledger.digest(row["kind"], raw)


def _restore(service: Service, name: str) -> int:
    """Take up a model's snapshot; the number of its last operation, -1 where there is none."""
    actor, entry = service.actor, ledger_of(service, name).models[name]
    shape = learner.shape_of(actor.model, entry.config)
    snapshot = learner.read_snapshot(snapshot_path(service, name), actor.model, actor.params, shape)
    if snapshot is None:
        return -1
    service.learners[name] = snapshot.state
    return snapshot.seq


def snapshot_path(service: Service, name: str) -> Path:
    """The file of a model's snapshot."""
    return service.directory / "models" / name.replace(":", "-") / "state.safetensors"


def accept(service: Service, kind: str, raw: bytes, key: str = "", tenant: str = "") -> Operation:
    """Accept a request, or find that it was accepted before.

    Args:
      service: that is asked.
      kind: one of `ledger.KINDS`.
      raw: the body.
      key: that the caller sends with each attempt at the same request; empty: it sends none.
      tenant: name of the caller.

    Raises:
      Refused: it cannot be served.
      OSError: it cannot be written down, and is not accepted.
    """
    body = ledger.with_value_errors(lambda: ledger.KINDS[kind](raw))
    key = key or secrets.token_hex(8)
    digest = ledger.digest(kind, raw)
    with service.changed:
        book, seconds = service.ledgers[tenant], time.time()
        operation = ledger.prepare(book, kind, body, key, seconds)
        before = book.digests.get(operation.id)
        if before is not None:
            if before != digest:
                raise Refused(400, f"{operation.id} was another request; send the next seq_id")
            return operation
        if ledger.finish_of(operation.owner) in book.digests:
            session = operation.owner.partition(":")[0]
            raise Refused(400, f"session {session} was finished by its client; begin another")
        if operation.owner in service.lost and kind != "load_weights":
            raise Refused(400, service.lost[operation.owner])
        limits = service.tenants[tenant]
        if (config := ledger.model_made(book, operation)) is not None:
            size = functools.partial(learner.memory, service.actor.model, service.actor.params)
            tenants.check_quota(limits, ledger.models_held(book), config, size)
        most = min(limits.waiting or service.config.waiting, service.config.waiting)
        if len(service.queues.get(tenant, ())) >= most:
            raise Refused(429, f"{most} requests of this key wait; try again later")
        row = {"kind": kind, "id": operation.id, "key": key, "time": seconds}
        append(service.journal, {**row, "body": to_text(raw)})
        ledger.enter(book, operation, key, digest)
        if kind not in _AT_ONCE:
            _wait(service, operation)
            service.changed.notify_all()
    return operation


def answer(service: Service, name: str, seconds: float, tenant: str = "") -> Answer | None:
    """The answer to a request of a tenant; None where there is none after so many seconds.

    Raises:
      Refused: no such request was accepted, or it was answered at once.
    """
    with service.changed:
        book = service.ledgers[tenant]
        if name not in book.digests or name in book.sessions or name in book.samplers:
            raise Refused(404, f"request_id={name[:200]!r} is not known here")
        service.changed.wait_for(lambda: name in service.places, seconds)
        if name not in service.places:
            return None
        row = read(service.journal, service.places[name])
    if "answer" not in row:
        raise Refused(404, f"the answer to {name} was given long ago and is no longer kept")
    return Answer(row["as"], from_text(row["answer"]))


def end(service: Service, name: str, reply: Answer, *, failed: bool = False) -> None:
    """Write an answer into the journal and tell who waits; the first answer stays.

    What was done cannot be taken back, so while storage fails the answer waits until there is room.
    That a request failed is synced: after a restart it is not tried again.
    """
    row = {"ended": name, "failed": failed, "time": time.time()}
    row |= {"as": reply.kind, "answer": to_text(reply.raw)}
    while True:
        try:
            with service.changed:
                if name not in service.places:
                    service.places[name] = append(service.journal, row, sync=failed)
                    service.changed.notify_all()
            return
        except OSError:
            traceback.print_exc()
        time.sleep(1)
