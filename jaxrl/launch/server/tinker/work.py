"""The thread of a service: it works on accepted requests and answers them.

Those of a model come in their order, and tenants take turns.

What is sampled depends on the weights, the prompt, the seed and the settings alone, never on what
else is sampled at the same time.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.server import engine
from jaxrl.launch.server.openai import CHOICES, COLDEST
from jaxrl.launch.server.tinker import (
    bodies,
    compaction,
    gradients,
    learner,
    ledger,
    queueing,
    wire,
)
from jaxrl.launch.server.tinker.journal import sync
from jaxrl.launch.server.tinker.learner import Learner, Shape
from jaxrl.launch.server.tinker.ledger import Operation, number_of
from jaxrl.launch.server.tinker.service import (
    AdapterStack,
    Answer,
    Service,
    end,
    ledger_of,
    snapshot_path,
)
from jaxrl.models import lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import policy
from jaxrl.sampling import sampler, search
from jaxrl.sampling.prefixes import Prefixes
from jaxrl.sampling.slots import Features
from jaxrl.types import Completion, Params, Request


def setup_of(
    model: DecoderConfig,
    tokenizer: Tokenizer,
    context: int,
    layout: sampler.SamplerConfig,
    stop_ids: Sequence[int] | None,
    *,
    truncate: bool,
) -> sampler.Setup:
    """The sampler's setup.

    Args:
      model: the decoder's shape.
      tokenizer: of the model.
      context: most tokens of a sequence.
      layout: of memory.
      stop_ids: tokens that end a sequence; None: the model's own.
      truncate: whether tokens may be left out.
    """
    ends = tokenizer.eos_ids if stop_ids is None else stop_ids
    return sampler.Setup(
        model,
        jax.random.key(0),
        tuple(ends),
        context,
        context,
        layout,
        text=tokenizer.decode,
        lean=True,
        features=Features(truncate=truncate),
    )


def requests_of(body: bodies.Sample, context: int) -> list[Request]:
    """The sampler's requests for a body."""
    settings, prompt = body.sampling_params, body.prompt.tokens
    seed = settings.seed
    if seed is None:
        seed = number_of(f"{body.sampling_session_id}:{body.seq_id}")
    first = Request(
        0,
        prompt=prompt,
        max_new_tokens=settings.max_tokens or context - len(prompt),
        temperature=0.0 if settings.temperature < COLDEST else settings.temperature,
        top_k=max(settings.top_k, 0),
        top_p=settings.top_p,
        stop=bodies.stops(settings.stop)[0],
    )
    return search.copies(first, body.num_samples, first_id=seed % 2**31 * CHOICES)


def sample(
    setup: sampler.Setup,
    params: Params,
    jobs: Sequence[bodies.Sample],
    places: Sequence[int],
    prefixes: Prefixes,
) -> list[bytes]:
    """Answers to jobs, none of which has another's seed.

    Args:
      setup: as from `setup_of`.
      params: as from `policy.sampling_params`.
      jobs: with the stop tokens of the setup.
      places: of the adapters of each job in the parameters; 0 for none.
      prefixes: beginnings of prompts that samples before have read; changed in place.
    """
    owner, requests = dict[int, int](), list[Request]()
    for i, body in enumerate(jobs):
        mine = [
            dataclasses.replace(request, adapter=places[i])
            for request in requests_of(body, setup.max_length)
        ]
        owner |= {request.id: i for request in mine}
        requests += mine
    work = sampler.Work(prefixes=prefixes)
    sampler.submit(setup, work, requests)
    done: list[list[Completion]] = [[] for _ in jobs]
    while work:
        for completion in sampler.advance(setup, params, work):
            done[owner[completion.request.id]].append(completion)
    return [
        _answer(setup, params, body, sorted(completions, key=lambda c: c.request.id))
        for body, completions in zip(jobs, done, strict=True)
    ]


def _answer(
    setup: sampler.Setup, params: Params, body: bodies.Sample, completions: Sequence[Completion]
) -> bytes:
    prompt_logprobs = None
    if body.prompt_logprobs:
        adapter = completions[0].request.adapter
        scored = engine.score(setup, params, body.prompt.tokens, adapter)
        prompt_logprobs = np.concatenate([[np.nan], scored.logp]).astype(np.float32)
    return wire.write_samples([(c.tokens, c.logp, c.stopped) for c in completions], prompt_logprobs)


_WEIGHTS = 2
"""Sets of weights that are kept in the sampler's form, and stacks of adapters."""


