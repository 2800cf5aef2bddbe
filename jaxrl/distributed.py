"""Several processes as one run: found out from the cluster, or told by the environment.

Each process calls `start` before anything touches a device. From then on `jax.devices()` are all
devices of all processes, and every process runs the same program on the same host-side data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax

VARIABLES = ("JAXRL_COORDINATOR", "JAXRL_PROCESSES", "JAXRL_PROCESS")
"""Address HOST:PORT of process 0, how many processes there are, and which one this is."""


def start(environment: Mapping[str, str] = os.environ) -> int:
    """Join the other processes, if there are any.

    Explicit variables (`VARIABLES`) win. Else JAX finds its peers by itself where SLURM, Open MPI
    or a TPU pod announces more than one process. A process alone starts nothing.

    Returns:
      The number of processes.

    Raises:
      ValueError: some of the variables are set, but not all, or not to numbers that fit.
    """
    given = {name: environment[name] for name in VARIABLES if name in environment}
    if given:
        coordinator, count, own = explicit(given)
        jax.distributed.initialize(coordinator, count, own)
        return count
    count = announced(environment)
    if count > 1:
        jax.distributed.initialize()
    return count


def explicit(given: Mapping[str, str]) -> tuple[str, int, int]:
    """Coordinator, number of processes and own number, from the variables.

    Raises:
      ValueError: as in `start`.
    """
    missing = [name for name in VARIABLES if name not in given]
    if missing:
        raise ValueError(f"{', '.join(given)} is set without {', '.join(missing)}; set all three")
    coordinator, count, own = (given[name] for name in VARIABLES)
    if not (count.isdigit() and own.isdigit() and int(own) < int(count)):
        raise ValueError(
            f"JAXRL_PROCESS={own} of JAXRL_PROCESSES={count}: both must be numbers, the first "
            "below the second"
        )
    return coordinator, int(count), int(own)


def announced(environment: Mapping[str, str]) -> int:
    """How many processes the cluster's own variables speak of; 1 where they say nothing."""
    for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        if name in environment:
            return int(environment[name])
    hosts = environment.get("TPU_WORKER_HOSTNAMES", "")
    return len(hosts.split(",")) if hosts else 1
