"""Arrays from the devices of one process to those of another, without the hosts in between.

`Sender.offer` offers a tree of arrays, each on one device; `Receiver.take` takes it, once, in any
process that can reach the address, to one device. Both have a deadline. It is
`jax.experimental.transfer`; who uses it needs another way for where that fails.

A pull from a process that has nothing to give, or is gone, never ends and cannot be cancelled (jax
0.10.2, whatever its `timeout`). So it has a thread of its own, which is left behind.
"""

from __future__ import annotations

import datetime
import itertools
import queue
import threading
from typing import Any, NamedTuple

import jax
from jax.experimental import transfer
from jax.sharding import Mesh

from jaxrl.mesh import mesh
from jaxrl.types import Params


class Offer(NamedTuple):
    """Arrays that another process may take, once."""

    address: str
    number: int
    shapes: Params
    """The tree with a `jax.ShapeDtypeStruct` in place of each array."""


class Sender:
    """Offers of this process."""

    def __init__(self, host: str, deadline_s: float) -> None:
        """Args: this machine's name or address in the network, and how long an offer stands."""
        self._server, self._deadline = _server(host), deadline_s
        self._numbers = itertools.count(1)

    def offer(self, params: Params) -> Offer:
        """Offer arrays, which must not be donated before the deadline.

        Raises:
          ValueError: one lies on several devices.
        """
        for leaf in jax.tree.leaves(params):
            if len(leaf.devices()) > 1:
                raise ValueError(f"an array of {leaf.shape} lies on {len(leaf.devices())} devices")
        number = next(self._numbers)
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self._deadline)
        self._server.await_pull(number, params, timeout=until)
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
        return Offer(self._server.address(), number, shapes)


class Receiver:
    """Takes what others offer."""

    def __init__(self, on: Mesh, host: str, deadline_s: float) -> None:
        """Args: the device to take to, this machine's name or address, and how long to wait.

        Raises:
          ValueError: there are several devices.
        """
        if on.size > 1:
            raise ValueError(f"a mesh of {on.size} devices; arrays are taken to one")
        self._server, self._deadline = _server(host), deadline_s
        self._place = mesh.replicated(on)
        self._known: dict[str, Any] = {}

    def take(self, offer: Offer) -> Params:
        """The arrays of an offer.

        Raises:
          TimeoutError: they did not come before the deadline.
          Exception: they cannot come; what is raised depends on the platform.
        """
        done: queue.SimpleQueue[Params | Exception] = queue.SimpleQueue()

        def pull() -> None:
            try:
                done.put(self._pull(offer))
            except Exception as error:  # the thread that waits raises it
                done.put(error)

        threading.Thread(target=pull, name="weights", daemon=True).start()
        try:
            got = done.get(timeout=self._deadline)
        except queue.Empty:
            raise TimeoutError(
                f"no weights came from {offer.address} in {self._deadline:g} s"
            ) from None
        if isinstance(got, Exception):
            raise got
        return got

    def _pull(self, offer: Offer) -> Params:
        if offer.address not in self._known:
            self._known[offer.address] = self._server.connect(offer.address)
        target_shapes = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self._place), offer.shapes
        )
        return jax.block_until_ready(self._known[offer.address].pull(offer.number, target_shapes))


def _server(host: str) -> Any:
    backend = jax.devices()[0].client
    return transfer.start_transfer_server(backend, f"{host}:0", [f"{host}:0"])
