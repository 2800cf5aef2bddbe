"""Accelerators dealt out to runs side by side. None is needed: it is files, texts and numbers."""

from __future__ import annotations

import pytest

from jaxrl.launch import devices
from jaxrl.launch.devices import Accelerators


def having(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return folder


GPUS = ("nvidia0", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm")


@pytest.mark.parametrize(
    ("names", "environment", "expected"),
    [
        ((), {}, Accelerators()),
        (GPUS, {}, Accelerators(gpus=("0", "2", "10"))),
        (GPUS, {"CUDA_VISIBLE_DEVICES": "5, 7"}, Accelerators(gpus=("5", "7"))),
        ((), {"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b"}, Accelerators(gpus=("GPU-a", "MIG-b"))),
        (GPUS, {"CUDA_VISIBLE_DEVICES": ""}, Accelerators()),
        (GPUS, {"JAX_PLATFORMS": "cpu"}, Accelerators()),
        (("accel0", "accel1"), {}, Accelerators(chips=("0", "1"))),
        (("vfio/0", "vfio/1", "vfio/vfio"), {}, Accelerators(chips=("0", "1"))),
        (("accel0", "accel1"), {"TPU_VISIBLE_DEVICES": "1"}, Accelerators(chips=("1",))),
        (("accel0", "accel1"), {"TPU_VISIBLE_CHIPS": "1"}, Accelerators(chips=("1",))),
    ],
)
def test_what_is_there(names, environment, expected, tmp_path):
    there = having(tmp_path, *names)
    assert devices.find_accelerators(there, environment, libtpu=True) == expected
    none = Accelerators()
    assert devices.find_accelerators(there, environment, libtpu=False) == (
        expected if expected.gpus else none
    )


@pytest.mark.parametrize(
    ("gpus", "count", "expected"),
    [
        ("01", 2, ["0", "1"]),
        ("0123", 2, ["0,1", "2,3"]),
        ("012", 2, ["0", "1"]),
        ("012", 1, ["0,1,2"]),
    ],
)
def test_gpus_go_to_neighbours_and_in_equal_numbers(gpus, count, expected):
    assert devices.shares(count, Accelerators(gpus=tuple(gpus))) == [
        {"CUDA_VISIBLE_DEVICES": own} for own in expected
    ]


@pytest.mark.parametrize(
    ("chips", "count", "own", "bounds"),
    [(4, 4, "0 1 2 3", "1,1,1"), (4, 2, "0,1 2,3", "1,2,1"), (8, 3, "0 1 2", "1,1,1")],
)
def test_tpu_chips_with_what_libtpu_needs(chips, count, own, bounds):
    given = devices.shares(count, Accelerators(chips=tuple(map(str, range(chips)))))
    assert [share["TPU_VISIBLE_CHIPS"] for share in given] == own.split()
    assert [share["TPU_VISIBLE_DEVICES"] for share in given] == own.split()
    assert {share["TPU_CHIPS_PER_PROCESS_BOUNDS"] for share in given} == {bounds}
    assert {share["TPU_PROCESS_BOUNDS"] for share in given} == {"1,1,1"}
    ports = [share["TPU_PROCESS_PORT"] for share in given]
    assert len(set(ports)) == count
    assert [share["TPU_PROCESS_ADDRESSES"] for share in given] == [f"localhost:{p}" for p in ports]


def test_without_accelerators_nothing_is_set_and_too_few_are_refused():
    assert devices.shares(2, Accelerators()) == [{}, {}]
    with pytest.raises(ValueError, match="--parallel 4: this machine has 3 accelerators"):
        devices.shares(4, Accelerators(gpus=("0", "1", "2")))
