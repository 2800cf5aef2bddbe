"""Sampling in other processes: generators, each with its own devices, that may die or join.

A `Generator` runs in its own process and has a sampler. A `Fleet`, in the training process, holds
handles to several. One chunk of a fleet is one chunk of each generator; its reply has all tokens up
to the end of the chunk. When a generator dies, others continue its sequences from the last chunk
under the same weights, so at most one chunk of its work is lost. Draws depend on the request and
the position alone, so the tokens are those that it would have sampled. A replacement is started,
and takes part from the first chunk after it is ready.

Weights go from device to device where `jaxrl.rollout.direct` can bring them. The first time that it
fails they go by the host, and from then on always.

The functions that start and call processes are arguments; `jaxrl.run.generators` has those of Ray.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl.mesh import mesh
from jaxrl.rollout.direct import Offer
from jaxrl.rollout.engine import Decoded, Local
from jaxrl.rollout.reshard import checksums
from jaxrl.sampling.requests import resume
from jaxrl.sampling.work import Setup
from jaxrl.types import Completion, Params, Request

_DEATHS = 5
"""In a row, of each generator, after which a fleet gives up."""


class Gone(Exception):
    """The process that was asked has ended. One that lives and says nothing does not raise it."""


class Handle(NamedTuple):
    """How to reach a generator."""

    call: Callable[..., Future[Any]]
    """`(method, *arguments) -> future`, which raises `Gone` once the process has ended."""
    kill: Callable[[], None]


class Load(NamedTuple):
    """What a generator samples with during a step; arrays are on the host, or offered."""

    setup: Setup
    """With the data of its key, and without its text, which does not travel."""
    params: Params | None = None
    """None where they are offered."""


class ChunkReply(NamedTuple):
    """A generator's reply to a chunk."""

    decoded: Decoded
    going: list[Completion]
    """Sequences in progress as far as they have come."""
    context: int


class Generator:
    """A sampler in a process of its own."""

    def __init__(
        self,
        on: Mesh,
        text: Callable[[Sequence[int]], str],
        take: Callable[[Offer], Params] | None = None,
    ) -> None:
        """Args: the devices of this process, what decodes tokens, for stop strings, and what takes
        parameters that are offered."""
        self._mesh, self._text, self._take = on, text, take
        self._engine: Local | None = None

    def load(self, load: Load, offer: Offer | None = None) -> np.ndarray | str:
        """Begin a step: what was in progress is forgotten.

        Returns:
          The sums of the parameters' bits as they arrived, see `reshard.checksums`; or why what is
          offered did not arrive, and then nothing has begun.
        """
        with jax.set_mesh(self._mesh):
            if offer is None:
                params = jax.device_put(load.params, mesh.replicated(self._mesh))
            else:
                try:
                    assert self._take is not None
                    params = self._take(offer)
                except Exception as error:  # whatever it is, the host can bring them
                    return f"{type(error).__name__}: {error}"
            key = jax.random.wrap_key_data(jnp.asarray(load.setup.key))
            text = self._text if load.setup.hold else None
            self._engine = Local(load.setup._replace(key=key, text=text, hold=False), params)
            return mesh.fetch(checksums(jax.tree.leaves(params)))

    def chunk(self, requests: Sequence[Request], version: int) -> ChunkReply:
        """Begin requests, and decode a chunk."""
        assert self._engine is not None
        with jax.set_mesh(self._mesh):
            self._engine.put(requests)
            decoded = self._engine.chunk(version)
            return ChunkReply(decoded, self._engine.unfinished(), self._engine.context)