def start(service: Service) -> None:
    """Start the thread."""
    threading.Thread(target=_serve, args=(service,), daemon=True).start()


def _serve(service: Service) -> None:
    while True:
        with service.changed:
            service.changed.wait_for(lambda: service.queues)
            first = next(iter(service.queues.values()))[0]
            queueing.wait_for_more(service, first.kind)
        try:
            with service.changed:
                operations = queueing.take(service)
        except Exception as error:
            _fail(service, first, error)
            continue
        if not _attempt(service, operations) and len(operations) > 1:
            for operation in operations:  # one of them fails, and the others need not
                _attempt(service, [operation])
        compaction.compact_if_due(service)


def _attempt(service: Service, operations: Sequence[Operation]) -> bool:
    """Work on operations; False if they failed, which is the answer to one that was alone."""
    first, start_time = operations[0], time.monotonic()
    try:
        match first.kind:
            case "asample":
                answers = [Answer("protobuf", raw) for raw in _sample(service, operations)]
            case "forward_backward":
                answers = _learn(service, operations)
            case _:
                answers = [_execute(service, first)]
    except Exception as error:
        if len(operations) == 1:
            _fail(service, first, error)
        else:
            traceback.print_exc()
        return False
    took = time.monotonic() - start_time
    service.batches.setdefault(first.kind, deque(maxlen=2)).append((len(operations), took))
    for operation, answer in zip(operations, answers, strict=True):
        end(service, operation.id, answer)
        if operation.kind not in ("asample", "finish_session"):
            _count(service, operation.owner, operation.seq)
    return True


def _fail(service: Service, operation: Operation, error: Exception) -> None:
    """Answer with an error of ours: a bug must not leave callers waiting for ever."""
    traceback.print_exception(error)
    again = operation.id in service.places  # it was answered before a restart
    text = f"{type(error).__name__}: {error}"
    end(service, operation.id, _json({"error": text, "category": "server"}), failed=True)
    if again and operation.kind not in _SAVING:
        _lose(service, operation, text)


_SAVING = ("save_weights", "save_weights_for_sampler")
"""Kinds of requests that leave a model as it is."""


def _lose(service: Service, operation: Operation, problem: str) -> None:
    """Drop a model whose state cannot be computed again: what follows would build on another."""
    name = operation.owner
    service.learners.pop(name, None)
    with service.changed:
        service.lost.setdefault(
            name,
            f"{name} is lost: its request {operation.kind} ({operation.id}), computed again after "
            f"a restart, failed: {problem}. Load saved weights into it, or put right what failed "
            "and start the server again",
        )


def _json(reply: dict[str, Any]) -> Answer:
    return Answer("json", json.dumps(reply).encode())


def _count(service: Service, name: str, seq: int) -> None:
    """Write a snapshot of a model where enough has changed since the last.

    Where that fails, the next change tries again.
    """
    service.since[name] += 1
    if service.since[name] < service.config.snapshot_every:
        return
    config = ledger_of(service, name).models[name].config
    path = snapshot_path(service, name)
    try:
        sync(service.journal)  # what the snapshot spares computing must have its answer there
        learner.write(path, service.learners[name], seq, config, moments=True)
    except Exception:  # what was done is answered, and must not be done again
        traceback.print_exc()
        return
    service.since[name] = 0
    service.snapshots[name] = seq


