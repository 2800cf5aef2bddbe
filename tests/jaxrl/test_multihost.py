"""Two processes of four devices train as one process of eight."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from jaxrl import distributed
from tests.jaxrl.test_mesh import FLAGS, ROOT


def launch(meshes: dict, devices: int, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.jaxrl.mesh_program", json.dumps(meshes)],
        cwd=ROOT,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS + str(devices)}
        | {f"JAXRL_{name.upper()}": value for name, value in variables.items()},
        stdout=subprocess.PIPE,
        text=True,
    )


def report(process: subprocess.Popen) -> dict:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


@pytest.mark.slow
def test_two_processes_train_as_one():
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pair = [
        launch({"pair": sizes}, 4, coordinator=address, processes="2", process=str(i))
        for i in range(2)
    ]
    together = report(pair[0])
    assert pair[1].wait(timeout=60) == 0
    alone = report(launch({"alone": {"data": 1}}, 1))
    assert (together["processes"], alone["processes"]) == (2, 1)
    np.testing.assert_allclose(together["sums"], alone["sums"], atol=1e-4)


def test_a_process_alone_starts_nothing():
    assert distributed.start({}) == 1
    assert distributed.announced({"SLURM_NTASKS": "8"}) == 8
    assert distributed.announced({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    assert distributed.announced({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}) == 2


def test_variables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"set without JAXRL_PROCESSES, JAXRL_PROCESS; set all"):
        distributed.start({"JAXRL_COORDINATOR": "a:1"})
    with pytest.raises(ValueError, match="JAXRL_PROCESS=2 of JAXRL_PROCESSES=2"):
        distributed.explicit(dict(zip(distributed.VARIABLES, ("a:1", "2", "2"), strict=True)))