class Fleet:
    """The generators of a run."""

    def __init__(
        self,
        start: Callable[[str], tuple[Handle, Future[Any]]],
        count: int,
        share: Callable[[Any], Any],
        note: Callable[[str], None],
        patience_s: float,
        offer: Callable[[Params], Offer] | None = None,
    ) -> None:
        """Start the generators.

        Args:
          start: a generator of a name; the future has the id of its process, once it can be
            called.
          count: of generators.
          share: makes of a `Load` what all of them can be given, sent once.
          note: called with a line when a generator dies or joins.
          patience_s: after which one that does not answer counts as gone; 0: never.
          offer: parameters to one generator, from device to device; None: by the host.
        """
        self._start, self.share, self._note = start, share, note
        self.offer = offer
        self._patience = patience_s or None
        self._count, self.deaths = count, 0
        self.ready: dict[str, Handle] = {}
        """Those that can be called."""
        self._coming: dict[str, tuple[Handle, Future[Any]]] = {}
        self._started = 0
        for _ in range(count):
            self._begin()

    def engine(self, setup: Setup, params: Params) -> Remote:
        """What decodes in a step.

        Raises:
          ValueError: the setup has a guide.
        """
        return Remote(self, setup, params)

    def joined(self) -> dict[str, Handle]:
        """Generators that have come since the last call; waits for one where there is none.

        Raises:
          RuntimeError: none comes.
        """
        handles = dict[str, Handle]()
        while True:
            if not self.ready:
                coming = [future for _, future in self._coming.values()]
                if not wait(coming, self._patience, FIRST_COMPLETED).done:
                    raise RuntimeError(
                        f"no generator is ready after {self._patience} s; see the logs of Ray, or "
                        "raise guard.stall_seconds"
                    )
            for name, (handle, future) in list(self._coming.items()):
                if not future.done():
                    continue
                del self._coming[name]
                try:
                    process = future.result()
                except Gone as error:
                    self._replace(name, handle, str(error))
                else:
                    handles[name] = self.ready[name] = handle
                    self._note(f"{name} is ready, as process {process}")
            if self.ready:
                return handles

    def result(self, name: str, future: Future[Any]) -> Any:
        """What a generator answered; None where it is gone.

        Raises:
          RuntimeError: generators die one after the other.
        """
        try:
            got = future.result(self._patience)
        except (Gone, TimeoutError) as error:
            self._replace(name, self.ready.pop(name), str(error) or "no answer in time")
            return None
        return got

    def by_host(self, why: str) -> None:
        """Offer nothing from now on."""
        if self.offer is not None:
            self._note(f"weights go to generators by the host from now on: {why}")
        self.offer = None

    def close(self) -> None:
        """End all of them."""
        for handle in [*self.ready.values(), *(handle for handle, _ in self._coming.values())]:
            handle.kill()
        self.ready, self._coming = {}, {}

    def _begin(self) -> None:
        name = f"generator {self._started}"
        self._started += 1
        self._coming[name] = self._start(name)

    def _replace(self, name: str, handle: Handle, why: str) -> None:
        self.deaths += 1
        handle.kill()
        if self.deaths > _DEATHS * self._count:
            raise RuntimeError(f"{self.deaths} generators died one after the other; last: {why}")
        self._note(
            f"{name} is gone ({why}); the others continue its sequences, and a new one starts"
        )
        self._begin()


@dataclasses.dataclass
class _Sequence:
    """A sequence in progress."""

    request: Request
    """With what had been sampled when it was last given to a generator."""
    where: str | None = None
    """The generator that has it."""
    come: Completion | None = None
    """As far as it had come at the end of the last chunk."""