def _execute(service: Service, operation: Operation) -> Answer:
    """Do what changes or saves a model, or ends those of a session."""
    if operation.kind == "finish_session":
        for model in ledger.models_of(ledger_of(service, operation.owner), operation.owner):
            service.learners.pop(model, None)
        return _json({"type": "finish_session"})
    name, body, actor = operation.owner, operation.body, service.actor
    model, base = actor.model, actor.params
    entry = ledger_of(service, name).models[name]
    shape = learner.shape_of(model, entry.config)
    saved = operation.saved
    match operation.kind:
        case "create_model":
            service.learners[name] = learner.create(model, base, shape, entry.seed)
            return _json({"type": "create_model", "model_id": name})
        case "load_weights":
            assert saved is not None
            path = service.directory / saved.file
            service.learners[name] = learner.read_weights(
                path, model, base, shape, moments=body.optimizer
            )
            with service.changed:
                service.lost.pop(name, None)
            return _json({"type": "load_weights", "path": body.path, "model_id": name})
    state = _state(service, name)
    if operation.kind == "optim_step":
        service.learners[name], metrics = learner.optim_step(model, state, body.adam_params)
        return _json({"metrics": metrics})
    assert saved is not None
    without_gradient = state._replace(gradient=None)
    learner.write(
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


def _state(service: Service, name: str) -> Learner:
    """A model that was created and is not lost."""
    if name not in service.learners:
        raise RuntimeError(service.lost.get(name, f"{name} was not created"))
    return service.learners[name]


def _learn(service: Service, operations: Sequence[Operation]) -> list[Answer]:
    """Answers to requests for gradients; all are added to their models, or, on failure, none."""
    actor, count = service.actor, service.config.models_at_once
    model, base = actor.model, actor.params
    states = [_state(service, operation.owner) for operation in operations]
    alike = queueing.pass_of(service, operations[0])
    if alike is None:
        (state,), body = states, operations[0].body
        shape = queueing.shape_of(service, operations[0].owner)
        results = [gradients.forward_backward(model, base, shape, state, body)]
    else:
        names = [operation.owner for operation in operations]
        jobs = [
            gradients.PlacedRequest(
                queueing.place_of(service, name), queueing.shape_of(service, name), *rest
            )
            for name, *rest in zip(names, states, [o.body for o in operations], strict=True)
        ]
        results = gradients.together(model, base, alike, jobs, count)
    answers = [  # before any gradient is added: where one fails, all are computed again
        Answer("protobuf", wire.write_output(logprobs, {"loss:sum": loss}))
        for _, logprobs, loss in results
    ]
    for operation, (state, _, _) in zip(operations, results, strict=True):
        service.learners[operation.owner] = state
    return answers


def _sample(service: Service, operations: Sequence[Operation]) -> list[bytes]:
    """Answers to samples that can be sampled together."""
    sessions = [queueing.sampler_of(service, operation) for operation in operations]
    first, places = sessions[0], [0] * len(sessions)
    if rank := queueing.rank_of(service, first.config):
        params, places = _stacked(service, sessions, rank)
    else:
        shape = None
        if first.config is not None:
            shape = learner.shape_of(service.actor.model, first.config)
        params = _weights(service, first.file, shape)
    jobs = [operation.body for operation in operations]
    setup = setup_of(
        service.actor.model,
        service.actor.tokenizer,
        service.config.max_context_tokens,
        service.config.layout,
        bodies.stops(jobs[0].sampling_params.stop)[1],
        truncate=jobs[0].sampling_params.truncates,
    )
    return sample(setup, params, jobs, places, service.prefixes)


def _stacked(
    service: Service, sessions: Sequence[ledger.Sampler], rank: int
) -> tuple[Params, list[int]]:
    """Weights with the adapters of samplers beside them, and the place of each sampler's.

    Args:
      service: whose thread this is.
      sessions: of at most as many files as there are places.
      rank: of the stack.
    """
    model, count = service.actor.model, service.config.models_at_once
    if rank not in service.stacks:
        base = _weights(service, "", None)
        paths = [*lora_stack.matrices(model), lora_stack.HEAD]
        while len(service.stacks) >= _WEIGHTS:
            service.stacks.popitem(last=False)
        service.stacks[rank] = AdapterStack(
            lora_stack.attach(model, base, paths, count=count, rank=rank)
        )
    service.stacks.move_to_end(rank)
    stack = service.stacks[rank]
    used = {session.file for session in sessions}
    for session in sessions:
        if session.file not in stack.places:
            if len(stack.places) == count:
                stack.places.pop(next(file for file in stack.places if file not in used))
            free = {*range(1, count + 1)} - {*stack.places.values()}
            assert session.config is not None
            shape = learner.shape_of(model, session.config)
            path = service.directory / session.file
            state = learner.read_weights(path, model, service.actor.params, shape, moments=False)
            stack.params = learner.put(model, stack.params, min(free), state.adapters, shape)
            stack.places[session.file] = min(free)
        stack.places.move_to_end(session.file)
    return stack.params, [stack.places[session.file] for session in sessions]


def _weights(service: Service, file: str, shape: Shape | None) -> Params:
    """Weights in the sampler's form; those that were used last stay in memory."""
    if file in service.weights:
        service.weights.move_to_end(file)
        return service.weights[file]
    model, params = service.actor.model, service.actor.params
    if shape is not None:
        path = service.directory / file
        state = learner.read_weights(path, model, params, shape, moments=False)
        params = learner.join(model, params, state.adapters, shape)
    while len(service.weights) >= _WEIGHTS:
        service.weights.popitem(last=False)
    service.weights[file] = policy.sampling_params(params, service.config.dtype)
    return service.weights[file]
