"""Several processes as one run, discovered from the cluster or set by environment variables.

Each process calls `start` before anything touches a device. From then on `jax.devices()` are all
devices of all processes, and every process runs the same program on the same host-side data: what
one of them alone has seen or done (a file, a signal, a score) is shared with all by the functions
here before anything depends on it. With one process they cost nothing.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jaxrl.mesh.buckets import round_up

VARIABLES = ("JAXRL_COORDINATOR", "JAXRL_PROCESSES", "JAXRL_PROCESS")
"""Address HOST:PORT of process 0, how many processes there are, and which one this is.

`JAXRL_PROCESSES=auto` alone leaves all three to JAX, where nothing in the environment tells a
process of many from one alone, as on TPU VMs."""

_MEETING_S = 300
"""Seconds that a process waits for the others to start; JAX then ends it."""
_MEETING_NOTICE_S = 15
"""Seconds after which it says so."""
_ENDING_S = 30
"""Seconds that ending processes wait for each other."""
_ROLL_CALL_S = 5
"""Seconds that a failing process waits to learn whether all processes fail."""

T = TypeVar("T")
P = ParamSpec("P")


def start(environment: Mapping[str, str] = os.environ) -> int:
    """Join the other processes, if there are any.

    Explicit variables (`VARIABLES`) win. Else JAX finds its peers by itself where SLURM, Open MPI
    or a TPU slice on GKE announces more than one process. A process alone starts nothing.

    Returns:
      The number of processes.

    Raises:
      ValueError: some of the variables are set, but not all, or not to numbers that fit.
    """
    variables = {name: environment[name] for name in VARIABLES if name in environment}
    if variables and variables != {"JAXRL_PROCESSES": "auto"}:
        coordinator, count, index = explicit(variables)
        with _waiting(f"process {index} of {count}", f" at {coordinator}"):
            jax.distributed.initialize(
                coordinator,
                count,
                index,
                # else a scheduler around us would have JAX take one device alone
                cluster_detection_method="deactivate",
                initialization_timeout=_MEETING_S,
                shutdown_timeout_seconds=_ENDING_S,
            )
    elif variables or announced(environment) > 1:
        with _waiting("this process"):
            jax.distributed.initialize(
                initialization_timeout=_MEETING_S, shutdown_timeout_seconds=_ENDING_S
            )
    else:
        return 1
    return jax.process_count()


@contextmanager
def _waiting(process: str, where: str = "") -> Iterator[None]:
    """Say that others have not come yet, if the body takes long: JAX ends a process without it."""
    text = (
        f"jaxrl: {process} on {socket.gethostname()} waits for the others{where}; if not all of "
        f"them come within {_MEETING_S} s, it ends: the log of the missing one has the cause"
    )
    timer = threading.Timer(_MEETING_NOTICE_S, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def explicit(variables: Mapping[str, str]) -> tuple[str, int, int]:
    """Coordinator, number of processes and own number, from the variables.

    Raises:
      ValueError: as in `start`.
    """
    missing = [name for name in VARIABLES if name not in variables]
    if missing:
        raise ValueError(
            f"{', '.join(variables)} is set without {', '.join(missing)}; set all three"
        )
    coordinator, count, index = (variables[name] for name in VARIABLES)
    if not (count.isdigit() and index.isdigit() and int(index) < int(count)):
        raise ValueError(
            f"JAXRL_PROCESS={index} of JAXRL_PROCESSES={count}: both must be numbers, the first "
            "below the second"
        )
    return coordinator, int(count), int(index)


def announced(environment: Mapping[str, str]) -> int:
    """The number of processes that the cluster's variables announce; 1 if they announce none."""
    if "SLURM_STEP_NODELIST" in environment:  # within srun, not in the script around it
        return int(environment["SLURM_NTASKS"])
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return int(environment["OMPI_COMM_WORLD_SIZE"])
    hosts = environment.get("TPU_WORKER_HOSTNAMES", "localhost")
    return len(hosts.split(",")) * int(environment.get("MEGASCALE_NUM_SLICES", "1"))


def first() -> bool:
    """Whether this is process 0, which writes the run directory."""
    return jax.process_index() == 0


def gathered(value: T) -> list[T]:
    """The values of all processes, in their order; a value may be anything that pickles.

    All processes must call, and from the main thread.
    """
    if jax.process_count() == 1:
        return [value]
    body = np.frombuffer(pickle.dumps(value), np.uint8)
    with jax.transfer_guard("allow"):  # the exchange goes by way of the devices
        sizes = multihost_utils.process_allgather(np.int32(len(body)))
        buffer = np.zeros(round_up(int(sizes.max()), 1024), np.uint8)
        buffer[: len(body)] = body
        rows = multihost_utils.process_allgather(buffer)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def sent_to_first(key: str, value: Any, seconds: float) -> list[Any]:
    """The values of all processes, in their order, on process 0; an empty list on the others.

    All processes must call, from any thread, with a key that none has used before.

    Args:
      key: names this exchange.
      value: anything that JSON can hold.
      seconds: process 0 waits so long for each of the others.

    Raises:
      RuntimeError: a process has not called in time.
    """
    if jax.process_count() == 1:
        return [value]
    client = ocp.multihost.get_jax_distributed_client()
    if not first():
        client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(value))
        return []
    names = (f"{key}/{process}" for process in range(1, jax.process_count()))
    values = [client.blocking_key_value_get(name, round(1000 * seconds)) for name in names]
    return [value, *map(json.loads, values)]


def by_first(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, called by process 0 only; all processes get its result or raise its error.

    All processes must call, and from the main thread.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if jax.process_count() == 1:
            return function(*args, **kwargs)
        result, error = None, None
        if first():
            try:
                result = function(*args, **kwargs)
            except Exception as raised:
                error = raised
        result, first_error = gathered((result, error))[0]
        if first_error is not None:
            raise error or first_error
        return result

    return call


@contextmanager
def exit_together() -> Iterator[None]:
    """Ends all processes if the body raises an error in one of them only.

    The process that meets it shows it and exits with 1; the others, whose next exchange with it
    fails, say so and exit with 1 as well. An error that all processes meet is raised as usual.
    """
    try:
        yield
    except Exception as error:
        if jax.process_count() == 1 or _shared(error):
            raise
        if not _broken(error):
            traceback.print_exc()
        print(lost(error), file=sys.stderr, flush=True)
        os._exit(1)  # an orderly end would wait for the others


def lost(error: Exception) -> str:
    """The message of a process that ends because of its own error or because another has ended."""
    process = f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    why = (
        f"{process} has lost another process, whose own log has the cause ({reason})"
        if _broken(error)
        else f"{process} has failed ({reason})"
    )
    return (
        f"jaxrl: {why}; the run ends in all processes, and the same command in all of them "
        "continues from the newest checkpoint"
    )


def _broken(error: Exception) -> bool:
    """Whether an error comes from an exchange with other processes."""
    words = ("gloo", "nccl", "coordination service", "unavailable:", "connection reset by peer")
    return any(word in str(error).lower() for word in words)  # JAX raises several types


def _shared(error: Exception) -> bool:
    """Whether all processes have raised an error, as they do if its cause is common to all."""
    if _broken(error):
        return False
    try:
        wait = ocp.multihost.get_barrier_sync_fn()
        wait(key="jaxrl/failed", timeout_ms=1000 * _ROLL_CALL_S)
    except Exception:  # whatever keeps the others from answering
        return False
    return True
