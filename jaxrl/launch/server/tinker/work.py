"""The thread of a service: it works on accepted requests in their order, and answers them."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from jaxrl.launch.server.tinker import bodies, files, journal, learner, ledger, samples, wire
from jaxrl.launch.server.tinker.learner import Shape
from jaxrl.launch.server.tinker.ledger import Operation
from jaxrl.launch.server.tinker.service import Answer, Service, end, snapshot_path
from jaxrl.rollout import policy
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Params

_WEIGHTS = 2
"""Sets of weights that are kept in the sampler's form."""


def start(service: Service) -> None:
    """Start the thread."""
    threading.Thread(target=_serve, args=(service,), daemon=True).start()


def _serve(service: Service) -> None:
    while True:
        with service.changed:
            service.changed.wait_for(lambda: service.queue)
            operations = _take(service)
        if not _attempt(service, operations) and len(operations) > 1:
            for operation in operations:  # one of them fails, and the others need not
                _attempt(service, [operation])


def _take(service: Service) -> list[Operation]:
    """The first operation that waits; with a sample, all others that can go with it."""
    first = service.queue.popleft()
    if first.kind != "asample":
        return [first]
    group = _group(service, first)
    alike = [o for o in service.queue if o.kind == "asample" and _group(service, o) == group]
    jobs = [first, *alike]
    jobs = [jobs[i] for i in samples.together([job.body for job in jobs])[0]]
    ids = {job.id for job in jobs}
    left = [o for o in service.queue if o.id not in ids]
    service.queue.clear()
    service.queue.extend(left)
    return jobs


def _group(service: Service, operation: Operation) -> tuple[Any, ...]:
    """Samples that are alike in this can be sampled together."""
    stop_ids = bodies.stops(operation.body.sampling_params.stop)[1]
    file = service.ledger.samplers[operation.owner].file
    return file, None if stop_ids is None else tuple(stop_ids)


def _attempt(service: Service, operations: Sequence[Operation]) -> bool:
    """Work on operations; False if they failed, which is the answer to one that was alone."""
    first = operations[0]
    try:
        if first.kind == "asample":
            for operation, raw in zip(operations, _sample(service, operations), strict=True):
                end(service, operation.id, Answer("protobuf", raw))
        else:
            end(service, first.id, _execute(service, first))
            _count(service, first.owner, first.seq)
    except Exception as error:  # a bug must not leave callers waiting for ever
        traceback.print_exc()
        if len(operations) == 1:
            problem = {"error": f"{type(error).__name__}: {error}", "category": "server"}
            end(service, first.id, _json(problem), failed=True)
        return False
    return True


def _json(reply: dict[str, Any]) -> Answer:
    return Answer("json", json.dumps(reply).encode())


def _count(service: Service, name: str, seq: int) -> None:
    """Write a snapshot of a model where enough has changed since the last."""
    service.since[name] += 1
    if service.since[name] < service.config.snapshot_every:
        return
    journal.sync(service.journal)  # what the snapshot spares computing must have its answer there
    config = service.ledger.models[name].config
    path = snapshot_path(service, name)
    files.write(path, service.learners[name], seq, config, moments=True)
    service.since[name] = 0


def _execute(service: Service, operation: Operation) -> Answer:
    """Do what changes or saves a model."""
    name, body, actor = operation.owner, operation.body, service.actor
    model, base = actor.model, actor.params
    entry = service.ledger.models[name]
    shape = learner.shape_of(model, entry.config)
    state = service.learners.get(name)
    saved = operation.saved
    match operation.kind:
        case "create_model":
            service.learners[name] = learner.create(model, base, shape, entry.seed)
            return _json({"type": "create_model", "model_id": name})
        case "load_weights":
            assert saved is not None
            path = service.directory / saved.file
            service.learners[name] = files.read_weights(
                path, model, base, shape, moments=body.optimizer
            )
            return _json({"type": "load_weights", "path": body.path, "model_id": name})
    if state is None:
        raise RuntimeError(f"{name} was not created")
    match operation.kind:
        case "forward_backward":
            state, logprobs, loss = learner.forward_backward(model, base, shape, state, body)
            service.learners[name] = state
            return Answer("protobuf", wire.write_output(logprobs, {"loss:sum": loss}))
        case "optim_step":
            service.learners[name], metrics = learner.optim_step(model, state, body.adam_params)
            return _json({"metrics": metrics})
    assert saved is not None
    without_gradient = state._replace(gradient=None)
    files.write(
        service.directory / saved.file,
        without_gradient,
        operation.seq,
        entry.config,
        moments=saved.resumable,
    )
    reply = {"type": operation.kind, "path": ledger.path_of(operation.kind, body)}
    if (session := ledger.sampler_of(operation)) is not None:
        reply["sampling_session_id"] = session
    return _json(reply)


def _sample(service: Service, operations: Sequence[Operation]) -> list[bytes]:
    """Answers to samples that can be sampled together."""
    sampler = service.ledger.samplers[operations[0].owner]
    shape = None
    if sampler.config is not None:
        shape = learner.shape_of(service.actor.model, sampler.config)
    params = _weights(service, sampler.file, shape)
    jobs = [operation.body for operation in operations]
    setup = samples.setup_of(
        service.actor.model,
        service.actor.tokenizer,
        service.ledger.context,
        SamplerConfig(slots=service.config.slots, chunk=service.config.chunk),
        bodies.stops(jobs[0].sampling_params.stop)[1],
    )
    return samples.sample(setup, params, jobs)


def _weights(service: Service, file: str, shape: Shape | None) -> Params:
    """Weights in the sampler's form; those that were used last stay in memory."""
    if file in service.weights:
        service.weights.move_to_end(file)
        return service.weights[file]
    model, params = service.actor.model, service.actor.params
    if shape is not None:
        path = service.directory / file
        state = files.read_weights(path, model, params, shape, moments=False)
        params = learner.join(model, params, state.adapters, shape)
    while len(service.weights) >= _WEIGHTS:
        service.weights.popitem(last=False)
    service.weights[file] = policy.sampling_params(params, service.config.dtype)
    return service.weights[file]
