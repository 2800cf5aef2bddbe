"""The accelerators of this machine, dealt out to processes that run side by side on it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_FIRST_PORT = 8476
"""Where libtpu listens by default; each process needs a port of its own."""
_TPU_VISIBLE = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
"""Two names of one variable, the newer first."""


class Accelerators(NamedTuple):
    """What a machine has, in the order in which neighbours are close; one of them is empty."""

    gpus: tuple[str, ...] = ()
    """Numbers or UUIDs, as `CUDA_VISIBLE_DEVICES` takes them."""
    chips: tuple[str, ...] = ()
    """Numbers of TPU chips."""


def find_accelerators(
    devices: Path = Path("/dev"),
    environment: Mapping[str, str] = os.environ,
    *,
    libtpu: bool = importlib.util.find_spec("libtpu") is not None,
) -> Accelerators:
    """The accelerators that this process may use, without a look into JAX, which would take them.

    Those that the environment makes visible are all there are; `JAX_PLATFORMS=cpu` leaves none.

    Args:
      devices: the folder of device files.
      environment: variables of this process.
      libtpu: whether it is installed; without it, files like those of TPU chips are of others.
    """
    if environment.get("JAX_PLATFORMS", "").strip() == "cpu":
        return Accelerators()
    numbers = sorted(int(f.name[6:]) for f in devices.glob("nvidia[0-9]*"))
    gpus = _visible(environment.get("CUDA_VISIBLE_DEVICES"), [str(i) for i in numbers])
    if gpus:
        return Accelerators(gpus=gpus)
    if not libtpu:
        return Accelerators()
    count = len([*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")])
    visible_chips = next((environment[name] for name in _TPU_VISIBLE if name in environment), None)
    return Accelerators(chips=_visible(visible_chips, [str(i) for i in range(count)]))


def _visible(variable: str | None, numbers: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        numbers if variable is None else (i.strip() for i in variable.split(",") if i.strip())
    )


def shares(count: int, accelerators: Accelerators) -> list[dict[str, str]]:
    """The variables of the environment that give each of `count` processes its own accelerators.

    All get equally many, so that runs can be compared, and neighbours go to one process. Of TPU
    chips that is one each, or two each of a host of four: other parts of a host have shapes that
    differ between generations. The variables of TPUs are those that JAX's own tests with several
    processes set; each process is told that it is alone (`TPU_PROCESS_BOUNDS`).

    Args:
      count: of processes.
      accelerators: see `found`.

    Returns:
      One mapping for each process, empty where there are no accelerators.

    Raises:
      ValueError: there are fewer accelerators than processes.
    """
    total = len(accelerators.gpus) + len(accelerators.chips)
    if not total:
        return [{} for _ in range(count)]
    if total < count:
        raise ValueError(
            f"--parallel {count}: this machine has {total} accelerators; ask for that many at most"
        )
    if accelerators.gpus:
        per_process = total // count
        return [
            {
                "CUDA_VISIBLE_DEVICES": ",".join(
                    accelerators.gpus[i * per_process : (i + 1) * per_process]
                )
            }
            for i in range(count)
        ]
    per_process, bounds = (2, "1,2,1") if (total, count) == (4, 2) else (1, "1,1,1")
    return [
        {
            "TPU_VISIBLE_CHIPS": (
                chips := ",".join(accelerators.chips[i * per_process : (i + 1) * per_process])
            ),
            "TPU_VISIBLE_DEVICES": chips,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds,
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": f"localhost:{_FIRST_PORT + i}",
            "TPU_PROCESS_PORT": str(_FIRST_PORT + i),
            "CLOUD_TPU_TASK_ID": "0",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        for i in range(count)
    ]
