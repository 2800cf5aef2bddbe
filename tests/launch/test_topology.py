"""What the names of slices mean, as their makers use them; a plan for a slice that is not here."""

import importlib.util
import os
import subprocess
import sys

import pytest

from jaxrl.launch.planning import topology
from tests.jaxrl.mesh.test_mesh import ROOT


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v5p", ("v5p", 0, "")),
        ("v5p-512", ("v5p", 256, "")),  # TensorCores, two a device
        ("v4-8", ("v4", 4, "")),
        ("v6e-16", ("v6e", 16, "")),
        ("v5p:4x4x12", ("v5p", 192, "4x4x12")),
        ("v5e:8x16", ("v5e", 128, "8x16")),
        ("h100-64", ("h100", 64, "")),
    ],
)
def test_names(name, meant):
    assert topology.read(name) == meant


@pytest.mark.parametrize("name", ["v9", "v5p-7", "v5p:4x4", "h100:2x2", "v5p-", "v5p-512-4", ""])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=rf"topology={name!r} is unknown; give a chip \(v4, v5e"):
        topology.read(name)


@pytest.mark.parametrize(
    ("chip", "shapes"),
    [
        ("v5p", {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 64: "4x4x4", 256: "4x8x8", 512: "8x8x8"}),
        ("v6e", {1: "2x2", 4: "2x2", 8: "2x4", 64: "8x8", 256: "16x16"}),
    ],
)
def test_slices_have_the_shapes_that_google_lists(chip, shapes):
    assert {count: topology.slice_of(chip, count) for count in shapes} == shapes


def plan(*flags: str) -> str:
    """What the command prints, in a process of its own: it chooses the devices."""
    small = ["--fresh.hidden-size", "64", "--fresh.num-layers", "2", "--rollout.prompts", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl.launch.cli", "plan", "quickstart", *small, *flags],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    return done.stdout


@pytest.mark.broad
def test_a_plan_of_a_cluster_compiles_on_virtual_devices():
    said = plan("--mesh", "fsdp=4,tensor=2", "--topology", "h100-8")
    assert said.startswith("fresh on fsdp=4, tensor=2\n")
    assert "MiB a device (XLA on CPU)" in said
    assert " x all-gather of " in said
    assert "GiB of a h100: fits" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the extra `tpu`")
def test_a_plan_of_a_slice_compiles_for_it():
    """Gradients are scattered, which XLA on CPU does not."""
    said = plan("--mesh", "fsdp=4,tensor=2", "--topology", "v6e-8")
    assert "MiB a device (XLA for v6e)" in said
    assert " x all-gather of bf16" in said
    assert "GiB of a v6e: fits" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the extra `tpu`")
def test_an_axis_of_a_slice_is_shared_out_between_two_of_ours():
    """4x4x4 devices as 32 x 2, which needs one of the fours split."""
    said = plan("--mesh", "fsdp=32,tensor=2", "--topology", "v5p:4x4x4", "--no-compile")
    assert said.startswith("fresh on fsdp=32, tensor=2\n")
