"""Generators as Ray actors: `--generators N` on one machine, or on a cluster by `RAY_ADDRESS`.

Each is a JAX world of its own on what Ray gives it, never a part of the trainer's: it may die, and
another joins. Tokens go by Ray. Weights go from device to device, and where that fails by Ray, as
one object that each node fetches once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax

from jaxrl.config import Config
from jaxrl.mesh import mesh
from jaxrl.record.process import keep_handlers
from jaxrl.rollout import policy
from jaxrl.rollout.direct import Offer, Receiver, Sender
from jaxrl.rollout.engine import Local, Open
from jaxrl.rollout.generators import Fleet, Generator, Gone, Handle
from jaxrl.run.context import RunContext
from jaxrl.types import Params

_DEADLINE_S = 60.0
"""For weights from device to device; after it they go another way."""


def check(config: Config) -> None:
    """Refuse what does not go with generators.

    Raises:
      ValueError: naming the field.
    """
    if config.generators < 0:
        raise ValueError(f"generators={config.generators}: use 0, which is none, or more")
    if not config.generators:
        return
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            f"generators={config.generators}: ray is not installed; pip install 'jaxrl[ray]', or "
            "leave the field at 0"
        )
    if jax.process_count() > 1:
        raise ValueError(
            f"generators={config.generators} with {jax.process_count()} training processes: "
            "generators serve one; start one process, or leave generators at 0"
        )


def open_engine(run: RunContext, config: Config) -> Open:
    """What decodes in the steps of a run: its sampler, or its generators."""
    if not config.generators:
        return Local
    fleet = open_fleet(run, config)
    run.closing.callback(fleet.close)
    return fleet.engine


LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Has ray take the loopback address for that of this machine, as it does by itself on other systems
than Linux; an address in the arguments of `ray.init` is replaced by that of the network."""


_STARTS = 10
"""Times that ray may need more than the 30 seconds which it gives its processes to start."""


def _start_ray(ray: Any, note: Callable[[str], None], **options: Any) -> None:
    """Start ray on this machine, or connect to a cluster.

    Args:
      ray: the module.
      note: is told of each time that it did not start.
      options: of `ray.init`.

    Raises:
      RuntimeError: its processes did not start in time, several times.
    """
    for remaining in reversed(range(_STARTS)):
        before = _ray_processes()
        try:
            with keep_handlers():  # ray ends the process at SIGTERM
                ray.init(**options)
            return
        except Exception as error:  # ray has no class of its own for this
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
            for process in _ray_processes() - before:  # ray forgets those that were late
                process.kill()
            if not remaining:
                raise RuntimeError(
                    f"generators: ray did not start within 30 seconds, {_STARTS} times, as this "
                    "machine is busy; run the same command again, which continues, or name a "
                    "cluster with RAY_ADDRESS"
                ) from error
            note("generators: ray did not start within 30 seconds, as this machine is busy; again")


def _ray_processes() -> set[Any]:
    """The processes of ray that this one has started."""
    import psutil  # ray brings it

    started = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("/ray/" in word for word in process.cmdline()):
                started.add(process)
    return started


def open_fleet(run: RunContext, config: Config) -> Fleet:
    """The generators of a run, as actors of a cluster, or of this machine where none is named."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ.update(LOOPBACK)  # read as ray is imported
    import ray

    if not ray.is_initialized():
        options: dict[str, Any] = {"log_to_driver": False, "namespace": str(run.directory)}
        if not address:
            options |= {"num_cpus": config.generators, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _start_ray(ray, run.callbacks.note, address=address, **options)
        run.closing.callback(ray.shutdown)
    gpus = ray.cluster_resources().get("GPU", 0) >= config.generators
    actor = ray.remote(Actor).options(
        num_cpus=1,
        num_gpus=int(gpus),
        scheduling_strategy="SPREAD",
        max_restarts=0,
    )
    failed = (ray.exceptions.RayActorError, ray.exceptions.OwnerDiedError)

    def start(name: str) -> tuple[Handle, Future[Any]]:
        worker = actor.remote(config)

        def call(method: str, *arguments: Any) -> Future[Any]:
            answer: Future[Any] = Future()

            def settle(done: Future[Any]) -> None:
                error = done.exception()
                if isinstance(error, failed):
                    answer.set_exception(Gone(f"{type(error).__name__}"))
                elif error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(done.result())

            getattr(worker, method).remote(*arguments).future().add_done_callback(settle)
            return answer

        run.callbacks.note(f"{name} is started")
        return Handle(call, lambda: ray.kill(worker)), call("process")

    patience, host = config.guard.stall_seconds, ray.util.get_node_ip_address()
    sender: list[Sender] = []

    def offer(params: Params) -> Offer:
        if not sender:
            sender.append(Sender(host, _DEADLINE_S))
        return sender[0].offer(params)

    return Fleet(start, config.generators, ray.put, run.callbacks.note, patience, offer)


class Actor(Generator):
    """A generator that describes the policy by itself."""

    def __init__(self, config: Config) -> None:
        """Args: of the run."""
        import ray

        _, tokenizer = policy.describe(config, trust=True)
        sampling_mesh, host = mesh.make(config.sampling.mesh), ray.util.get_node_ip_address()
        receiver: list[Receiver] = []

        def take(offer: Offer) -> Params:
            if not receiver:
                receiver.append(Receiver(sampling_mesh, host, _DEADLINE_S))
            return receiver[0].take(offer)

        super().__init__(sampling_mesh, tokenizer.decode, take)

    def process(self) -> int:
        """The id of this process; answered once it can be called."""
        return os.getpid()