class Remote:
    """Sequences in progress on a fleet, under one set of weights; an `Engine`."""

    def __init__(self, fleet: Fleet, setup: Setup, params: Params) -> None:
        """Bring the weights to all generators.

        Raises:
          ValueError: the setup has a guide.
          RuntimeError: a generator has other weights than were sent.
        """
        if setup.guide.models or jax.tree.leaves(setup.guide.args):
            raise ValueError(
                "generators sample without a guide; leave out the extension that restricts or "
                "steers sampling, or set generators=0"
            )
        self._fleet, self._params, self._going = fleet, params, dict[int, _Sequence]()
        self._contexts: dict[str, int] = {}
        self._sums = mesh.fetch(checksums(jax.tree.leaves(params)))
        key = np.asarray(jax.random.key_data(setup.key))
        again = setup._replace(key=key, text=None, max_prompt=setup.max_length)
        self._load, self._whole = Load(again), None
        fleet.joined()
        self._bring(dict(fleet.ready))

    def __bool__(self) -> bool:
        return bool(self._going)

    @property
    def context(self) -> int:
        """Tokens that the generators' slots remember."""
        return sum(self._contexts.values())

    @property
    def crowded(self) -> bool:
        """Never: nothing is held."""
        return False

    def put(self, requests: Sequence[Request]) -> None:
        """Begin requests with the next chunk."""
        self._going |= {r.id: _Sequence(r) for r in requests}

    def keep(self, ids: Collection[int]) -> None:
        """Nothing is held: a sequence is read again after an observation."""

    def chunk(self, version: int) -> Decoded:
        """Decode a chunk on each generator; one that dies meanwhile gives nothing."""
        self._bring(self._fleet.joined())
        calls = {
            name: handle.call("chunk", requests, version)
            for name, requests in self._placed().items()
            for handle in [self._fleet.ready[name]]
        }
        ended, decoded = list[Completion](), list[Decoded]()
        for name, future in calls.items():
            reply: ChunkReply | None = self._fleet.result(name, future)
            if reply is None:
                self._lost(name)
                continue
            self._fleet.deaths = 0
            for completion in reply.going:
                self._going[completion.request.id].come = completion
            for completion in reply.decoded.ended:
                del self._going[completion.request.id]
            ended += reply.decoded.ended
            decoded.append(reply.decoded)
            self._contexts[name] = reply.context
        ended.sort(key=lambda completion: completion.request.id)
        sums = {
            name: sum(getattr(chunk, name) for chunk in decoded)
            for name in Decoded._fields
            if name not in ("ended", "steps")
        }
        return Decoded(ended, max((chunk.steps for chunk in decoded), default=0), **sums)

    def unfinished(self) -> list[Completion]:
        """Sequences in progress as far as they have come; none of those that have not begun."""
        return [sequence.come for sequence in self._going.values() if sequence.come is not None]

    def _bring(self, handles: Mapping[str, Handle]) -> None:
        """Bring the weights to generators, and check them."""
        left = self._offered(handles) if self._fleet.offer is not None else handles
        calls = {name: handle.call("load", self._by_host()) for name, handle in left.items()}
        for name, future in calls.items():
            sums = self._fleet.result(name, future)
            if sums is not None and not np.array_equal(sums, self._sums):
                raise RuntimeError(
                    f"the weights arrived at {name} other than they were sent; check the network "
                    "and the hardware, and continue from the last checkpoint"
                )

    def _offered(self, handles: Mapping[str, Handle]) -> dict[str, Handle]:
        """Offer the weights to generators; those that live and do not have them after it."""
        assert self._fleet.offer is not None
        calls, left = dict[str, Future[Any]](), dict[str, Handle]()
        try:
            for name, handle in handles.items():
                calls[name] = handle.call("load", self._load, self._fleet.offer(self._params))
        except Exception as error:  # whatever it is, the host can bring them
            self._fleet.by_host(f"{type(error).__name__}: {error}")
            left = {name: handle for name, handle in handles.items() if name not in calls}
        for name, future in calls.items():
            sums = self._fleet.result(name, future)
            if isinstance(sums, str) or (sums is not None and not (sums == self._sums).all()):
                self._fleet.by_host(f"{name}: {sums if isinstance(sums, str) else 'changed'}")
                left[name] = handles[name]
        return left

    def _by_host(self) -> Any:
        """What all generators can be given, with the parameters; made once."""
        if self._whole is None:
            load = self._load._replace(params=mesh.fetch(self._params))
            self._whole = self._fleet.share(load)
        return self._whole

    def _placed(self) -> dict[str, list[Request]]:
        """The new requests of each generator that has work.

        Requests without a generator go to the one with the fewest, those of one prompt together.
        """
        while not self._fleet.ready:
            self._bring(self._fleet.joined())
        load = dict.fromkeys(self._fleet.ready, 0)
        for sequence in self._going.values():
            if sequence.where is not None:
                load[sequence.where] += 1
        new = {name: list[Request]() for name in load}
        chosen = dict[tuple[int, ...], str]()
        for sequence in self._going.values():
            if sequence.where is None:
                name = chosen.setdefault(sequence.request.prompt, min(load, key=lambda n: load[n]))
                sequence.where = name
                load[name] += 1
                new[name].append(sequence.request)
        return {name: requests for name, requests in new.items() if load[name]}

    def _lost(self, name: str) -> None:
        """Free the sequences of a generator that has died, as of its last chunk."""
        self._contexts.pop(name, None)
        for sequence in self._going.values():
            if sequence.where == name:
                sequence.where = None
                sequence.request = (
                    sequence.request if sequence.come is None else resume(sequence.come)
                )
