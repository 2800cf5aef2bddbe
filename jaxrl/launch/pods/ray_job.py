"""Runs a command once on each of a number of Ray nodes, as the processes of one JAX program.

python launch/pods/ray_job.py NODES COMMAND...
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
class Node:
    """One process a node."""

    def address(self) -> str:
        """Where the first process can be reached."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, command: list[str], variables: dict[str, str]) -> int:
        """Exit code of the command."""
        return subprocess.run(command, env=os.environ | variables, check=False).returncode


def main(nodes: int, command: list[str]) -> int:
    """The first exit code that is not 0; the others are ended then."""
    ray.init()
    gpus = min(int(n["Resources"].get("GPU", 0)) for n in ray.nodes() if n["Alive"])
    group = placement_group([{"CPU": 1, "GPU": gpus}] * nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    workers = [
        Node.options(
            num_cpus=1,
            num_gpus=gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=i
            ),
        ).remote()
        for i in range(nodes)
    ]
    coordinator = ray.get(workers[0].address.remote())
    running = [
        worker.run.remote(
            command,
            {
                "JAXRL_COORDINATOR": coordinator,
                "JAXRL_PROCESSES": str(nodes),
                "JAXRL_PROCESS": str(i),
                "RAY_ADDRESS": ray.get_runtime_context().gcs_address,  # for generators
            },
        )
        for i, worker in enumerate(workers)
    ]
    while running:
        done, running = ray.wait(running)
        if code := ray.get(done[0]):
            for worker in workers:
                ray.kill(worker)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
