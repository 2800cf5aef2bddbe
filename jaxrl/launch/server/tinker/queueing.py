"""Whose turn it is: the next of the requests that wait, and what can be worked on with it.

Requests of a model come in their order, and tenants take turns.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl.launch.server.tinker import bodies, gradients, learner, ledger
from jaxrl.launch.server.tinker.learner import Shape
from jaxrl.launch.server.tinker.ledger import Operation, number_of
from jaxrl.launch.server.tinker.service import Service, ledger_of
from jaxrl.mesh.buckets import round_up
from jaxrl.models import lora, lora_stack


def by_seed(jobs: Sequence[bodies.Sample]) -> list[list[int]]:
    """Places of jobs that can be sampled at once: no two of them of one seed."""
    rounds: list[tuple[set[int | str], list[int]]] = []
    for i, body in enumerate(jobs):
        seed = body.sampling_params.seed
        name = f"{body.sampling_session_id}:{body.seq_id}" if seed is None else ""
        number = number_of(name) if seed is None else seed % 2**31
        for numbers, places in rounds:
            if number not in numbers:
                numbers.add(number)
                places.append(i)
                break
        else:
            rounds.append(({number}, [i]))
    return [places for _, places in rounds]


_QUIET, _LONGEST = 0.025, 0.25
"""Share of the time of a batch, and seconds, that a batch waits for one more request at most."""


def wait_for_more(service: Service, kind: str) -> None:
    """Wait a moment for more requests of a kind, if some of it went together before.

    Clients that work in step send theirs one after another, and the first would be worked on alone.
    The wait ends when none has come for `_QUIET` of the time that such requests took, and after
    twice that. The caller holds `service.changed`.
    """
    batches = service.batches.get(kind, ())
    if max((size for size, _ in batches), default=1) == 1:
        return
    quiet = min(_QUIET * max(seconds for _, seconds in batches), _LONGEST)
    until = time.monotonic() + 2 * quiet
    while (left := until - time.monotonic()) > 0 and service.changed.wait(min(quiet, left)):
        pass


def take(service: Service) -> list[Operation]:
    """The next operation, and others that can go with it.

    Tenants take turns: whoever was served goes to the end of the row. Of samples that go together,
    too, each tenant adds one in turn, and among several tenants they fill the slots a few times at
    most, so that whoever comes next waits no longer than that.
    """
    tenant = next(iter(service.queues))
    queue = service.queues.pop(tenant)
    first = queue.popleft()
    if queue:
        service.queues[tenant] = queue
    match first.kind:
        case "asample":
            jobs = _samples_with(service, first)
        case "forward_backward":
            jobs = _gradients_with(service, first)
        case _:
            return [first]
    ids = {job.id for job in jobs}
    left = {t: deque(o for o in queue if o.id not in ids) for t, queue in service.queues.items()}
    service.queues = {t: queue for t, queue in left.items() if queue}
    return jobs


def _samples_with(service: Service, first: Operation) -> list[Operation]:
    """A sample, and others that wait and can be drawn at once with it."""
    group = _group(service, first)
    alike = [
        [
            o
            for o in queue
            if o.kind == "asample" and _group(service, o) == group and _is_saved(service, o)
        ]
        for queue in service.queues.values()
    ]
    in_turn = [o for row in itertools.zip_longest(*alike) for o in row if o is not None]
    jobs = _of_few_models(service, [first, *in_turn])
    if len(service.tenants) > 1:
        count = np.cumsum([job.body.num_samples for job in jobs])
        jobs = jobs[: max(1, int(np.sum(count <= _FILLS * service.config.slots)))]
    return [jobs[i] for i in by_seed([job.body for job in jobs])[0]]


def _is_saved(service: Service, operation: Operation) -> bool:
    """Whether the weights of a sample are on the disk, and not yet to be saved by who waits."""
    return (service.directory / sampler_of(service, operation).file).exists()


def _gradients_with(service: Service, first: Operation) -> list[Operation]:
    """A request for a gradient, and those of other models that can be computed with it.

    Of each model it is the first that waits, so a model's requests stay in their order.
    """
    alike = pass_of(service, first)
    if alike is None:
        return [first]
    jobs = {place_of(service, first.owner): first}
    for queue in service.queues.values():
        owners = {first.owner}
        for operation in queue:
            if operation.owner in owners:
                continue
            owners.add(operation.owner)
            if operation.kind != "forward_backward":
                continue
            place = place_of(service, operation.owner)
            if place not in jobs and pass_of(service, operation) == alike:
                jobs[place] = operation
    return list(jobs.values())


def place_of(service: Service, name: str) -> int:
    """The place of a model among `models_at_once`, always the same.

    What is computed in one place of a program is the same to the last bit whatever is in the
    others, but it need not be that of another place.
    """
    first = number_of(ledger.tenant_of(name))  # else the first models of all tenants share a place
    index = [*ledger_of(service, name).models].index(name)
    return (first + index) % service.config.models_at_once


def shape_of(service: Service, name: str) -> Shape:
    """What is trained of a model."""
    return learner.shape_of(service.actor.model, ledger_of(service, name).models[name].config)


def pass_of(service: Service, operation: Operation) -> gradients.Pass | None:
    """What a request for a gradient is computed in; None: it is computed alone."""
    actor, shape = service.actor, shape_of(service, operation.owner)
    count = service.config.models_at_once
    return gradients.pass_of(actor.model, actor.params, shape, operation.body, count)


_FILLS = 2
"""Most times that samples which are sampled together fill the slots, among several tenants."""


def _of_few_models(service: Service, operations: Sequence[Operation]) -> list[Operation]:
    """Those whose models have places at once, the first among them, in their order."""
    files, jobs = set[str](), list[Operation]()
    for operation in operations:
        file = sampler_of(service, operation).file
        if file in files or len(files) < service.config.models_at_once:
            files.add(file)
            jobs.append(operation)
    return jobs


def sampler_of(service: Service, operation: Operation) -> ledger.Sampler:
    """The weights that a sample is of."""
    return ledger_of(service, operation.owner).samplers[operation.owner]


def _group(service: Service, operation: Operation) -> tuple[Any, ...]:
    """Samples that are alike in this can be sampled together.

    Truncation is another program, whose sums may be rounded otherwise in the last bit: a sample
    without it never goes through that program because of its neighbours. The same holds of ranks,
    and of adapters that are added into the weights.
    """
    settings = operation.body.sampling_params
    stop_ids = bodies.stops(settings.stop)[1]
    session = sampler_of(service, operation)
    weights = rank_of(service, session.config) or session.file
    return weights, settings.truncates, None if stop_ids is None else tuple(stop_ids)


def rank_of(service: Service, config: bodies.Lora | None) -> int:
    """The rank of the stack that a model's adapters have a place in; 0: none."""
    model = service.actor.model
    if config is None or not config.rank or service.config.models_at_once == 1:
        return 0
    adapted = lora.targets(model, learner.shape_of(model, config).lora)
    return round_up(config.rank, 1) if adapted.keys() <= lora_stack.matrices(model).keys() else 0
