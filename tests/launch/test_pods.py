"""The launchers of pods and clusters, with commands that write down how they were called."""

import json
import math
import os
import shlex
import subprocess
import sys

import pytest
import yaml

from jaxrl.mesh import distributed
from tests.jaxrl.mesh.test_mesh import ROOT

PODS = ROOT / "launch" / "pods"
RECIPE = ["quickstart", "--run-dir", "/runs/a b", "--mesh", "fsdp=16"]
FAKE = f"""#!{sys.executable}
import json, os, sys
with open({{calls!r}}, "a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
"""


@pytest.fixture
def called(tmp_path):
    """Runs a script; gives the arguments and variables of each call of a command in it."""

    def run(script: str, *arguments: str, command: str, **variables: str) -> list:
        calls = tmp_path / "calls"
        (tmp_path / command).write_text(FAKE.format(calls=str(calls)))
        (tmp_path / command).chmod(0o755)
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(
            ["bash", PODS / script, *arguments], env=os.environ | path | variables, check=True
        )
        return [json.loads(line) for line in calls.read_text().splitlines()]

    return run


def test_slurm_starts_one_process_a_node_with_all_its_gpus(called):
    ((arguments, variables),) = called("slurm.sh", *RECIPE, command="srun", SLURM_GPUS_ON_NODE="4")
    assert arguments == ["--kill-on-bad-exit=1", "jaxrl", "train", *RECIPE]
    assert variables["JAX_LOCAL_DEVICE_IDS"] == "0,1,2,3"


def test_every_worker_of_a_slice_runs_the_same_command(called):
    (copied, _), (started, _) = called("tpu_vm.sh", "slice", "zone", *RECIPE, command="gcloud")
    assert {"scp", "--worker=all", "--zone=zone", "slice:jaxrl"} <= {*copied}
    assert {"ssh", "slice", "--worker=all", "--zone=zone"} <= {*started}
    words = shlex.split(started[-1])  # as the shell of the worker reads it
    assert words[-len(RECIPE) - 3 :] == ["JAXRL_PROCESSES=auto", "jaxrl", "train", *RECIPE]


def test_a_ray_job_is_given_the_number_of_nodes_and_the_command(called):
    ((arguments, _),) = called("ray.sh", "http://head:8265", "4", *RECIPE, command="ray")
    assert arguments[:4] == ["job", "submit", "--address", "http://head:8265"]
    job = ["python", "launch/pods/ray_job.py", "4", "jaxrl", "train", *RECIPE]
    assert arguments[arguments.index("--") + 1 :] == job


def test_ray_sets_each_process_variables_that_a_run_reads():
    text = (PODS / "ray_job.py").read_text()
    assert all(f'"{name}"' in text for name in distributed.VARIABLES)


def test_the_jobset_has_a_pod_for_each_host_and_a_mesh_of_all_chips():
    manifest = yaml.safe_load((PODS / "gke_jobset.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    chips = job["parallelism"] * int(container["resources"]["limits"]["google.com/tpu"])
    shape = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    assert chips == math.prod(map(int, shape.split("x")))
    assert job["parallelism"] == job["completions"]
    assert container["command"] == ["jaxrl", "train"]
    args = container["args"]
    assert int(args[args.index("--mesh.fsdp") + 1]) == chips
    (mount,) = container["volumeMounts"]
    assert args[args.index("--run-dir") + 1].startswith(f"{mount['mountPath']}/")
    assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]
